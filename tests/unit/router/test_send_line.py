"""What waits for a worker's stream: in order, nothing in vain, and bounded by what is wanted."""

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outrider_router.types import Sampling, Speculation, Submission
from outrider_router.worker_client.send_line import SendLine

PLACES = 4


def choice(number: int) -> Submission:
    return Submission(f"r{number}", 0, (1,), 0, Sampling(1.0, 1.0, 0, 99), Speculation())


def told(message: Any) -> tuple[str, str | int]:
    kind = message.WhichOneof("message")
    part = getattr(message, kind)
    return kind, part.sequence if kind == "ping" else part.request_id


async def sent(line: SendLine, count: int) -> list[tuple[str, str | int]]:
    messages = line.messages()
    found = [told(await anext(messages)) for _ in range(count)]
    await messages.aclose()
    return found


async def test_signs_of_life_go_first_then_cancels_then_submits_in_order() -> None:
    line = SendLine()
    for number in range(3):
        line.submit(choice(number))
    assert await sent(line, 1) == [("submit", "r0")]
    line.ping(1)
    line.ping(2)
    line.cancel(choice(0))
    assert await sent(line, 4) == [
        ("ping", 2),
        ("cancel", "r0"),
        ("submit", "r1"),
        ("submit", "r2"),
    ]
    assert not len(line)


async def test_a_reader_that_waits_gets_what_comes() -> None:
    line = SendLine()
    reading = asyncio.create_task(sent(line, 2))
    await asyncio.sleep(0)
    line.submit(choice(7))
    line.submit(choice(8))
    assert await asyncio.wait_for(reading, 1) == [("submit", "r7"), ("submit", "r8")]


@given(steps=st.lists(st.sampled_from(["come", "go", "take"]), max_size=80), pick=st.randoms())
def test_the_line_is_as_long_as_what_is_wanted_at_most(steps: Sequence[str], pick: Any) -> None:
    """Clients come while there are places and go when they like; the worker takes now and then."""
    asyncio.run(come_and_go(steps, pick))


async def come_and_go(steps: Sequence[str], pick: Any) -> None:
    line, count = SendLine(), 0
    inside: list[Submission] = []
    at_worker: set[str | int] = set()
    for step in steps:
        if step == "come" and len(inside) < PLACES:
            inside.append(choice(count))
            line.submit(inside[-1])
            count += 1
        elif step == "go" and inside:
            line.cancel(inside.pop(pick.randrange(len(inside))))
        elif step == "take" and len(line):
            [(kind, name)] = await sent(line, 1)
            # A submit comes once and a cancel behind it; what has gone unsent is never heard of.
            if kind == "submit":
                assert name in {each.request_id for each in inside}
                at_worker.add(name)
            else:
                at_worker.remove(name)
        assert len(line) <= 2 * PLACES
        assert len(at_worker) <= 2 * PLACES
    await sent(line, len(line))


async def test_a_closed_line_lets_its_reader_go() -> None:
    line = SendLine()
    reading = asyncio.create_task(anext(line.messages(), None))
    await asyncio.sleep(0)
    line.close()
    assert await asyncio.wait_for(reading, 1) is None


async def test_nothing_is_sent_behind_the_end() -> None:
    line = SendLine()
    for number in range(3):
        line.submit(choice(number))
    messages = line.messages()
    assert told(await anext(messages)) == ("submit", "r0")
    line.close()
    assert await anext(messages, None) is None
