"""What a round of SmolLM2 costs on this CPU, and why.

    python -m benchmarks rounds [--threads 2] [--runs 3] [--context 128]

*floor*: the time to read the weights once at the bandwidth measured here.
*curve*: T(b), rounds as the worker's own profile runs them.
*host*: host time that a round waits for (in step), and what is hidden behind an emulated
accelerator that leaves the cores alone (ahead).
*invariance*: forwards against the same model with the fastest kernels, where bits depend on
company.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.fastest import fastest_model
from benchmarks.gpu.engines import Bench, static_plan
from benchmarks.gpu.models import CPU, random_model, tiny_config
from benchmarks.measure import Series, write_result
from outrider_worker.attention.base import Rows
from outrider_worker.engine.drafters import Drafters
from outrider_worker.engine.records import LaunchMode, RoundRecord
from outrider_worker.engine.scheduler import SchedulerLimits
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.base import CausalLM
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.loader import load_model
from outrider_worker.model.resolve import DEMO, resolve_model
from outrider_worker.profile import CPU_ROW_LADDER, Profiler
from outrider_worker.profile_seats import ProfileSeats
from outrider_worker.programs import SeatSize
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.verify import SamplerMatch
from outrider_worker.streams import DeviceStream, EmulatedStream, ImmediateStream

LIMITS = SchedulerLimits(max_running_requests=32, max_context_tokens=512, max_rows_per_forward=128)
MAX_DRAFT_TOKENS = 8
LOADS = (1, 8, 32)
PROMPT_TOKENS, ANSWER_TOKENS = 16, 24
EMULATED_ROUND_S = 0.02
"""What a round of the emulated device takes, nearly all of it asleep."""

SHAPES = ((1, 1), (1, 4), (8, 1), (32, 1))
"""(requests, rows of each) of the forwards that are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--context", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = converted_folder(resolve_model(DEMO))
    model = load_model(folder).model
    floor = floor_row(folder, options.runs)
    rows = [floor, *curve_rows(model, options.context, options.runs, floor["floor_ms"])]
    rows += host_rows(model)
    rows += invariance_rows(model, fastest_model(folder), options.context, options.runs)
    write_result("rounds", vars(options), rows)


