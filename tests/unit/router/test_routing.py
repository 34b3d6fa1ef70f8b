"""Choice of worker, affinity, breaker and discovery: pure parts, and time as an argument."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from outrider_router.routing.affinity import BLOCK_TOKENS, PrefixIndex
from outrider_router.routing.breaker import Breaker
from outrider_router.routing.discovery import Discovery, resolve
from outrider_router.routing.fleet import Fleet
from outrider_router.routing.policy import Candidate, Demand, MostRoom
from outrider_runtime.clock import VirtualClock

ONE = Demand(choices=1, kv_tokens=100)


def worker(address: str, **known: Any) -> Candidate:
    return replace(Candidate(address, 0, 0, slots=32, kv_capacity_tokens=10_000), **known)


candidates = st.lists(
    st.builds(
        Candidate,
        st.text(max_size=3),
        *[st.integers(0, 40)] * 3,
        *[st.integers(0, 20_000)] * 3,
        st.sampled_from([0, 64, 128]),
    ),
    min_size=1,
    unique_by=lambda candidate: candidate.address,
)


@given(candidates=candidates, turn=st.integers(0, 50), slack=st.sampled_from([0.0, 0.15, 1.0]))
def test_imbalance_is_bounded_and_the_choice_depends_on_arguments_alone(
    candidates: list[Candidate], turn: int, slack: float
) -> None:
    picker = MostRoom(slack)
    chosen = picker.choose(candidates, ONE, turn)
    least = min(candidate.load_with(ONE) for candidate in candidates)
    assert chosen.load_with(ONE) <= least + slack + 1e-6
    assert picker.choose(candidates, ONE, turn) is chosen
    if not any(candidate.prefix_tokens for candidate in candidates):
        assert chosen.load_with(ONE) <= least + 1e-6


def test_equals_take_turns() -> None:
    workers = [worker("a", in_flight=1), worker("b", reported=1), worker("c", in_flight=2)]
    chosen = [MostRoom().choose(workers, ONE, turn).address for turn in range(4)]
    assert chosen == ["a", "b", "a", "b"]


def test_memory_counts_as_much_as_places() -> None:
    """One long request can fill a worker that counts of requests would call free."""
    full = worker("full", in_flight=1, kv_used_tokens=9_950)
    busy = worker("busy", in_flight=20)
    assert MostRoom().choose([full, busy], ONE, 0) is busy
    assert full.load_with(ONE) > 1 > busy.load_with(ONE)


def test_a_worker_that_knows_the_prompt_gets_it_unless_it_is_much_fuller() -> None:
    free = worker("free")
    knows = worker("knows", prefix_tokens=128, in_flight=4)
    assert MostRoom().choose([free, knows], ONE, 0) is knows
    assert MostRoom().choose([free, replace(knows, in_flight=6)], ONE, 0) is free


def test_prefixes_are_known_by_block_salt_and_newest_owner() -> None:
    index, prompt = PrefixIndex(most_blocks=6), list(range(3 * BLOCK_TOKENS + 5))
    index.learn(prompt, b"", "a")
    assert index.matches(prompt, b"") == {"a": 3 * BLOCK_TOKENS}
    assert index.matches([*prompt[: 2 * BLOCK_TOKENS - 1], 7], b"") == {"a": BLOCK_TOKENS}
    assert index.matches(prompt, b"other tenant") == {}
    assert index.matches([7, *prompt], b"") == {}
    index.learn(prompt[:BLOCK_TOKENS], b"", "b")
    assert index.matches(prompt, b"") == {"b": BLOCK_TOKENS, "a": 3 * BLOCK_TOKENS}
    index.forget({"b"})
    assert index.matches(prompt, b"") == {}, "what follows a gap is of no use"
    for start in range(1, 5):
        index.learn([start] * 2 * BLOCK_TOKENS, b"", "c")
    assert len(index._owners) == 6


def test_breaker_opens_for_longer_each_time_and_a_success_closes_it() -> None:
    """F10: a failing worker is not picked again and again, nor left alone for ever."""
    breaker = Breaker()
    for now_s in (0.0, 0.1, 1.0):
        breaker.failed(now_s)
    assert not breaker.is_open(1.0), "two failures of one moment are one"
    breaker.failed(2.0)
    assert breaker.is_open(3.9)
    assert not breaker.is_open(4.1), "it may be tried again"
    breaker.sent(4.1)
    assert breaker.is_open(4.2), "by one at a time"
    breaker.failed(5.0)
    assert breaker.is_open(8.9)
    assert not breaker.is_open(9.1)
    breaker.succeeded()
    breaker.failed(9.2)
    assert not breaker.is_open(9.2)
    for now_s in range(10, 400, 40):
        breaker.failed(now_s)
    assert not breaker.is_open(370 + 31), "never for longer than the limit"


async def test_names_are_looked_up_again_and_what_is_unknown_is_kept() -> None:
    answers: list[Collection[str] | OSError] = [
        {"10.0.0.1:7080"},
        {"10.0.0.1:7080", "10.0.0.2:7080"},
        OSError("no answer"),
        {"10.0.0.2:7080"},
    ]
    asked: list[tuple[str, int]] = []

    async def scripted(name: str, port: int) -> Collection[str]:
        asked.append((name, port))
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    told: list[set[str]] = []
    clock = VirtualClock()
    discovery = Discovery(("fixed:1", "dns:workers:7080"), clock, 5.0, scripted)
    assert discovery.fixed == ("fixed:1",)
    task = asyncio.create_task(discovery.follow(lambda addresses: told.append(set(addresses))))
    await clock.advance(15.5)
    task.cancel()
    one, two = "10.0.0.1:7080", "10.0.0.2:7080"
    assert told == [
        {"fixed:1", one},
        {"fixed:1", one, two},
        {"fixed:1", one, two},
        {"fixed:1", two},
    ]
    assert set(asked) == {("workers", 7080)}


async def test_loopback_is_resolved_and_a_bad_name_is_an_os_error() -> None:
    assert "127.0.0.1:7080" in await resolve("localhost", 7080)
    with pytest.raises(OSError, match=r"\w"):
        await resolve("no-such-name.invalid", 7080)


async def test_a_fault_while_workers_are_sorted_does_not_end_the_looking() -> None:
    """Whoever comes after it is found all the same."""
    found: list[Collection[str]] = [{"10.0.0.1:7080"}, {"10.0.0.2:7080"}]

    async def scripted(_name: str, _port: int) -> Collection[str]:
        return found.pop(0) if len(found) > 1 else found[0]

    def connect(address: str) -> Any:
        if address == "10.0.0.1:7080":
            raise ValueError("no such address")
        return SimpleNamespace(address=address, run=asyncio.Event().wait, status=None)

    clock = VirtualClock()
    discovery = Discovery(("dns:workers:7080",), clock, 5.0, scripted)
    fleet = Fleet(discovery, connect, lambda _address: None, clock)
    with capture_logs() as lines:
        fleet.start()
        await clock.advance(12)
    assert list(fleet.workers) == ["10.0.0.2:7080"]
    assert [line["task"] for line in lines if line["event"] == "task_failed"] == ["discovery"]
    await fleet.stop()
