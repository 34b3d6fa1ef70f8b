"""Simulated workers for a planner under load: real gRPC streams, reports that physics allows.

    python -m benchmarks.planner_workers TARGET --streams 250 --first 0 --interval 1.0 --seconds 20

Every stream says hello, reports at an interval of its own phase, keeps its heartbeats, and takes
what the planner sends. Most belong to one deployment, and their acceptance drifts alike. *Probes*
have a deployment each and report good and bad rounds in turn, so that every report is followed by a
plan: the time in between is the latency that a worker sees. Reports are encoded beforehand and
only numbered when they are sent, so that it is the planner that is measured; how much of a core
this process took is said all the same. Prints one line of JSON.
"""

import argparse
import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import numpy as np

from outrider.common.v1 import common_pb2 as common
from outrider.planner.v1 import planner_pb2 as wire
from outrider_runtime.heartbeat import Heartbeat
from outrider_runtime.rpc import open_channel

ROWS = tuple(range(8, 265, 8))
REQUESTS, DRAFT_TOKENS, BINS = 8, 4, 16
TARGET_US = 15_000
# Of one level: as many as keep two workers apart.
_VARIANTS = 8
_LEVELS = 12
_PLAN = f"/{wire.DESCRIPTOR.services_by_name['PlannerService'].full_name}/Plan"


@dataclass
class Totals:
    """What all streams of a process saw."""

    reports: int = 0
    plans: int = 0
    ended: int = 0
    cores: float = 0.0
    planned_streams: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)


def hello(incarnation: str, deployment: str) -> wire.Hello:
    """A worker with graphs: 33 row buckets, two context lengths, a drafter with scores."""
    message = wire.Hello(
        deployment=deployment,
        worker_incarnation=incarnation,
        protocol_version=1,
        row_buckets=ROWS,
        pads_rows=True,
    )
    message.identity.model = "simulated"
    message.limits.max_running_requests = 32
    message.limits.max_rows_per_forward = ROWS[-1]
    message.limits.max_draft_tokens = 8
    message.drafters.add(name="drafter", cost=2, max_draft_tokens=8, score_bins=BINS)
    for context, slope in ((512, 40), (4096, 50)):
        times = [TARGET_US + slope * rows for rows in ROWS]
        message.cost_table.target.add(context_tokens=context, rows=ROWS, median_us=times)
    pairs = [(n, d) for n in (1, 8, 32) for d in range(1, 9)]
    message.cost_table.drafters.add(drafter="drafter").draft.add(
        context_tokens=512,
        requests=[n for n, _ in pairs],
        draft_tokens=[d for _, d in pairs],
        median_us=[300 * d + n for n, d in pairs],
    )
    return message


def report(rng: np.random.Generator, acceptance: float, rounds: int) -> wire.StepReports:
    """Rounds of eight requests that verify all four drafts of each."""
    hits = rng.random((rounds, REQUESTS, DRAFT_TOKENS)) < acceptance
    accepted = np.cumprod(hits, axis=2)
    by_round, by_position = accepted.sum(axis=(1, 2)), accepted.sum(axis=(0, 1))
    asked, rows = rounds * REQUESTS, REQUESTS * (1 + DRAFT_TOKENS)
    jitter = rng.integers(-300, 300, rounds)
    message = wire.StepReports(
        requests=[REQUESTS] * rounds,
        carried_draft_tokens=[DRAFT_TOKENS] * rounds,
        pool_tokens=[REQUESTS * DRAFT_TOKENS] * rounds,
        target_rows=[rows] * rounds,
        bucket_rows=[rows] * rounds,
        request_context_tokens=[600 * REQUESTS] * rounds,
        target_us=(TARGET_US + 40 * rows + jitter).tolist(),
        feed_us=[0] * rounds,
        draft_us=[300 * DRAFT_TOKENS + REQUESTS] * rounds,
        exposed_host_us=[150] * rounds,
        emitted_tokens=(REQUESTS + by_round).tolist(),
        accepted_tokens=by_round.tolist(),
        next_draft_tokens=[DRAFT_TOKENS] * rounds,
    )
    _add_cell(message, rng, asked, by_position)
    return message


def _add_cell(
    message: wire.StepReports, rng: np.random.Generator, asked: int, accepted: np.ndarray
) -> None:
    """Drafts spread over four bins at every position."""
    spread = np.full(4, 0.25)
    drafted = rng.multinomial(asked, spread, DRAFT_TOKENS)
    pairs = zip(drafted, accepted, strict=True)
    kept = np.stack([rng.multivariate_hypergeometric(bins, hits) for bins, hits in pairs])
    everywhere = [asked] * DRAFT_TOKENS
    positions, places = np.divmod(np.arange(DRAFT_TOKENS * 4), 4)
    message.cells.add(
        drafter="drafter",
        request_class="greedy",
        asked=asked,
        asked_by_position=everywhere,
        drafted=everywhere,
        verified=everywhere,
        accepted=accepted.tolist(),
        bin_position=positions.tolist(),
        bin=(places * 4).tolist(),
        bin_drafted=drafted.reshape(-1).tolist(),
        bin_verified=drafted.reshape(-1).tolist(),
        bin_accepted=kept.reshape(-1).tolist(),
    )


