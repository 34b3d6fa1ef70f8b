"""Readers are woken a few at a time, and not for every token of a fast answer."""

import asyncio

import pytest

from outrider_router import mailbox as mailbox_module
from outrider_router.mailbox import Mailbox
from outrider_router.turns import Turns
from outrider_router.types import Finish, FinishKind, Sampling, Speculation, Submission, Update

END = Update(end=Finish(FinishKind.LENGTH))


def box(turns: Turns) -> Mailbox:
    return Mailbox([Submission("r", 0, (1,), 0, Sampling(1.0, 1.0, 0, 99), Speculation())], turns)


async def test_a_few_are_called_in_each_round_in_order() -> None:
    turns, called = Turns(), list[int]()
    for number in range(5):
        turns.take(lambda number=number: called.append(number))  # type: ignore[misc]
    seen = []
    while len(called) < 5:
        await asyncio.sleep(0)
        seen.append(len(called))
    assert seen == [2, 4, 5]
    assert called == list(range(5))


async def test_first_news_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox_module, "_LEAST_GAP_S", 0.0)
    turns = Turns()
    others = [box(turns) for _ in range(50)]
    for other in others:
        other.deliver(0, Update((1,)))
        await other.next()
    reading = [asyncio.create_task(other.next()) for other in others]
    late = box(turns)
    arriving = asyncio.create_task(late.next())
    await asyncio.sleep(0)
    for other in others:
        other.deliver(0, Update((2,)))
    late.deliver(0, Update((1,)))
    await arriving
    assert not any(task.done() for task in reading[2:])
    assert [news[0].token_ids for news in await asyncio.gather(*reading)] == [(2,)] * 50


async def test_news_shortly_after_others_are_read_with_more_and_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mailbox_module, "_LEAST_GAP_S", 60.0)
    mailbox = box(Turns())
    mailbox.deliver(0, Update((1,)))
    assert (await mailbox.next())[0].token_ids == (1,)
    waiting = asyncio.create_task(mailbox.next())
    for token_id in (2, 3, 4):
        await asyncio.sleep(0.01)
        mailbox.deliver(0, Update((token_id,)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    mailbox.deliver(0, END)
    assert (await asyncio.wait_for(waiting, 5))[0] == Update((2, 3, 4), end=END.end)


async def test_what_waits_is_read_once_the_time_has_passed() -> None:
    mailbox = box(Turns())
    mailbox.deliver(0, Update((1,)))
    await mailbox.next()
    mailbox.deliver(0, Update((2,)))
    mailbox.deliver(0, Update((3,)))
    waiting = asyncio.create_task(mailbox.next())
    assert (await asyncio.wait_for(waiting, 5))[0].token_ids == (2, 3)
    assert not (waiting := asyncio.create_task(mailbox.next())).done()
    mailbox.deliver(0, Update((4,)))
    assert (await asyncio.wait_for(waiting, 5))[0].token_ids == (4,)
