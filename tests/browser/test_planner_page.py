"""The planner's live page in a real browser: a real planner, and a worker that plays rounds."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from playwright.async_api import Error, Page, expect

from tests.integration.planner.streams import TOKEN, make_hello, running_planner, worker_stream
from tests.support.browser import Chromium
from tests.support.planner_page import (
    REFUSED,
    cell,
    hide,
    least_contrast,
    plan_of,
    ready,
    settled,
    shown_plan,
    stage,
    url,
)
from tests.support.played_worker import playing_worker

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
LONG = pytest.mark.long


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


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (390, True),
        (1440, False),
        pytest.param(820, False, marks=LONG),
        pytest.param(1440, True, marks=LONG),
    ],
)
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


async def test_the_headline_leaves_out_drafters_that_nothing_was_verified_of(
    chromium: Chromium,
) -> None:
    """Of two drafters one drafts, and little of it holds; the other's prior promises more."""
    two = ("ngram", "predicted")
    async with (
        running_planner() as process,
        playing_worker(process, drafters=two) as played,
        chromium.tab(url(process)) as tab,
    ):
        played.acceptance = 0.3
        await settled(process, 512)
        await ready(tab.page)
        await expect(tab.page.locator("#ratio-more")).to_contain_text("predicted rate")
        known = process.service.planner.workers["worker-1"].evidence.estimates
        assert [known[name][1].verified > 0 for name in two] == [True, False]
        await expect(tab.page.get_by_label("Drafter", exact=True)).to_have_value("ngram")
        # Both are asked anew every second, and what is known goes on changing.
        shown, planned, prior = 0.0, 1.0, 0.0
        async with asyncio.timeout(20):
            while shown != pytest.approx(planned, abs=0.05):
                (planned, prior) = await _ratios(tab.page)
                shown = float((await tab.page.locator("#ratio").inner_text()).rstrip("×"))
        assert prior > planned + 0.1


async def test_before_a_draft_was_verified_the_headline_says_so(chromium: Chromium) -> None:
    async with running_planner() as process, worker_stream(process) as stream:
        await stream.say(hello=make_hello())
        await stream.next("plan")
        async with chromium.tab(url(process)) as tab:
            await ready(tab.page)
            await expect(tab.page.locator("#ratio")).to_have_text("–")
            await expect(tab.page.locator("#ratio-more")).to_have_text("no draft wasverified yet")


async def _ratios(page: Page) -> list[float]:
    """What is planned with each drafter, against off, as the page shows it when it is chosen."""
    found = []
    for drafter in ("ngram", "predicted"):
        await page.get_by_label("Drafter", exact=True).select_option(drafter)
        await expect(page.locator("#map caption")).to_contain_text(drafter)
        cells = page.locator("#cells tr.planned td")
        found.append(float((await cells.last.inner_text()).rstrip("×")))
    return found


@LONG
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
