"""A worker without an engine: joins a planner over real gRPC and plays rounds that obey the plan.

Costs are those of an accelerator, on which rows are free until the forward is full: long drafts pay
at a small load, none at a large one, so that a plan has a shape worth looking at.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outrider.planner.v1 import planner_pb2 as wire
from outrider_planner.assembly import PlannerProcess
from tests.integration.planner.streams import WorkerStream, worker_stream

MOST_REQUESTS, MOST_ROWS, MOST_DRAFTS = 64, 512, 8
ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
ROUNDS, PAUSE_S = 32, 0.2
_CONTEXT_TOKENS = 512


@dataclass
class Played:
    """What a test may change while the worker plays."""

    requests: int = 8
    acceptance: float = 0.75
    tripped: bool = False
    trips: int = 0
    plan: wire.Plan | None = None


def target_us(rows: int) -> int:
    return max(8_000, 60 * rows)


def bucket(rows: int) -> int:
    return next(most for most in ROWS if most >= rows)


def draft_us(requests: int, draft_tokens: int) -> int:
    return draft_tokens * (350 + 4 * requests)


def hello(incarnation: str, model: str, drafters: tuple[str, ...], deployment: str) -> wire.Hello:
    said = wire.Hello(
        deployment=deployment,
        worker_incarnation=incarnation,
        protocol_version=1,
        row_buckets=ROWS,
        pads_rows=True,
        worker_address=f"{incarnation}.cluster.local:9000",
    )
    said.identity.model = model
    said.limits.max_running_requests = MOST_REQUESTS
    said.limits.max_rows_per_forward = MOST_ROWS
    said.limits.max_draft_tokens = MOST_DRAFTS
    said.cost_table.target.add(
        context_tokens=_CONTEXT_TOKENS, rows=ROWS, median_us=[target_us(rows) for rows in ROWS]
    )
    cells = [(n, d) for n in (1, 16, MOST_REQUESTS) for d in (1, MOST_DRAFTS)]
    for drafter in drafters:
        said.drafters.add(name=drafter, cost=2, max_draft_tokens=MOST_DRAFTS, score_bins=1)
        said.cost_table.drafters.add(drafter=drafter).draft.add(
            context_tokens=_CONTEXT_TOKENS,
            requests=[n for n, _ in cells],
            draft_tokens=[d for _, d in cells],
            median_us=[draft_us(n, d) for n, d in cells],
        )
    return said


def reports(sequence: int, played: Played, plan: wire.Plan) -> wire.StepReports:
    """Rounds as the plan wants them; the first drafter drafts."""
    n, drafter = played.requests, plan.drafters[0]
    step = next(i for i, most in enumerate(plan.requests_ladder) if most >= n)
    d = 0 if played.tripped else drafter.draft_tokens[step]
    rows = drafter.target_rows[step * (drafter.max_carried_tokens + 1) + d]
    verify = min(rows - plan.requests_ladder[step], n * d)
    verified = [max(0, min(n, verify - n * j)) for j in range(d)]
    accepted = [round(ROUNDS * v * played.acceptance ** (j + 1)) for j, v in enumerate(verified)]
    columns = {
        "requests": n,
        "carried_draft_tokens": d,
        "pool_tokens": n * d,
        "target_rows": n + verify,
        "bucket_rows": bucket(n + verify),
        "request_context_tokens": n * _CONTEXT_TOKENS,
        "target_us": target_us(bucket(n + verify)) + 200,
        "feed_us": 0,
        "draft_us": draft_us(n, d),
        "exposed_host_us": 150,
        "next_draft_tokens": d,
    }
    found = wire.StepReports(sequence=sequence)
    for name, value in columns.items():
        getattr(found, name).extend([value] * ROUNDS)
    for accepted_tokens in spread(sum(accepted)):
        found.accepted_tokens.append(accepted_tokens)
        found.emitted_tokens.append(n + accepted_tokens)
    if d:
        found.cells.add(
            drafter=drafter.drafter,
            request_class="greedy",
            asked=n * ROUNDS,
            asked_by_position=[n * ROUNDS] * d,
            drafted=[n * ROUNDS] * d,
            verified=[v * ROUNDS for v in verified],
            accepted=accepted,
        )
    found.guard.tripped, found.guard.trips = played.tripped, played.trips
    found.guard.threshold_tokens, found.guard.plain_scale_ratio = 8.0, 1.0
    found.guard.ledger_tokens = 9.1 if played.tripped else 1.6
    found.guard.lost_tokens = 9.1 * played.trips
    return found


def spread(total: int) -> list[int]:
    """A number of tokens over the rounds of a report, as evenly as can be."""
    return [total * (i + 1) // ROUNDS - total * i // ROUNDS for i in range(ROUNDS)]


@asynccontextmanager
async def playing_worker(
    process: PlannerProcess,
    incarnation: str = "worker-1",
    model: str = "tiny",
    drafters: tuple[str, ...] = ("eagle",),
    deployment: str = "demo",
) -> AsyncIterator[Played]:
    """Joins, and plays until the end; the first plan is there when it begins."""
    played = Played()
    async with worker_stream(process) as stream:
        await stream.say(hello=hello(incarnation, model, drafters, deployment))
        played.plan = (await stream.next("plan")).plan
        tasks = [
            asyncio.create_task(_listen(stream, played)),
            asyncio.create_task(_report(stream, played)),
        ]
        try:
            yield played
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(stream: WorkerStream, played: Played) -> None:
    async for message in stream.call:
        if message.HasField("plan"):
            played.plan = message.plan


async def _report(stream: WorkerStream, played: Played) -> None:
    sequence = 0
    while True:
        sequence += 1
        assert played.plan is not None
        await stream.say(reports=reports(sequence, played, played.plan))
        if sequence % 10 == 0:
            await stream.beat()
        await asyncio.sleep(PAUSE_S)
