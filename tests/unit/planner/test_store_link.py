"""The store's task: one scope's trouble is no other's, and nothing ends it. And the outbox."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from outrider_planner.store.base import Batch, LogLimits, Value
from outrider_planner.store.link import RETRY_S, Buckets, Outcome, StoreLink
from outrider_planner.store.outbox import MOST_LOG_ENTRIES, LogBox, Outbox
from outrider_runtime.clock import VirtualClock
from tests.unit.planner.flaky_store import FlakyStore


class Linked:
    """A link over a flaky store, with what it told."""

    def __init__(self) -> None:
        self.store, self.clock = FlakyStore(), VirtualClock()
        self.read: dict[str, Buckets] = {}
        self.outcomes: Counter[str] = Counter()
        self.values: dict[str, Value | None] = {}
        self.link = StoreLink(
            self.store,
            self.clock,
            "w",
            self._on_buckets,
            self._on_outcome,
            self.values.__setitem__,
        )

    def _on_buckets(self, scope: str, buckets: Buckets) -> None:
        self.read[scope] = buckets

    def _on_outcome(self, outcome: Outcome) -> None:
        self.outcomes[outcome.value] += 1

    async def turn(self, seconds: float = 0.0) -> None:
        await self.clock.advance(seconds)
        self.link.on_tick(self.clock.monotonic_s())
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    made = Linked()
    yield made
    await made.link.stop()


@pytest.mark.parametrize("trouble", ["refused", "unanswered", "broken"])
async def test_one_scope_that_fails_keeps_no_other_from_the_store(
    linked: Linked, trouble: str
) -> None:
    linked.link.start()
    getattr(linked.store, trouble).add("a")
    for scope in ("a", "b", "c"):
        linked.link.put(scope, {"x": 1})
        linked.link.want(scope)
    await linked.turn()
    assert linked.read == {"b": ({"x": 1},), "c": ({"x": 1},)}
    assert linked.link.up
    assert linked.outcomes["failed" if trouble == "broken" else trouble] == 1
    getattr(linked.store, trouble).clear()
    await linked.turn(RETRY_S)
    assert linked.read["a"] == ({"x": 1},)


async def test_trouble_waits_for_its_retry_and_goes_last(linked: Linked) -> None:
    """Scopes in trouble come after the others, so two of them cannot end the turn before those."""
    linked.link.start()
    linked.store.unanswered |= {"a", "b"}
    for scope in ("a", "b", "c"):
        linked.link.want(scope)
    await linked.turn()
    assert linked.read == {}
    await linked.turn(RETRY_S / 2)
    assert linked.read == {}
    await linked.turn(RETRY_S)
    assert set(linked.read) == {"c"}


async def test_a_store_that_is_away_is_asked_twice_and_not_for_every_scope(linked: Linked) -> None:
    linked.store.away = True
    for number in range(50):
        linked.link.want(f"scope-{number}")
    linked.link.start()
    await linked.turn()
    assert linked.store.asked == 2
    assert not linked.link.up


async def test_up_begins_with_the_first_contact(linked: Linked) -> None:
    linked.store.away = True
    assert not linked.link.up
    linked.link.start()
    await linked.turn()
    assert not linked.link.up
    linked.store.away = False
    await linked.turn(RETRY_S)
    assert linked.link.up


async def test_what_is_forgotten_is_dropped_by_the_store_too(linked: Linked) -> None:
    linked.link.want("a")
    linked.link.forget("a")
    linked.link.start()
    await linked.turn()
    assert linked.store.forgotten == ["a"]
    assert linked.read == {}


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_is_frozen_until_it_is_answered(known: bool) -> None:
    outbox = Outbox("w")
    outbox.put("s", {"a": 1})
    first = outbox.batch("s")
    assert first == Batch("w", 1, {"a": 1})
    outbox.put("s", {"a": 2, "b": 1})
    assert outbox.batch("s") == first
    assert outbox.scopes() == ["s"]
    assert first is not None
    outbox.acknowledge("s", first)
    assert outbox.batch("s") == Batch("w", 2, {"a": 2, "b": 1})
    if known:
        outbox.acknowledge("s", first)
        assert outbox.batch("s") == Batch("w", 2, {"a": 2, "b": 1})
    assert outbox.batch("elsewhere") is None


def test_scopes_share_one_sequence_and_leave_nothing_behind() -> None:
    """A scope that comes back must not begin again below what the store has seen of this writer."""
    outbox = Outbox("w")
    for number, scope in enumerate(("a", "b", "a", "c", "a"), 1):
        outbox.put(scope, {"x": 1})
        batch = outbox.batch(scope)
        assert batch == Batch("w", number, {"x": 1})
        assert batch is not None
        outbox.acknowledge(scope, batch)
        assert outbox.scopes() == []


async def test_what_is_kept_and_read_is_told(linked: Linked) -> None:
    await linked.store.keep("theirs", Value(3, "older writer, newer version"), None)
    linked.link.keep("ours", Value(1, "one"), None)
    linked.link.keep("ours", Value(2, "two"), None)
    linked.link.keep("theirs", Value(2, "lost"), None)
    linked.link.ask("nothing")
    linked.link.start()
    await linked.turn()
    assert linked.values == {
        "ours": Value(2, "two"),
        "theirs": Value(3, "older writer, newer version"),
        "nothing": None,
    }


async def test_values_and_entries_wait_for_a_store_that_is_away(linked: Linked) -> None:
    linked.store.away = True
    linked.link.start()
    await linked.turn()
    linked.link.keep("k", Value(1, "one"), None)
    for number in range(3):
        linked.link.log("decisions", f"entry {number}", LogLimits())
    await linked.turn(RETRY_S)
    assert linked.values == {}
    linked.store.away = False
    await linked.turn(RETRY_S)
    assert linked.values == {"k": Value(1, "one")}
    entries = await linked.store.entries("decisions", "", 10)
    assert [text for _, text in entries] == ["entry 0", "entry 1", "entry 2"]


def test_a_log_that_finds_no_room_drops_its_oldest_and_counts_them() -> None:
    box = LogBox("w")
    for number in range(MOST_LOG_ENTRIES + 10):
        box.put(f"{number}")
    assert box.dropped == 10
    page = box.page()
    assert page is not None
    assert page.entries[0] == "10"
    assert box.page() is page
    box.acknowledge(page)
    following = box.page()
    assert following is not None
    assert (following.sequence, following.entries[0]) == (2, str(10 + len(page.entries)))
