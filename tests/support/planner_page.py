"""The planner's live page as tests meet it: a real planner, and a worker that plays rounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Page, expect

from outrider_planner.assembly import PlannerProcess
from outrider_planner.core.types import Plan
from tests.integration.planner.streams import running_planner
from tests.support.browser import WAIT_LIMIT_MS, Tab
from tests.support.played_worker import Played, playing_worker

REFUSED = ("status of 401",)
expect.set_options(timeout=WAIT_LIMIT_MS)


@asynccontextmanager
async def stage(**changes: object) -> AsyncIterator[tuple[PlannerProcess, Played]]:
    """A planner whose only worker has played long enough for a plan that holds."""
    async with running_planner(**changes) as process, playing_worker(process) as played:
        await settled(process)
        yield process, played


async def settled(process: PlannerProcess, rounds: int = 64) -> None:
    async with asyncio.timeout(10):
        while process.service.planner.workers["worker-1"].rounds < rounds:
            await asyncio.sleep(0.02)


def url(process: PlannerProcess) -> str:
    return f"http://127.0.0.1:{process.http.port}/"


def plan_of(process: PlannerProcess) -> Plan:
    plan = process.service.planner.workers["worker-1"].plan
    assert plan is not None
    return plan


def policy_of(process: PlannerProcess) -> tuple[str, int]:
    settings = process.service.planner.settings.of("demo").settings
    return settings.policy, settings.version


def cell(page: Page, requests: int, drafts: int) -> str:
    return f'#map td[data-n="{requests}"][data-d="{drafts}"]'


async def shown_plan(page: Page) -> list[int]:
    """d of the framed cell of every column."""
    script = "cells => cells.map(({ dataset }) => [Number(dataset.n), Number(dataset.d)])"
    found: list[list[int]] = await page.locator("#map td.planned").evaluate_all(script)
    return [d for _, d in sorted(found)]


async def ready(page: Page) -> None:
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("#map td.planned").first).to_be_visible()


async def least_contrast(page: Page) -> float:
    """Of the map's numbers on their shades, which axe does not mix."""
    found: float = await page.locator("#map td").evaluate_all(
        """cells => {
          const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const light = (colour) => {
            pen.fillStyle = colour;
            pen.fillRect(0, 0, 1, 1);
            const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((value) => {
              const part = value / 255;
              return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          return Math.min(...cells.map((cell) => {
            const { color, backgroundColor } = getComputedStyle(cell);
            const [dim, bright] = [light(color), light(backgroundColor)].sort((x, y) => x - y);
            return (bright + 0.05) / (dim + 0.05);
          }));
        }"""
    )
    return found


async def hide(tab: Tab, hidden: bool) -> None:
    """What a browser does when its user turns to another tab."""
    await tab.page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden',"
        " { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )
