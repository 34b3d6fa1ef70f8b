"""What every store promises, held against the embedded one and a real server."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from outrider_planner.core.sums import merge
from outrider_planner.store.base import Batch, Page, StatsStore, Value
from tests.contract.store.conftest import Subject
from tests.support.redis_server import RedisServer

SCOPE = "demo:0123456789abcdef"


async def summed(store: StatsStore, scope: str = SCOPE) -> dict[str, int]:
    """All buckets added up: what a reader without ageing sees."""
    whole: dict[str, int] = {}
    for bucket in await store.buckets(scope):
        merge(whole, bucket)
    return whole


async def test_nothing_written_is_nothing_and_not_zeros(subject: Subject) -> None:
    assert await subject.store.buckets(SCOPE) == ()


async def test_sums_add_up_as_integers(subject: Subject) -> None:
    assert await subject.store.add(SCOPE, Batch("w", 1, {"a": 3, "b": 2**40}))
    assert await subject.store.add(SCOPE, Batch("w", 2, {"a": 4}))
    found = await summed(subject.other)
    assert found == {"a": 7, "b": 2**40}
    assert all(type(value) is int for value in found.values())


async def test_a_resent_batch_counts_once(subject: Subject) -> None:
    batch = Batch("w", 1, {"a": 3})
    assert await subject.store.add(SCOPE, batch)
    assert not await subject.store.add(SCOPE, batch)
    assert not await subject.other.add(SCOPE, batch)
    assert await summed(subject.store) == {"a": 3}


async def test_an_older_sequence_is_dropped_and_a_gap_is_not(subject: Subject) -> None:
    assert await subject.store.add(SCOPE, Batch("w", 5, {"a": 1}))
    assert not await subject.store.add(SCOPE, Batch("w", 4, {"a": 10}))
    assert await subject.store.add(SCOPE, Batch("w", 9, {"a": 100}))
    assert await summed(subject.store) == {"a": 101}


async def test_sequences_belong_to_writer_and_scope(subject: Subject) -> None:
    batch = {"a": 1}
    assert await subject.store.add(SCOPE, Batch("one", 1, batch))
    assert await subject.store.add(SCOPE, Batch("two", 1, batch))
    assert await subject.store.add("other:scope", Batch("one", 1, batch))
    assert await summed(subject.store) == {"a": 2}
    assert await summed(subject.store, "other:scope") == {"a": 1}


async def test_writers_merge_in_any_order_to_the_same_state(subject: Subject) -> None:
    """Z04: two planners, interleaved at random and with repeats, exact."""
    rng = random.Random(7)
    lanes = {
        name: [Batch(name, i, {f"f{rng.randrange(5)}": rng.randrange(9) + 1}) for i in range(1, 26)]
        for name in ("one", "two")
    }
    expected: dict[str, int] = {}
    for batch in (batch for lane in lanes.values() for batch in lane):
        merge(expected, batch.fields)
    while any(lanes.values()):
        name = rng.choice([name for name, lane in lanes.items() if lane])
        store = rng.choice([subject.store, subject.other])
        await store.add(SCOPE, lanes[name][0])
        if rng.random() < 0.7:
            lanes[name].pop(0)
    assert await summed(subject.store) == expected
    assert await summed(subject.other) == expected


async def test_buckets_come_newest_first_and_old_ones_stay(subject: Subject) -> None:
    written: list[Mapping[str, int]] = []
    for number in range(1, 4):
        fields = {"a": number}
        await subject.store.add(SCOPE, Batch("w", number, fields))
        written.insert(0, fields)
        assert await subject.store.buckets(SCOPE) == tuple(written)
        await subject.next_bucket()
    assert await subject.other.buckets(SCOPE) == tuple(written)
    assert await subject.store.buckets(SCOPE) == tuple(written)


async def test_no_more_buckets_are_read_than_weigh_anything(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory", "redis"):
        monkeypatch.setattr(f"outrider_planner.store.{module}.MOST_BUCKETS", 2)
    for number in range(1, 5):
        await subject.store.add(SCOPE, Batch("w", number, {"a": number}))
        await subject.next_bucket()
    assert await subject.store.buckets(SCOPE) == ({"a": 4}, {"a": 3})


async def test_what_is_forgotten_here_is_still_in_the_store(subject: Subject) -> None:
    await subject.store.add(SCOPE, Batch("w", 1, {"a": 1}))
    await subject.next_bucket()
    await subject.store.add(SCOPE, Batch("w", 2, {"a": 2}))
    before = await subject.store.buckets(SCOPE)
    subject.store.forget(SCOPE)
    subject.store.forget("never:seen")
    assert await subject.store.buckets(SCOPE) == before == ({"a": 2}, {"a": 1})


async def test_a_store_that_is_there_answers(subject: Subject) -> None:
    assert await subject.store.ping() is None  # type: ignore[func-returns-value]


async def test_what_a_reader_holds_does_not_change_under_it(subject: Subject) -> None:
    await subject.store.add(SCOPE, Batch("w", 1, {"a": 1}))
    before = await subject.store.buckets(SCOPE)
    await subject.store.add(SCOPE, Batch("w", 2, {"a": 1}))
    assert before == ({"a": 1},)


async def test_of_two_values_the_newer_is_kept_and_everybody_learns_which(
    subject: Subject,
) -> None:
    assert await subject.store.kept("settings:demo") is None
    first, second = Value(1, "one"), Value(2, "two — 2")
    assert await subject.store.keep("settings:demo", first, None) == first
    assert await subject.other.keep("settings:demo", second, None) == second
    assert await subject.store.keep("settings:demo", first, None) == second
    assert await subject.store.kept("settings:demo") == second
    assert await subject.store.kept("settings:other") is None


async def test_at_one_version_the_first_value_wins(subject: Subject) -> None:
    """Two planners change settings at once: one of the two changes is in force everywhere."""
    texts = [f"writer {number}" for number in range(8)]
    stores = [subject.store, subject.other] * 4
    kept = await asyncio.gather(
        *(s.keep("k", Value(7, t), 60.0) for s, t in zip(stores, texts, strict=True))
    )
    assert len(set(kept)) == 1
    assert await subject.other.kept("k") == kept[0]


async def test_a_log_holds_every_page_once_and_in_order(subject: Subject) -> None:
    pages = [Page("w", number, (f"{number}a", f"{number}b")) for number in range(1, 4)]
    applied = [await subject.store.append("decisions", page, 1000) for page in pages]
    assert applied == [True] * 3
    assert not await subject.other.append("decisions", pages[1], 1000)
    assert await subject.other.append("decisions", Page("v", 1, ("4a",)), 1000)
    found = await subject.store.entries("decisions", "", 100)
    assert [text for _, text in found] == ["1a", "1b", "2a", "2b", "3a", "3b", "4a"]
    behind = await subject.other.entries("decisions", found[2][0], 3)
    assert behind == found[3:6]
    assert await subject.store.entries("never written", "", 100) == ()


async def test_a_log_is_bounded(subject: Subject) -> None:
    """Redis trims by whole nodes of a hundred entries."""
    for number in range(1, 11):
        entries = tuple(f"{number}-{place}" for place in range(100))
        await subject.store.append("decisions", Page("w", number, entries), 300)
    found = await subject.store.entries("decisions", "", 1000)
    assert 300 <= len(found) <= 500
    assert found[-1][1] == "10-99"


@pytest.mark.redis
async def test_valkey_is_held_to_the_same_contract(valkey_server: RedisServer) -> None:
    """Skips, and says so, where it is not installed; then the tests above leave it out too."""
    assert "valkey" in valkey_server.ask("INFO", "server")
