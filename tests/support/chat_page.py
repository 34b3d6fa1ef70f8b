"""The router's playground in a tab: asking it, and what it shows of an answer."""

from typing import Any

from tests.support import tiny_tokenizers as tiny
from tests.support.browser import Tab
from tests.support.fake_worker import Script, saying
from tests.support.router_stack import Stack

TEXT = "The capital of France is Paris 🎉.\n\nThe quick brown fox jumps over the lazy dog 12 times."


def drafting(text: str, *sizes: int, **options: Any) -> Script:
    """Rounds of these sizes; of those with drafts, every other one had a draft refused."""
    rounds = saying(text, *sizes).rounds
    verified = [
        len(ids) - 1 + (number % 2 if len(ids) > 1 else 0) for number, ids in enumerate(rounds)
    ]
    return Script(rounds, verified=verified, **options)


def marks_of(script: Script) -> list[tuple[str, str]]:
    """What the page should show for a script whose every token is a whole character or more."""
    shown = []
    for ids, drafted in zip(script.rounds, script.verified, strict=True):
        accepted = len(ids) - 1
        last = "correction" if drafted > accepted else "own"
        marks = ["draft"] * accepted + [last]
        shown += [(tiny.decode([one]), mark) for one, mark in zip(ids, marks, strict=True)]
    return shown


def chat_of(stack: Stack) -> str:
    """The page's address."""
    return f"{stack.router.url}/chat"


async def ready(tab: Tab) -> None:
    """Wait until the page has found a model."""
    await tab.page.locator("#state.good").wait_for()


async def send(tab: Tab, text: str) -> None:
    """Send a message."""
    await ready(tab)
    await tab.page.fill("#message", text)
    await tab.page.press("#message", "Enter")


async def ask(tab: Tab, text: str = "What is the capital of France?") -> None:
    """Send a message and wait until its answer has ended."""
    await send(tab, text)
    await tab.page.locator("#send:enabled").wait_for()


async def answer_of(tab: Tab) -> str:
    """The last answer's text."""
    return await tab.page.locator(".answer").last.text_content() or ""


async def tokens_of(tab: Tab) -> list[tuple[str, str]]:
    """Text and mark of every token of the last answer."""
    script = "all => all.map(one => [one.textContent, one.className.split(' ')[1]])"
    found = await tab.page.locator(".answer").last.locator(".token").evaluate_all(script)
    return [(text, mark) for text, mark in found]