class Reports:
    """Encoded reports by level of acceptance; the level drifts for all workers alike."""

    def __init__(self, interval_s: float) -> None:
        rng = np.random.default_rng(0)
        rounds = max(int(interval_s / (TARGET_US * 1e-6) / 1.3), 1)
        levels = np.linspace(0.35, 0.9, _LEVELS)
        self._ready = [
            [_encoded(report(rng, level, rounds)) for _ in range(_VARIANTS)] for level in levels
        ]

    def drifting(self, number: int, now_s: float) -> bytes:
        """Up and down once in 40 s."""
        level = (1.0 + math.sin(now_s * 2 * math.pi / 40.0)) / 2 * (_LEVELS - 1)
        return numbered(self._ready[round(level)][number % _VARIANTS], number)

    def alternating(self, number: int) -> bytes:
        """The best and the worst in turn."""
        return numbered(self._ready[-(number % 2)][number % _VARIANTS], number)


def numbered(request: bytes, sequence: int) -> bytes:
    """Encoded reports with their sequence: protobuf merges what follows into what was before."""
    return request + _encoded(wire.StepReports(sequence=sequence))


def _encoded(reports: wire.StepReports) -> bytes:
    return wire.PlanRequest(reports=reports).SerializeToString()


class Stream:
    """One worker."""

    def __init__(self, name: str, probe: bool, reports: Reports, totals: Totals) -> None:
        self._name = name
        self._probe = probe
        self._reports = reports
        self._totals = totals
        # The oldest report that no plan answered yet.
        self._sent_s: float | None = None
        self._sequence = 0
        self._planned = False

    async def run(self, channel: grpc.aio.Channel, phase_s: float, interval_s: float) -> None:
        """Until cancelled, or until the planner ends the stream."""
        await asyncio.sleep(phase_s)
        plan: grpc.aio.StreamStreamMultiCallable[bytes, wire.PlanResponse] = channel.stream_stream(
            _PLAN, response_deserializer=wire.PlanResponse.FromString
        )
        call = plan(self._requests(interval_s))
        try:
            async for response in call:
                if response.HasField("plan"):
                    self._took()
        except grpc.aio.AioRpcError as error:
            self._totals.ended += 1
            reason = f"{error.code().name}: {error.details()}"
            self._totals.reasons[reason] = self._totals.reasons.get(reason, 0) + 1

    async def _requests(self, interval_s: float) -> AsyncIterator[bytes]:
        deployment = self._name if self._probe else "fleet"
        yield wire.PlanRequest(hello=hello(self._name, deployment)).SerializeToString()
        heartbeat, due_s = Heartbeat(time.monotonic()), time.monotonic() + interval_s
        while True:
            sequence = heartbeat.due(time.monotonic())
            if sequence is not None:
                beat = common.Heartbeat(sequence=sequence)
                yield wire.PlanRequest(heartbeat=beat).SerializeToString()
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            due_s += interval_s
            yield self._next()
            heartbeat.sent(time.monotonic())

    def _next(self) -> bytes:
        self._sequence += 1
        self._totals.reports += 1
        now_s = time.monotonic()
        if not self._probe:
            return self._reports.drifting(self._sequence, now_s)
        self._sent_s = now_s if self._sent_s is None else self._sent_s
        return self._reports.alternating(self._sequence)

    def _took(self) -> None:
        self._totals.plans += 1
        if not self._planned:
            self._planned, self._totals.planned_streams = True, self._totals.planned_streams + 1
        elif self._probe and self._sent_s is not None:
            self._totals.latencies_ms.append((time.monotonic() - self._sent_s) * 1e3)
            self._sent_s = None


async def run(
    target: str,
    first: int,
    streams: int,
    probes: int,
    interval_s: float,
    seconds: float,
    join_s: float = 1.0,
    patience_s: float = 0.0,
) -> Totals:
    """So many streams for so long; the first ``probes`` of them are probes.

    ``patience_s``: how much longer, at most, where not all of them have a plan by then.
    """
    totals, reports = Totals(), Reports(interval_s)
    async with open_channel(target) as channel:
        tasks = [
            asyncio.create_task(
                Stream(f"w{first + number}", number < probes, reports, totals).run(
                    channel, join_s * number / streams, interval_s
                )
            )
            for number in range(streams)
        ]
        began_s, cpu_s = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        end_s = began_s + seconds + patience_s
        while totals.planned_streams < streams and time.monotonic() < end_s:
            await asyncio.sleep(0.1)
        totals.cores = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        ended, reasons = totals.ended, dict(totals.reasons)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    totals.ended, totals.reasons = ended, reasons
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--streams", type=int, default=250)
    parser.add_argument("--probes", type=int, default=1)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--join", type=float, default=1.0, help="seconds until all have joined")
    options = parser.parse_args()
    totals = asyncio.run(
        run(
            options.target,
            options.first,
            options.streams,
            options.probes,
            options.interval,
            options.seconds,
            options.join,
        )
    )
    print(json.dumps(vars(totals)))


if __name__ == "__main__":
    main()
