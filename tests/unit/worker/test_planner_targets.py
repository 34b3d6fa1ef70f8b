"""Which planner a worker prefers, and how names become addresses."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from outrider_runtime.rpc import start_server
from outrider_worker.planner_client.targets import (
    PlannerTargets,
    by_preference,
    is_serving,
    parse_targets,
    resolve,
)
from outrider_worker.settings import WorkerSettings
from tests.support.net import LOOPBACK, free_ports

THREE = ("a:1", "b:2", "c:3")
WORKERS = [f"worker-{number}" for number in range(600)]


async def as_given(target: str) -> list[str]:
    return [target]


def test_addresses_are_read_from_a_list() -> None:
    assert parse_targets(" a:1, [::1]:7070 ,") == ("a:1", "[::1]:7070")
    assert parse_targets("") == ()


@pytest.mark.parametrize("text", ["a", "a:", ":7070", "a:b", "a:1,b", "a:70700"])
def test_what_is_no_address_is_refused_before_the_worker_starts(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        WorkerSettings(planner=text)


def test_workers_spread_evenly_and_in_an_order_of_their_own() -> None:
    first = Counter(by_preference(THREE, worker)[0] for worker in WORKERS)
    assert all(150 <= first[target] <= 250 for target in THREE)
    assert by_preference(THREE, "worker-1") == by_preference(reversed(THREE), "worker-1")


def test_a_planner_that_is_lost_moves_its_own_workers_only() -> None:
    moved: Counter[str] = Counter()
    for worker in WORKERS:
        before = by_preference(THREE, worker)
        after = by_preference(("a:1", "c:3"), worker)
        assert after == [target for target in before if target != "b:2"]
        moved[after[0]] += before[0] == "b:2"
    assert min(moved["a:1"], moved["c:3"]) > 60


async def test_a_name_is_all_its_addresses_of_one_family() -> None:
    assert await resolve("127.0.0.1:7070") == ["127.0.0.1:7070"]
    assert len(set(await resolve("localhost:7070"))) == 1


async def test_names_that_are_unknown_are_left_out_and_none_is_an_error() -> None:
    async def lookup(target: str) -> list[str]:
        if target == "b:2":
            raise OSError("unknown")
        return [f"{target}0", f"{target}1"]

    targets = PlannerTargets(("a:1", "b:2"), "w", resolve=lookup)
    assert sorted(await targets.order()) == ["a:10", "a:11"]
    with pytest.raises(OSError, match="b:2"):
        await PlannerTargets(("b:2",), "w", resolve=lookup).order()


async def test_a_preferred_planner_is_better_once_it_serves() -> None:
    ports = free_ports(2)
    home, other = by_preference((f"{LOOPBACK}:{port}" for port in ports), "w")
    targets = PlannerTargets((home, other), "w", check_s=0.02, resolve=as_given)
    better = asyncio.ensure_future(targets.better_than(other))
    server = await start_server(LOOPBACK, int(home.rpartition(":")[2]), None, lambda _: None, [])
    try:
        await asyncio.sleep(0.2)
        assert not better.done()
        await server.set_serving(True)
        assert await asyncio.wait_for(better, 5.0) == home
        assert not await is_serving(other)
    finally:
        await server.stop(0)


async def test_at_its_preferred_planner_a_worker_stays() -> None:
    home = by_preference(THREE, "w")[0]
    targets = PlannerTargets(THREE, "w", check_s=0.001, resolve=as_given)
    with suppress(TimeoutError):
        pytest.fail(await asyncio.wait_for(targets.better_than(home), 0.1))
