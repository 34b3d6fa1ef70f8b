"""That the test bed sees what it should: complaints of the browser, and barriers."""

import pytest

from tests.support.browser import Chromium
from tests.support.chat_page import chat_of, ready
from tests.support.router_stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
SPOIL = """() => {
    document.querySelector("main").append(document.createElement("img"));
    document.querySelector("#model").labels[0].remove();
    document.querySelector(".lead").style.color = "#bbb";
}"""


async def test_barriers_are_found(chromium: Chromium, chat_stack: Stack) -> None:
    async with chromium.tab(chat_of(chat_stack)) as tab:
        await ready(tab)
        await tab.page.evaluate(SPOIL)
        rules = [found.partition(":")[0] for found in await tab.barriers()]
        assert rules == ["color-contrast", "image-alt", "select-name"]


@pytest.mark.parametrize(
    "fault",
    [
        "setTimeout(() => { throw new Error('boom'); })",
        "document.body.setAttribute('onclick', 'alert(1)')",
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in (
                "document.body.innerHTML = 'x'",
                "fetch('http://127.0.0.1:9/')",
                "console.warn('hm')",
            )
        ),
    ],
)
async def test_complaints_fail_a_test(chromium: Chromium, chat_stack: Stack, fault: str) -> None:
    with pytest.raises(AssertionError):
        await _with_fault(chromium, chat_of(chat_stack), fault)


async def _with_fault(chromium: Chromium, url: str, fault: str) -> None:
    """Let the page itself do something that it must not, and wait until the browser has said so."""
    async with chromium.tab(url) as tab:
        await ready(tab)
        await tab.page.evaluate(f"() => {{ setTimeout(() => {{ {fault}; }}) }}")
        await tab.page.wait_for_timeout(200)
