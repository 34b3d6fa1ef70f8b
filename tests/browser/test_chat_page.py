"""The playground in a real browser: answers stream in, every token is marked, errors are said."""

import pytest

from outrider.worker.v1 import worker_pb2
from tests.support import tiny_tokenizers as tiny
from tests.support.browser import Chromium
from tests.support.chat_page import (
    TEXT,
    answer_of,
    ask,
    chat_of,
    drafting,
    marks_of,
    ready,
    send,
    tokens_of,
)
from tests.support.fake_worker import Script
from tests.support.router_stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
IDS = tiny.encode(TEXT)


@pytest.fixture
def stack(chat_stack: Stack) -> Stack:
    """A router whose worker says `TEXT`, drafted in part."""
    chat_stack.worker.script = drafting(TEXT, 1, 4, 3, 6)
    return chat_stack


async def test_an_answer_comes_as_it_is_made_with_every_token_marked(
    chromium: Chromium, stack: Stack
) -> None:
    text = "The capital of France is Paris. The quick brown fox jumps over the lazy dog."
    script = drafting(text, 1, 4, 3, stall_after=3)
    stack.worker.script = script
    async with chromium.tab(chat_of(stack)) as tab:
        await ready(tab)
        await tab.page.fill("#message", "hi")
        await tab.page.click("#send")
        so_far = tiny.decode([one for ids in script.rounds[:3] for one in ids])
        await tab.page.locator(".answer", has_text=so_far).wait_for()
        assert await answer_of(tab) == so_far
        assert await tab.page.locator(".given[aria-busy]").count() == 1
        stack.worker.resume.set()
        await tab.page.locator("#send:enabled").wait_for()
        assert await tokens_of(tab) == marks_of(script)
        facts = await tab.page.locator(".facts").text_content() or ""
        assert f"{len(tiny.encode(text))} tokens" in facts
        assert "to the first token" in facts
        assert "tokens/s" in facts
        status = await tab.page.locator("#status").text_content() or ""
        assert status.startswith("Answer complete:")


async def test_the_report_is_the_router_s(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        assert await answer_of(tab) == TEXT, "characters made of several tokens are whole"
        await tab.page.locator(".report summary").click()
        report = await tab.page.locator(".report").inner_text()
        rounds = [ids for ids in drafting(TEXT, 1, 4, 3, 6).rounds if len(ids) > 1]
        assert f"Steps with drafts\n{len(rounds)}" in report
        assert f"Answer tokens\n{len(IDS)}" in report
        assert f"{sum(len(ids) - 1 for ids in rounds)} of " in report
        assert await tab.page.locator(".steps i").count() == len(rounds)
        await tab.shoot("chat-light")


async def test_the_next_message_carries_the_conversation(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab, "first")
        await ask(tab, "second")
        prompt = stack.worker.texts()[1]
        assert f"user\nfirst<|im_end|>\n<|im_start|>assistant\n{TEXT}<|im_end|>" in prompt
        assert await tab.page.locator(".turn").count() == 4
        await tab.page.click("#new-chat")
        assert await tab.page.locator(".turn").count() == 0
        await ask(tab, "third")
        assert "first" not in stack.worker.texts()[2]


async def test_settings_reach_the_worker(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        page = tab.page
        await page.fill("#system", "Be short.")
        await page.fill("#temperature", "0.5")
        await page.fill("#max-tokens", "5")
        await page.select_option("#mode", "capped")
        await page.fill("#cap", "2")
        await page.select_option("#drafter", "head")
        await page.fill("#prediction", "Paris")
        await ask(tab)
        assert "cut at the most tokens" in await page.locator(".turns").inner_text()
        await page.select_option("#mode", "off")
        await ask(tab)
        plain, capped, off = stack.worker.submitted
        assert not plain.speculation.HasField("enabled")
        assert (capped.speculation.max_draft_tokens, capped.speculation.drafter) == (2, "head")
        assert (capped.sampling.max_tokens, capped.sampling.temperature) == (5, 0.5)
        assert tiny.decode(capped.prediction_ids) == "Paris"
        assert "Be short." in tiny.decode(capped.prompt_ids)
        assert (off.speculation.enabled, off.speculation.drafter) == (False, "")
        assert not off.prediction_ids


async def test_a_setting_out_of_bounds_is_said(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack)) as tab:
        await tab.page.fill("#temperature", "7")
        await send(tab, "hi")
        assert "Temperature" in await tab.page.locator("#notice").inner_text()
        assert await tab.page.locator("#temperature:focus").count() == 1
        assert await tab.page.input_value("#message") == "hi"
        assert not stack.worker.submitted


@pytest.mark.parametrize("way", ["button", pytest.param("key", marks=pytest.mark.long)])
async def test_stop_stops_the_worker(chromium: Chromium, stack: Stack, way: str) -> None:
    stack.worker.script = drafting(TEXT, 2, stall_after=2)
    async with chromium.tab(chat_of(stack)) as tab:
        await send(tab, "hi")
        await tab.page.locator(".token").nth(3).wait_for()
        await (tab.page.click("#stop") if way == "button" else tab.page.keyboard.press("Escape"))
        await tab.page.locator("#send:enabled").wait_for()
        assert "Stopped" in await tab.page.locator(".given").inner_text()
        await stack.until_idle()
        assert len(stack.worker.cancelled) == 1
        stack.worker.script = drafting(TEXT, 3)
        await ask(tab, "more")
        assert await answer_of(tab) == TEXT


async def test_an_error_before_the_answer_gives_the_message_back(
    chromium: Chromium, stack: Stack
) -> None:
    stack.worker.script = Script([], failure=worker_pb2.FAILURE_CODE_INTERNAL)
    async with chromium.tab(chat_of(stack), expected=["status of 500"]) as tab:
        await ask(tab, "hello?")
        alert = tab.page.get_by_role("alert").filter(has_text="as scripted")
        assert await alert.inner_text() == "The request failed: as scripted."
        assert await tab.page.input_value("#message") == "hello?"
        assert await tab.page.locator(".turn").count() == 0
        stack.worker.script = drafting(TEXT, 3)
        await ask(tab, "again")
        assert await tab.page.locator("#notice").inner_text() == ""


async def test_an_answer_that_breaks_off_stays(chromium: Chromium, stack: Stack) -> None:
    script = drafting("The quick brown fox", 3, failure=worker_pb2.FAILURE_CODE_INTERNAL)
    stack.worker.script = script
    async with chromium.tab(chat_of(stack)) as tab:
        await ask(tab)
        assert (
            "The answer broke off: as scripted." in await tab.page.locator("#notice").inner_text()
        )
        assert await answer_of(tab) == "The quick brown fox"
        assert "Broken off" in await tab.page.locator(".given").inner_text()
        assert await tab.barriers() == []


async def test_a_router_that_is_gone_is_said(chromium: Chromium, stack: Stack) -> None:
    async with chromium.tab(chat_of(stack), expected=["ERR_FAILED"]) as tab:
        await ready(tab)
        await tab.page.route("**/v1/**", lambda route: route.abort())
        await send(tab, "hi")
        await tab.page.locator("#state.warn").wait_for()
        assert "does not answer" in await tab.page.locator("#notice").inner_text()
        assert "does not answer" in await tab.page.locator("#state").inner_text()
        await tab.page.unroute("**/v1/**")
        await ready(tab)
