"""Push latency: from a report's arrival at the planner to its plan in force at the worker.

    python -m benchmarks.push_latency [--rounds 200]

A real planner process; this process plays one worker over real gRPC with the worker's own
conversion code and plan book. What is measured starts before the report is *sent*, so it is an
upper bound. Reports alternate between drafts that always and never hold, so that plans change.
"""

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import Series, write_result
from outrider.planner.v1 import planner_pb2 as wire
from outrider.planner.v1 import planner_pb2_grpc as wire_grpc
from outrider_runtime.lifecycle import new_incarnation
from outrider_runtime.rpc import open_channel, token_metadata
from outrider_worker.engine.costs import CostCurve, CostTable, DraftCost, DrafterCosts, Timing
from outrider_worker.engine.guard import Guard
from outrider_worker.engine.plan_book import PlanBook
from outrider_worker.engine.records import DraftOutcome, LaunchMode, RoundRecord, RoundTimes
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.identity import EngineIdentity
from outrider_worker.planner_client.client import Introduction
from outrider_worker.planner_client.convert import plan_from_wire, reports_to_wire
from outrider_worker.speculate.drafter import DrafterCost, DrafterTraits

GRPC_PORT, HTTP_PORT = 17170, 17171
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)
ROUND_S = 0.05
DRAFT_TOKENS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    token = secrets.token_urlsafe(16)
    planner = _start_planner(token)
    try:
        latency_ms = asyncio.run(_measure(token, options.rounds))
    finally:
        planner.terminate()
        planner.wait(20)
    unanswered = options.rounds - len(latency_ms.values)
    print(f"report sent → plan applied: {latency_ms} ms; {unanswered} reports changed no plan")
    row = {"report_to_plan_ms": latency_ms.summary(), "reports_without_a_new_plan": unanswered}
    write_result("push_latency", vars(options), [row])


def _start_planner(token: str) -> "subprocess.Popen[bytes]":
    settings = {
        "OUTRIDER_TOKEN": token,
        "OUTRIDER_PLANNER_GRPC_PORT": str(GRPC_PORT),
        "OUTRIDER_PLANNER_HTTP_PORT": str(HTTP_PORT),
        "OUTRIDER_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "outrider_planner"]
    return subprocess.Popen(command, env={**os.environ, **settings})


async def _measure(token: str, rounds: int) -> Series:
    book, latency_ms = PlanBook(), Series()
    async with open_channel(f"127.0.0.1:{GRPC_PORT}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 20)
        call = wire_grpc.PlannerServiceStub(channel).Plan(metadata=token_metadata(token))
        await call.write(wire.PlanRequest(hello=_introduction().hello()))
        # Read by a task of its own: a read that is given up would end the call.
        applied: asyncio.Queue[float] = asyncio.Queue()
        reader = asyncio.create_task(_apply_plans(call, book, applied))
        await applied.get()
        for number in range(1, rounds + 1):
            records = [_record(number, holds=number % 2 == 0)] * 64
            started_s = time.perf_counter()
            message = reports_to_wire(number, records, Guard().snapshot(), 0, 0)
            await call.write(wire.PlanRequest(reports=message))
            try:
                applied_s = await asyncio.wait_for(applied.get(), 0.5)
            except TimeoutError:
                continue  # the plan did not change: nothing was pushed
            latency_ms.add((applied_s - started_s) * 1e3)
            await asyncio.sleep(0.1)
        reader.cancel()
    return latency_ms


async def _apply_plans(call: Any, book: PlanBook, applied: "asyncio.Queue[float]") -> None:
    """Put every plan in force as a worker does, and note when."""
    stream = book.open_stream()
    async for response in call:
        if response.HasField("plan"):
            assert book.offer(stream, plan_from_wire(response.plan), time.monotonic())
            applied.put_nowait(time.perf_counter())


def _introduction() -> Introduction:
    timings = tuple(Timing(ROUND_S * (1 + rows / 64), 0.001, 5) for rows in LADDER)
    curves = tuple(CostCurve(context, LADDER, timings) for context in (128, 1024))
    draft = tuple(DraftCost(n, d, Timing(1e-5 * n, 0.0, 5)) for n in (1, 8, 32) for d in (1, 8))
    return Introduction(
        deployment="bench",
        incarnation=new_incarnation(),
        address="127.0.0.1:0",
        identity=EngineIdentity("bench", "0", ("ngram:8",), "cpu", "float32", LADDER, 1),
        limits=SchedulerLimits(),
        max_draft_tokens=8,
        kv_capacity_tokens=1 << 14,
        row_buckets=LADDER,
        drafters=(DrafterTraits("ngram", DrafterCost.HOST, 8, sparse=True, score_bins=16),),
        costs=CostTable(curves, (DrafterCosts("ngram", ((128, draft), (1024, draft))),)),
    )


def _record(number: int, holds: bool) -> RoundRecord:
    accepted = DRAFT_TOKENS if holds else 0
    outcome = DraftOutcome(
        "ngram", "greedy", 200, DRAFT_TOKENS, (3,) * DRAFT_TOKENS, DRAFT_TOKENS, accepted
    )
    return RoundRecord(
        round=number,
        requests=1,
        carried_draft_tokens=DRAFT_TOKENS,
        pool_tokens=DRAFT_TOKENS,
        target_rows=1 + DRAFT_TOKENS,
        bucket_rows=1 + DRAFT_TOKENS,
        prefill_tokens=0,
        request_context_tokens=200,
        row_context_tokens=200 * (1 + DRAFT_TOKENS),
        times=RoundTimes(target_s=ROUND_S * 1.08, draft_s=1e-5, exposed_host_s=0.001),
        launch_mode=LaunchMode.IN_STEP,
        emitted_tokens=1 + accepted,
        accepted_tokens=accepted,
        next_draft_tokens=DRAFT_TOKENS,
        plan_version=1,
        outcomes=(outcome,),
    )


if __name__ == "__main__":
    main()
