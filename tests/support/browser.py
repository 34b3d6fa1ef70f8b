"""A real Chromium for tests of pages: tabs that note every complaint, take pictures, and judge
whether people who use no mouse or no screen can work with what they show.

Needs Chromium, and the packages of the extra `browser`: `make test-browser` installs them.
"""

import os
import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "artefacts" / "browser"
WAIT_LIMIT_MS = 60_000
# Nothing that speaks to the outside or wants a graphics card; the sandbox wants no root.
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@dataclass
class Tab:
    """One page in a browser context of its own.

    Attributes:
        page: Playwright's.
        complaints: errors and warnings of the console, faults of scripts, what the policy blocked.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)

    def listen(self, expected: Collection[str]) -> None:
        """Note complaints, but for those that hold one of the expected texts."""

        def note(text: str) -> None:
            if not any(part in text for part in expected):
                self.complaints.append(text)

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                note(message.text)

        self.page.on("console", heard)
        self.page.on("pageerror", lambda error: note(str(error)))

    async def shoot(self, name: str) -> None:
        """Keep a picture of the window as an artefact of the run."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=PICTURES / f"{name}.png")

    async def barriers(self) -> list[str]:
        """What axe-core finds by the rules of WCAG 2.2 AA and its own best practices."""
        await self.page.evaluate(_axe_source())
        options = {"resultTypes": ["violations"]}
        found: dict[str, Any] = await self.page.evaluate("(o) => axe.run(document, o)", options)
        return [
            f"{rule['id']}: {rule['help']}: {[node['html'] for node in rule['nodes']]}"
            for rule in found["violations"]
        ]

    async def overflow_px(self) -> int:
        """How much wider the page is than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        wider: int = await self.page.evaluate(script)
        return wider


@dataclass(frozen=True)
class Chromium:
    """A running browser."""

    browser: Browser

    @asynccontextmanager
    async def tab(
        self,
        url: str,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 860,
        expected: Collection[str] = (),
        **options: Any,
    ) -> AsyncIterator[Tab]:
        """A tab that shows `url`; AssertionError at its end where anything was complained about.

        `expected`: parts of complaints that belong to the test; `options`: of the context.
        """
        context: BrowserContext = await self.browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": height},
            **options,
        )
        context.set_default_timeout(WAIT_LIMIT_MS)
        try:
            tab = Tab(await context.new_page())
            tab.listen(expected)
            await tab.page.goto(url)
            yield tab
            assert tab.complaints == []
        finally:
            await context.close()


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Chromium]:
    """Debian's Chromium, or the one that `OUTRIDER_CHROMIUM` names."""
    path = os.environ.get("OUTRIDER_CHROMIUM") or _found("chromium", "chromium-browser")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield Chromium(browser)
        finally:
            await browser.close()


def _found(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, f"none of {names} is installed: `make test-browser` does it"
    return found


def _axe_source() -> str:
    """axe-core, as a package for Playwright brings it along."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()
