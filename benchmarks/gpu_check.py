"""Everything that needs a GPU, in one command of a few minutes; results as JSON.

    benchmarks/gpu_check.sh [--dry-run] [--only parity,graphs,order,rounds] [--output FILE]

*parity*: the device against the CPU on tiny models of every family. *order*: running ahead on the
real stream. *graphs*: CUDA graphs against eager launches. *rounds*: an 8B shape with random weights
under synthetic acceptance. A part that fails does not keep the others from running; the exit code
says whether all held. --dry-run does the same with tiny sizes on a CPU, and writes nothing unless
it is told where.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import graphs, order, parity, rounds
from benchmarks.gpu.machine import Machine, NoGpu
from benchmarks.gpu.models import LLAMA_8B, config_of, random_model, tiny_config
from benchmarks.measure import RESULTS
from outrider_worker.model.base import CausalLM

Part = Callable[[], Any]


def main() -> int:
    options = _options()
    try:
        machine = Machine.choose(options.dry_run)
    except NoGpu as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32
    parts = _parts(machine)
    chosen = options.only.split(",") if options.only else list(parts)
    found = {name: _run(name, parts[name]) for name in chosen}
    result = {
        "benchmark": "gpu_check",
        "command": f"benchmarks/gpu_check.sh {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine.describe(),
        "dry_run": machine.dry,
        "parts": found,
    }
    output = options.output or (None if machine.dry else RESULTS / "gpu_check.json")
    if output:
        output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
        print(f"written: {output.name}")
    failed = [name for name, part in found.items() if not part["ok"]]
    print(f"failed: {', '.join(failed)}" if failed else "all held")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--only", default="", help="parts to run, separated by commas")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    return parser.parse_args()


def _parts(machine: Machine) -> dict[str, Part]:
    @cache
    def large() -> CausalLM:
        """Drawn where it is used: 16 GB in bfloat16."""
        config = tiny_config("llama") if machine.dry else config_of(LLAMA_8B)
        return random_model(
            config, machine.device, machine.dtype, machine.attention, drawn_on=machine.device
        )

    return {
        "parity": lambda: parity.check(machine),
        "order": lambda: order.check(machine),
        "graphs": lambda: graphs.check(machine, large(), *_graph_sizes(machine)),
        "rounds": lambda: rounds.check(machine, large()),
    }


def _graph_sizes(machine: Machine) -> tuple[tuple[int, ...], int]:
    """Buckets and context tokens."""
    if machine.dry:
        return (1, 2, 4, 8), 20
    return (1, 8, 16, 32, 64, 128, 256, 512), 1024


def _run(name: str, part: Part) -> dict[str, Any]:
    """A part's findings with `ok` and its time; what it raised, if it did."""
    print(f"{name} …", flush=True)
    began_s = time.perf_counter()
    try:
        found: dict[str, Any] = part()
    except Exception as error:
        traceback.print_exc()
        found = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.perf_counter() - began_s, 1)
    print(f"{name}: {'ok' if found['ok'] else 'FAILED'} in {found['seconds']} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
