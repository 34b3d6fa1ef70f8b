"""Answers of real workers with the tiny model, moved in the middle: sampled, greedy, by grammar."""

import asyncio
from typing import Any

from outrider_router.routing.fleet import Worker as KnownWorker
from tests.support.router_stack import RunningRouter, running_router, until
from tests.support.workers import TOKEN, running_worker

BODIES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 5, "n": 2},
    "penalised": {"temperature": 0.8, "seed": 6, "presence_penalty": 1.5},
    "grammar": {"temperature": 1.0, "seed": 7, "structured_outputs": {"regex": "[a-z ]{60,80}"}},
}


async def texts(router: RunningRouter, name: str) -> list[list[int]]:
    body = {
        "model": "tiny",
        "prompt": [5, 6, 7, 8, 9],
        "max_tokens": 40,
        "ignore_eos": True,
        "return_token_ids": True,
        **BODIES[name],
    }
    response = await router.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["usage"]["completion_tokens"] == 40 * BODIES[name].get("n", 1)
    return [choice["token_ids"] for choice in answer["choices"]]


async def test_resumed_tokens_are_the_undisturbed_ones() -> None:
    """F09, C08: noise, penalties and positions go on where the lost worker stopped."""
    async with (
        running_worker(extra_round_s=0.01) as first,
        running_worker(extra_round_s=0.01) as second,
    ):
        ports = {worker.server.port: worker for worker in (first, second)}
        addresses = [f"127.0.0.1:{port}" for port in ports]
        async with running_router(*addresses, token=TOKEN) as router:
            known = router.state.registry.workers
            await until(lambda: not any(w.trouble for w in known.values()), 20, "both ready")
            undisturbed = {name: await texts(router, name) for name in BODIES}
            asking = {name: asyncio.create_task(texts(router, name)) for name in BODIES}
            await until(lambda: sum(w.in_flight for w in known.values()) == 5, 5, "all are there")
            await asyncio.sleep(0.15)
            victim = busier(known)
            await ports[int(victim.client.address.rpartition(":")[2])].server.stop(0)
            for name, task in asking.items():
                assert await task == undisturbed[name], name
            moved = await router.metric("outrider_router_migrations_total")
            assert moved + await router.metric("outrider_router_retries_total") >= 1


def busier(known: dict[str, KnownWorker]) -> KnownWorker:
    return max(known.values(), key=lambda worker: worker.in_flight)