def floor_row(folder: Path, runs: int) -> dict[str, Any]:
    """Bandwidth of a plain read with the threads at hand, and what it takes for the weights."""
    weights_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    block = torch.ones(weights_bytes // 4)
    seconds = min(_timed_s(block.sum) for _ in range(3 * runs))
    row = {
        "part": "floor",
        "weights_mb": round(weights_bytes / 1e6),
        "read_gb_per_s": round(block.nbytes / seconds / 1e9, 1),
        "floor_ms": round(seconds * 1e3, 1),
    }
    print(f"floor: {row['weights_mb']} MB at {row['read_gb_per_s']} GB/s = {row['floor_ms']} ms")
    return row


def curve_rows(
    model: CausalLM, context_tokens: int, runs: int, floor_ms: float
) -> list[dict[str, Any]]:
    """T(b) of every rung, `runs` times over the whole ladder."""
    bench = _bench(model, ImmediateStream())
    size = SeatSize(
        LIMITS.max_running_requests,
        LIMITS.max_context_tokens,
        MAX_DRAFT_TOKENS,
        max(CPU_ROW_LADDER),
    )
    seats = ProfileSeats(
        bench.runner, size, bench.programs.pool.pages, PAGE_TOKENS, bench.vocab_size
    )
    profiler = Profiler(seats, Drafters(), lambda _: None)
    series = {rows: Series() for rows in CPU_ROW_LADDER}
    for _ in range(runs):
        curve = profiler.measure(CPU_ROW_LADDER, (context_tokens,)).target[0]
        for rows, timing in zip(curve.rows, curve.timings, strict=True):
            series[rows].add(timing.median_s * 1e3)
    found = []
    for rows, values in series.items():
        ratio = values.median / series[1].median
        print(f"T({rows}) = {values} ms = {ratio:.2f} T(1) = {values.median / floor_ms:.2f} floors")
        found.append(
            {"part": "curve", "rows": rows, "ms": values.summary(), "over_one_row": round(ratio, 3)}
        )
    return found


def host_rows(model: CausalLM) -> list[dict[str, Any]]:
    """Host time of decoding rounds by load: in step with this model, ahead of an idle device."""
    idle = random_model(tiny_config("llama"), CPU, torch.float32, "blocks")
    return [
        *_host_rows(LaunchMode.IN_STEP, model, ImmediateStream()),
        *_host_rows(LaunchMode.AHEAD, idle, EmulatedStream(EMULATED_ROUND_S)),
    ]


def _host_rows(mode: LaunchMode, model: CausalLM, stream: DeviceStream) -> list[dict[str, Any]]:
    bench = _bench(model, stream)
    found = []
    for requests in LOADS:
        records = _decode(bench, requests)
        if any(record.launch_mode is not mode for record in records):
            raise RuntimeError(f"a round was not launched {mode.value}")
        times = [record.times for record in records]
        row = {
            "part": "host",
            "mode": mode.value,
            "requests": requests,
            "target_ms": _median_ms([each.target_s for each in times]),
            "exposed_host_ms": _median_ms([each.exposed_host_s for each in times]),
            "hidden_host_ms": _median_ms([each.hidden_host_s for each in times]),
        }
        print(", ".join(f"{name} {value}" for name, value in row.items()))
        found.append(row)
    stream.close()
    return found


def invariance_rows(
    ours: CausalLM, fastest: CausalLM, context_tokens: int, runs: int
) -> list[dict[str, Any]]:
    """Forward and head, ours and the fastest in turns."""
    found = []
    for requests, rows_each in SHAPES:
        rows, pool = _round_rows(ours, requests, rows_each, context_tokens)
        mine, theirs = Series(), Series()
        for _ in range(3 * runs + 1):
            mine.add(_timed_s(_forward(ours, rows, pool)) * 1e3)
            theirs.add(_timed_s(_forward(fastest, rows, pool)) * 1e3)
        mine.drop_warm_up()
        theirs.drop_warm_up()
        price = mine.median / theirs.median - 1
        print(f"{requests} × {rows_each} rows: {mine} ms, fastest {theirs} ms, price {price:+.0%}")
        found.append(
            {
                "part": "invariance",
                "requests": requests,
                "rows_each": rows_each,
                "ms": mine.summary(),
                "fastest_ms": theirs.summary(),
                "price": round(price, 3),
            }
        )
    return found


def _bench(model: CausalLM, stream: DeviceStream) -> Bench:
    """Seats for the whole ladder's drafts; the plans used here ask for none."""
    drafter = DeviceNgramDrafter(MAX_DRAFT_TOKENS)
    return Bench.over(model, stream, torch.float32, CPU, LIMITS, SamplerMatch(), drafter)


def _decode(bench: Bench, requests: int) -> list[RoundRecord]:
    """The rounds in which all decode and nothing is prefilled; the first of them is left out."""
    records: list[RoundRecord] = []
    engine = bench.engine(static_plan("ngram", 0, LIMITS.max_running_requests), records.append)
    for number in range(requests):
        places = range(number * 31, number * 31 + PROMPT_TOKENS)
        prompt = [place % bench.vocab_size for place in places]
        engine.submit(str(number), prompt, ANSWER_TOKENS)
    engine.run()
    full = [r for r in records if r.emitted_tokens == requests and not r.prefill_tokens]
    return full[1:]


def _round_rows(
    model: CausalLM, requests: int, rows_each: int, context_tokens: int
) -> tuple[Rows, KvPool]:
    """Rows at the end of `context_tokens` tokens of every request, and a pool that holds them."""
    pages = -(-(context_tokens + rows_each) // PAGE_TOKENS)
    table = torch.arange(1, 1 + requests * pages).view(requests, pages)
    sequence = torch.arange(requests).repeat_interleave(rows_each)
    positions = context_tokens + torch.arange(rows_each).repeat(requests)
    rows = Rows(
        token_ids=torch.arange(requests * rows_each) * 7919 % model.config.vocab_size,
        positions=positions,
        slots=table[sequence, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
        sequence=sequence,
        lengths=positions + 1,
        page_table=table,
    )
    return rows, KvPool.of_pages(model.config, 1 + requests * pages, torch.float32)


def _forward(model: CausalLM, rows: Rows, pool: KvPool) -> Callable[[], object]:
    return lambda: model.logits(model.forward(rows, pool))


def _timed_s(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _median_ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


if __name__ == "__main__":
    main()
