"""Workers over several planners: who goes where, and that no plan is lost on the way."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from outrider_planner.sessions import MOST_TAKEOVERS
from outrider_runtime.heartbeat import Heartbeat
from outrider_worker.planner_client.targets import by_preference
from tests.integration.planner.clients import client
from tests.integration.planner.streams import make_hello, running_planner, worker_stream
from tests.support.fault_proxy import fault_proxy
from tests.support.net import LOOPBACK, free_ports


def _home(ports: list[int], incarnation: str) -> int:
    first = by_preference((f"{LOOPBACK}:{port}" for port in ports), incarnation)[0]
    return int(first.rpartition(":")[2])


async def test_a_worker_goes_to_the_next_planner_and_home_again() -> None:
    """The last plan holds through both moves: the engine never sees speculation off."""
    ports = free_ports(2)
    home = _home(ports, "worker-1")
    (other,) = set(ports) - {home}
    async with running_planner(grpc_port=other, policy="static:2"), client(ports) as worker:
        async with running_planner(grpc_port=home, policy="static:1"):
            await worker.until(lambda: worker.plan.policy == "static:1")
        await worker.until(lambda: worker.plan.policy == "static:2")
        assert worker.link.target == f"{LOOPBACK}:{other}"
        async with running_planner(grpc_port=home, policy="static:1"):
            await worker.until(lambda: worker.plan.policy == "static:1")
            moved = worker.link.connections
            await asyncio.sleep(0.5)
            assert worker.link.connections == moved
    seen = [policy for policy in worker.seen if policy.startswith("static")]
    after_first = worker.seen[worker.seen.index("static:1") :]
    assert seen[:1] in (["static:1"], ["static:2"])
    assert set(after_first) == {"static:1", "static:2"}


async def test_a_fleet_spreads_over_its_planners_and_survives_one() -> None:
    ports = free_ports(3)
    names = [f"worker-{number}" for number in range(15)]
    homes = {name: _home(ports, name) for name in names}
    async with AsyncExitStack() as stack:
        planners = {
            port: await stack.enter_async_context(running_planner(grpc_port=port)) for port in ports
        }
        workers = {
            name: await stack.enter_async_context(client(ports, name, check_s=30.0))
            for name in names
        }

        def served() -> dict[str, int]:
            return {
                name: port
                for port, planner in planners.items()
                for name, worker in planner.service.planner.workers.items()
                if worker.connected
            }

        await workers[names[0]].until(lambda: served() == homes)
        lost, *left = ports
        await planners.pop(lost).stop()
        await workers[names[0]].until(lambda: len(served()) == len(names))
        assert served() == {
            name: _home(left, name) if home == lost else home for name, home in homes.items()
        }
        stayed = [workers[name].link.connections for name, home in homes.items() if home != lost]
        assert set(stayed) <= {1}


@pytest.mark.parametrize("fault", ["reset", "refuse"])
async def test_a_connection_that_breaks_is_opened_again(fault: str) -> None:
    async with running_planner() as planner, fault_proxy(planner.grpc.port) as proxy:
        async with client([proxy.port]) as worker:
            await worker.until(lambda: worker.link.plans_applied == 1)
            proxy.refuse = fault == "refuse"
            proxy.reset()
            await worker.until(lambda: proxy.connections > 1)
            proxy.heal()
            await worker.until(lambda: worker.link.connections == 2)
            await worker.until(lambda: worker.link.plans_applied == 2)
        assert "" not in worker.seen[worker.seen.index("two_stage") :]


async def test_a_half_open_planner_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """F04: the connection stands, nothing comes; heartbeats tell."""
    monkeypatch.setattr("outrider_worker.planner_client.client.Heartbeat", _hasty)
    async with (
        running_planner() as planner,
        running_planner(policy="static:2") as spare,
        fault_proxy(planner.grpc.port) as proxy,
    ):
        ports = [proxy.port, spare.grpc.port]
        name = next(f"w{i}" for i in range(99) if _home(ports, f"w{i}") == proxy.port)
        async with client(ports, name, check_s=30.0) as worker:
            await worker.until(lambda: worker.plan.policy == "two_stage")
            proxy.half_open = True
            await worker.until(lambda: worker.plan.policy == "static:2")
            assert worker.link.target == f"{LOOPBACK}:{spare.grpc.port}"
            proxy.heal()


async def test_two_workers_with_one_name_do_not_fight_for_ever() -> None:
    """A few streams may take over from one another; then the younger one is told why not."""
    async with running_planner() as planner, AsyncExitStack() as stack:
        streams = []
        for _ in range(MOST_TAKEOVERS + 1):
            streams.append(await stack.enter_async_context(worker_stream(planner)))
            await streams[-1].say(hello=make_hello())
            await streams[-1].next("plan")
        late = await stack.enter_async_context(worker_stream(planner))
        await late.say(hello=make_hello())
        with pytest.raises(grpc.aio.AioRpcError, match="another worker") as failed:
            await late.next("plan")
        assert failed.value.code() == grpc.StatusCode.ALREADY_EXISTS
        await streams[-1].beat()
        assert (await streams[-1].next("heartbeat")).heartbeat.sequence > 0


def _hasty(now_s: float) -> Heartbeat:
    return Heartbeat(now_s, interval_s=0.1, deadline_s=1.2)
