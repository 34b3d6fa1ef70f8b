"""The playground for everybody: keyboards, screen readers, dark, phones, keys, hostile texts."""

import re

import pytest
from playwright.async_api import Locator

from tests.support.browser import Chromium
from tests.support.chat_page import TEXT, answer_of, ask, chat_of, drafting, ready, send
from tests.support.fake_worker import FakeWorker
from tests.support.processes import Stack as RealStack
from tests.support.router_stack import Stack, running_router

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
MARKUP = """<img src="x" onerror="document.title='owned'"><script>document.title='owned'</script>"""


@pytest.fixture
def stack(chat_stack: Stack) -> Stack:
    """A router whose worker says `TEXT`, drafted in part."""
    chat_stack.worker.script = drafting(TEXT, 1, 4, 3, 6)
    return chat_stack


async def drawn(element: Locator) -> str:
    """The computed background."""
    background: str = await element.evaluate("one => getComputedStyle(one).background")
    return background


async def test_marks_can_be_turned_off(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        marked = await drawn(tab.page.locator(".turns .draft").first)
        assert "2px" in marked, "not by colour alone: there is a line"
        await tab.page.uncheck("#marks")
        assert "2px" not in await drawn(tab.page.locator(".turns .draft").first)
        assert await tab.page.locator("#legend").is_hidden()


async def test_a_token_tells_how_it_came_about(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        tip = tab.page.locator("#tip")
        await tab.page.locator(".turns .draft").nth(1).hover()
        assert re.fullmatch(r"“.+”: accepted draft 2 of 4 by ngram", await tip.inner_text())
        await tab.page.locator(".turns .correction").first.hover()
        assert "draft 4 of 4 was refused" in await tip.inner_text()
        await tab.page.locator("#message").hover()
        assert await tip.is_hidden()


async def test_arrow_keys_go_through_the_tokens(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        answer, status = tab.page.locator(".answer"), tab.page.locator("#status")
        await answer.focus()
        await answer.press("ArrowRight")
        assert "nothing was drafted" in (await status.text_content() or "")
        await answer.press("ArrowRight")
        assert "accepted draft 1 of 4 by ngram" in (await status.text_content() or "")
        assert await tab.page.locator(".token.current").count() == 1
        await answer.press("End")
        assert await tab.page.locator(".token.current").evaluate("e => !e.nextElementSibling")
        await answer.press("Escape")
        assert await tab.page.locator("#tip").is_hidden()
        assert await tab.page.locator(".token.current").count() == 0


async def test_the_page_can_be_used_by_keys_alone(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ready(tab)
        press = tab.page.keyboard.press
        await press("Tab")
        assert await tab.page.locator(".skip:focus").is_visible()
        await press("Enter")
        await tab.page.keyboard.type("hello")
        await press("Shift+Enter")
        await tab.page.keyboard.type("world")
        assert await tab.page.input_value("#message") == "hello\nworld"
        await press("Enter")
        await tab.page.locator(".given:not([aria-busy])").wait_for()
        assert await tab.page.locator("#message:focus").count() == 1
        assert "hello\nworld" in stack.worker.texts()[0]


async def test_the_answer_can_be_copied(chromium: Chromium, stack: Stack) -> None:
    granted = ["clipboard-read", "clipboard-write"]
    async with chromium.tab(chat_of(stack), permissions=granted) as tab:
        await ask(tab)
        await tab.page.get_by_role("button", name="Copy").click()
        await tab.page.get_by_role("button", name="Copied").wait_for()
        assert await tab.page.evaluate("navigator.clipboard.readText()") == TEXT


async def test_texts_stay_texts(chromium: Chromium) -> None:
    """Of the model, of the user, of errors; and what a model is called."""
    worker = FakeWorker(model=MARKUP, drafters=(MARKUP,), script=drafting(MARKUP, 1, 4))
    async with (
        worker,
        running_router(worker) as router,
        chromium.tab(f"{router.url}/chat", expected=["status of 500"]) as tab,
    ):
        await ask(tab, MARKUP)
        assert await answer_of(tab) == MARKUP
        assert await tab.page.locator(".asked .text").text_content() == MARKUP
        assert await tab.page.locator(".given .who").text_content() == MARKUP
        assert await tab.page.locator("main img, main script").count() == 0
        await tab.page.locator(".turns .draft").first.hover()
        assert MARKUP in await tab.page.locator("#tip").inner_text()
        assert await tab.page.title() == "Playground · Outrider"


async def test_a_key_is_asked_for_and_kept_for_the_tab(chromium: Chromium) -> None:
    worker = FakeWorker(script=drafting(TEXT, 3))
    async with (
        worker,
        running_router(worker, api_keys=("right",)) as router,
        chromium.tab(f"{router.url}/chat", expected=["status of 401"]) as tab,
    ):
        field = tab.page.get_by_label("API key", exact=True).and_(tab.page.locator("input"))
        await field.fill("wrong")
        await field.press("Enter")
        await tab.page.get_by_text("The server does not take this key.").wait_for()
        await tab.shoot("chat-key")
        assert await tab.barriers() == []
        await field.fill("right")
        await field.press("Enter")
        await tab.page.locator("#message:focus").wait_for()
        await ask(tab)
        assert await answer_of(tab) == TEXT
        assert await tab.page.evaluate("[...Object.values(sessionStorage)]") == ["right"]
        assert await tab.page.evaluate("localStorage.length + document.cookie.length") == 0
        await tab.page.reload()
        await ready(tab)


async def test_a_router_without_a_worker_says_so_until_there_is_one(chromium: Chromium) -> None:
    worker = FakeWorker(ready=False)
    async with (
        worker,
        running_router(worker, ready=False) as router,
        chromium.tab(f"{router.url}/chat", expected=["status of 503"]) as tab,
    ):
        state = tab.page.locator("#state.warn")
        await state.filter(has_text="warming up").wait_for()
        assert await tab.page.locator("#send").is_disabled()
        worker.ready = True
        await ready(tab)
        assert await tab.page.locator("#send").is_enabled()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_nothing_stands_in_anybody_s_way(
    chromium: Chromium, stack: Stack, dark: bool
) -> None:
    async with chromium.tab(chat_of(stack), dark=dark) as tab:
        await ready(tab)
        assert await tab.barriers() == []
        if not dark:
            await tab.shoot("chat-welcome")
        await ask(tab)
        await tab.page.locator(".report summary").click()
        assert await tab.barriers() == []
        red = int(re.findall(r"\d+", await drawn(tab.page.locator("html")))[0])
        assert (red < 60) if dark else (red > 200)
        await tab.shoot(f"chat-{'dark' if dark else 'light'}")


async def test_it_fits_on_a_phone(chromium: Chromium, stack: Stack) -> None:
    stack.worker.script = drafting(TEXT * 6, 1, 4, 3, 6)
    async with chromium.tab(chat_of(stack), width=375, height=720, has_touch=True) as tab:
        await ready(tab)
        assert await tab.page.locator("#model").is_hidden(), "settings are folded away"
        await tab.shoot("chat-phone-welcome")
        await ask(tab)
        await tab.page.locator(".report summary").click()
        assert await tab.overflow_px() == 0
        box = await tab.page.locator("#composer").bounding_box()
        assert box is not None
        assert 0 < box["y"] < 720 - box["height"] + 1, "the message field stays in sight"
        assert await tab.barriers() == []
        await tab.shoot("chat-phone")


@pytest.mark.long
async def test_the_end_of_a_long_answer_stays_in_sight(chromium: Chromium, stack: Stack) -> None:
    stack.worker.script = drafting(TEXT * 12, 1, 8, stall_after=30)
    async with chromium.tab(chat_of(stack), height=600) as tab:
        await send(tab, "tell me more")
        await tab.page.locator(".token").nth(200).wait_for()
        bottom = "s => s.scrollHeight - s.scrollTop - s.clientHeight"
        assert await tab.page.locator("#scroller").evaluate(bottom) < 4
        await tab.page.locator("#scroller").evaluate("s => s.scrollTop = 0")
        stack.worker.resume.set()
        await tab.page.locator(".given:not([aria-busy])").wait_for()
        assert await tab.page.locator("#scroller").evaluate("s => s.scrollTop") == 0


@pytest.mark.e2e
async def test_a_real_stack(chromium: Chromium, demo_stack: RealStack) -> None:
    """The demo model: what the page marks is what the worker accepted."""
    url = demo_stack.base_url.removesuffix("/v1")
    async with chromium.tab(f"{url}/chat") as tab:
        await ask(tab, "Repeat: the quick brown fox jumps over the lazy dog, the quick brown fox.")
        drafts = await tab.page.locator(".turns .draft").count()
        assert drafts > 0
        assert f"{drafts} (" in await tab.page.locator(".facts").inner_text()
        await tab.page.locator(".report summary").click()
        assert f"{drafts} of " in await tab.page.locator(".report").inner_text()
        await tab.shoot("chat-demo")
