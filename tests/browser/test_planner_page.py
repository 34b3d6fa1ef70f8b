"""The planner's live page in a real browser: a real planner, and a worker that plays rounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
from playwright.async_api import Error, Page, expect

from outrider_planner.assembly import PlannerProcess
from outrider_planner.core.types import Plan
from tests.integration.planner.streams import TOKEN, running_planner
from tests.support.browser import WAIT_LIMIT_MS, Chromium, Tab
from tests.support.played_worker import Played, playing_worker

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

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


async def test_the_plan_is_drawn_as_it_is_and_explained_on_a_click(chromium: Chromium) -> None:
    async with stage() as (process, _), chromium.tab(url(process)) as tab:
        page = tab.page
        await ready(page)
        plan = plan_of(process)
        assert await shown_plan(page) == list(plan.drafters[0].draft_tokens)
        assert max(await shown_plan(page)) >= 3, "long drafts at a small load"
        assert (await shown_plan(page))[-1] <= 1, "short ones or none at a large one"
        await expect(page.locator("#why-title")).to_have_text("Why at n = 8")
        await expect(page.locator("#cells tr.planned")).to_have_count(1)
        await expect(page.locator("#acceptance tbody tr")).to_have_count(8)
        await page.locator(cell(page, 32, 7)).click()
        await expect(page.locator("#why-title")).to_have_text("Why at n = 32")
        await expect(page.locator("#cells tr.asked td").first).to_have_text("7")
        await expect(page.locator("#announce")).to_contain_text("7 drafts each")
        priced = await page.locator("#cells tr.asked td").last.inner_text()
        drawn = await page.locator(cell(page, 32, 7)).inner_text()
        assert float(priced.rstrip("×")) == pytest.approx(float(drawn), abs=0.02)
        await page.get_by_role("button", name="Back to the present load").click()
        await expect(page.locator("#why-title")).to_have_text("Why at n = 8")
        await expect(page.locator("#map td[aria-selected=true]")).to_have_count(0)


async def test_the_map_is_worked_with_by_keys(chromium: Chromium) -> None:
    async with stage() as (process, _), chromium.tab(url(process)) as tab:
        page = tab.page
        await ready(page)
        await page.locator("#map td[tabindex='0']").focus()
        for key in ("Home", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowLeft", "ArrowLeft"):
            await page.keyboard.press(key)
        focused = page.locator("#map td:focus")
        await expect(focused).to_have_attribute("data-n", "1")
        await expect(focused).to_have_attribute("data-d", "2")
        await page.keyboard.press("Enter")
        await expect(page.locator("#why-title")).to_have_text("Why at n = 1")
        await expect(focused).to_have_attribute("aria-selected", "true")
        async with page.expect_response("**/explain?*"):
            pass
        await page.wait_for_timeout(100)
        await expect(focused).to_have_attribute("data-d", "2")
        label = await focused.get_attribute("aria-label")
        assert label is not None
        assert label.startswith("1 request, 2 drafts each: ")


async def test_a_policy_is_switched_only_by_the_button_that_says_so(chromium: Chromium) -> None:
    async with stage() as (process, _), chromium.tab(url(process), expected=REFUSED) as tab:
        page, dialog = tab.page, tab.page.locator("#policy-dialog")
        await ready(page)
        await page.get_by_role("button", name="Change policy…").click()
        await expect(dialog.get_by_role("button", name="Keep two_stage")).to_be_visible()
        await expect(dialog.locator("#confirm")).to_be_disabled()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("3")
        await dialog.get_by_label("Planner's token").fill("wrong")
        await dialog.get_by_role("button", name="Use key").click()
        await expect(dialog.get_by_text("does not take this key")).to_be_visible()
        await dialog.get_by_label("Planner's token").fill(TOKEN)
        await dialog.get_by_role("button", name="Use key").click()
        await expect(dialog.locator("#preview tbody tr")).to_have_count(2)
        await expect(dialog.locator("#preview")).to_contain_text("at once on 1 worker of demo")
        await tab.shoot("planner-policy")
        assert await tab.barriers() == []
        assert policy_of(process) == ("two_stage", 0), "nothing was confirmed"
        await dialog.get_by_role("button", name="Keep two_stage").click()
        await expect(dialog).to_be_hidden()
        assert policy_of(process) == ("two_stage", 0)
        await page.get_by_role("button", name="Change policy…").click()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("3")
        await dialog.get_by_role("button", name="Switch to static:3").click()
        await expect(dialog).to_be_hidden()
        await expect(page.locator("#policy")).to_have_text("static:3")
        assert policy_of(process) == ("static:3", 1)
        await expect(page.locator("#announce")).to_contain_text("demo is planned by static:3 now")
        await expect(page.locator(cell(page, 64, 3))).to_have_class("planned")
        await expect(page.locator("#why-note")).to_contain_text("fixed by the policy static:3")


async def test_what_the_planner_refuses_is_told_and_changes_nothing(chromium: Chromium) -> None:
    refused = ("status of 400",)
    async with (
        stage(token=None) as (process, _),
        chromium.tab(url(process), expected=refused) as tab,
    ):
        page, dialog = tab.page, tab.page.locator("#policy-dialog")
        await ready(page)
        await page.get_by_role("button", name="Change policy…").click()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("many")
        await expect(dialog.locator("#preview")).to_contain_text("needs a draft length of 0…64")
        await dialog.get_by_role("button", name="Switch to static:many").click()
        await expect(dialog.locator("#dialog-error")).to_contain_text("known are two_stage")
        assert policy_of(process) == ("two_stage", 0)
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()


async def test_a_planner_without_workers_says_so_until_there_is_one(chromium: Chromium) -> None:
    async with running_planner() as process, chromium.tab(url(process)) as tab:
        await expect(tab.page.locator("#empty")).to_be_visible()
        await expect(tab.page.locator("#live")).to_be_hidden()
        assert await tab.barriers() == []
        async with playing_worker(process):
            await ready(tab.page)
            await expect(tab.page.locator("#empty")).to_be_hidden()


async def test_labels_are_shown_as_they_are_written(chromium: Chromium) -> None:
    model = "<img src=x onerror=\"document.title='hit'\">"
    async with (
        running_planner() as process,
        chromium.tab(url(process), expected=("TrustedHTML",)) as tab,
        playing_worker(process, model=model),
    ):
        await ready(tab.page)
        await expect(tab.page.locator("#marks .mark").first).to_have_text(model)
        assert await tab.page.locator("img").count() == 0
        assert await tab.page.title() == "Outrider planner"
        with pytest.raises(Error, match="TrustedHTML"):
            await tab.page.evaluate("document.body.innerHTML = '<b>no text becomes markup</b>'")


@pytest.mark.parametrize(("width", "dark"), [(390, True), (820, False), (1440, True)])
async def test_everybody_can_read_it(chromium: Chromium, width: int, dark: bool) -> None:
    """By the rules of WCAG 2.2 AA, at any width, without scrolling sideways."""
    async with stage() as (process, played), playing_worker(process, "worker-2"):
        played.trips = 1
        default = process.service.planner.settings.default.settings
        process.service.put_settings("demo", replace(default, shadows=("off", "static:4")))
        height = 2400 if width < 900 else 1250
        async with chromium.tab(url(process), dark=dark, width=width, height=height) as tab:
            await ready(tab.page)
            await expect(tab.page.locator("#shadows tbody tr")).to_have_count(2)
            await tab.page.locator(cell(tab.page, 24, 8)).click()
            await expect(tab.page.locator("#cells tr.asked")).to_have_count(1)
            await tab.shoot(f"planner-{width}-{'dark' if dark else 'light'}")
            assert await tab.barriers() == []
            assert await tab.overflow_px() <= 0
            assert await least_contrast(tab.page) >= 4.5


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


async def test_beyond_loopback_the_page_asks_for_the_token(chromium: Chromium) -> None:
    async with (
        stage(http_host="0.0.0.0") as (process, _),
        chromium.tab(url(process), expected=REFUSED) as tab,
    ):
        page = tab.page
        await expect(page.get_by_text("The server asks for a key.")).to_be_visible()
        await expect(page.locator("#live")).to_be_hidden()
        assert await tab.barriers() == []
        for wrong in ("wrong", "a key – with a dash"):
            await page.locator("#key-place input").fill(wrong)
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("The server does not take this key.")).to_be_visible()
        await page.locator("#key-place input").fill(TOKEN)
        await page.keyboard.press("Enter")
        await ready(page)
        await expect(page.locator("#key-place form")).to_be_hidden()
        assert TOKEN not in page.url
        assert await page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


async def test_what_goes_wrong_is_marked_in_words(chromium: Chromium) -> None:
    gone = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE")
    async with stage() as (process, played), chromium.tab(url(process), expected=gone) as tab:
        page = tab.page
        await ready(page)
        await expect(page.locator("#marks")).to_contain_text("no guard trips, no drift")
        played.tripped, played.trips = True, 1
        await expect(page.locator("#marks")).to_contain_text("guard tripped")
        await expect(page.locator("#guard")).to_contain_text("tripped: drafts are off")
        await expect(page.locator("#announce")).to_contain_text("each, guard tripped")
        await process.http.stop()
        await expect(page.locator("#notice")).to_contain_text("the server does not answer")
        await expect(page.locator("#link")).to_have_text("no answer")


async def test_nobody_is_asked_while_nobody_looks(chromium: Chromium) -> None:
    async with stage() as (process, _), chromium.tab(url(process)) as tab:
        page = tab.page
        await ready(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await hide(tab, True)
        await page.wait_for_timeout(2500)
        assert asked == []
        async with page.expect_request("**/v1/overview"):
            await hide(tab, False)
        await page.get_by_role("button", name="Pause").click()
        await expect(page.locator("#link")).to_have_text("paused")
        async with page.expect_request("**/v1/overview"):
            await page.get_by_role("button", name="Resume").click()


async def hide(tab: Tab, hidden: bool) -> None:
    """What a browser does when its user turns to another tab."""
    await tab.page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden',"
        " { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


async def test_another_worker_deployment_and_drafter_can_be_looked_at(chromium: Chromium) -> None:
    async with stage() as (process, _), AsyncExitStack() as others:
        for number in range(2, 10):
            await others.enter_async_context(playing_worker(process, f"worker-{number}"))
        two = ("eagle", "suffix")
        await others.enter_async_context(
            playing_worker(process, "other-1", drafters=two, deployment="other")
        )
        async with chromium.tab(url(process)) as tab:
            page = tab.page
            await ready(page)
            await expect(page.locator("#workers-title")).to_have_text("9 workers")
            await page.get_by_label("Filter workers").fill("WORKER-7")
            await expect(page.locator("#workers tbody tr")).to_have_count(1)
            await expect(page.locator("#workers-more")).to_contain_text("8 workers not shown")
            await page.locator("#workers").get_by_role("button").click()
            await expect(page.locator("#plan-title")).to_have_text(
                "Plan of worker-7.cluster.local:9000"
            )
            await page.reload()
            await expect(page.locator("#plan-title")).to_contain_text("worker-7")
            await page.get_by_label("Deployment").select_option("other")
            await expect(page.locator("#plan-title")).to_contain_text("other-1")
            await page.get_by_label("Drafter", exact=True).select_option("suffix")
            await expect(page.locator("#map caption")).to_have_text("Rate against off with suffix")
