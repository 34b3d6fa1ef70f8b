"""What the router costs per request and per token, beside a peer gateway.

    python -m benchmarks router [--litellm PYTHON] [--sglang PYTHON] [--runs 3] [--seconds 5]

Scripted servers answer at once; everything is a process of its own on loopback. See README.md.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import Series, write_result
from benchmarks.router.load import Load, processor_s
from benchmarks.router.sides import Side, all_sides
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.resolve import DEMO, resolve_model

_GAP_MS = 40
_SETTLE_S, _IDLE_CORES = 0.5, 0.1


@dataclass(frozen=True)
class Case:
    """One way of asking; `paced` ones tell times, the others how much goes through."""

    name: str
    streams: int
    tokens: int
    gap_ms: int

    @property
    def paced(self) -> bool:
        return self.gap_ms > 0

    def load(self, seconds: float) -> Load:
        return Load(self.streams, self.tokens, self.gap_ms, seconds)


CASES = (
    Case("1 stream", 1, 2, _GAP_MS),
    Case("64 streams", 64, 64, _GAP_MS),
    Case("256 streams", 256, 128, _GAP_MS),
    Case("tokens at once", 64, 1000, 0),
    Case("requests of one token", 64, 1, 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--litellm", help="Interpreter of LiteLLM's environment.")
    parser.add_argument("--sglang", help="Interpreter of the SGLang router's environment.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    folder = converted_folder(resolve_model(DEMO))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with all_sides(folder, options.litellm, options.sglang) as sides:
        for _ in range(options.runs):
            for case in CASES:
                for side in sides:
                    answer = _measured(side, case.load(options.seconds))
                    found.setdefault((case.name, side.name), []).append(answer)
        rows = [_row(case, side, found) for case in CASES for side in sides]
    for row in rows:
        print(_line(row))
    chosen = {name: value for name, value in vars(options).items() if name in ("runs", "seconds")}
    write_result("router", chosen, rows)


def _measured(side: Side, load: Load) -> dict[str, Any]:
    """One run of the load in a process of its own."""
    words = {
        "--target": side.target,
        "--streams": load.streams,
        "--tokens": load.tokens,
        "--gap-ms": load.gap_ms,
        "--seconds": load.seconds,
        "--watch": side.pid,
    }
    _settle(side.pid)
    command = [sys.executable, "-m", "benchmarks.router.load"]
    command += [str(word) for pair in words.items() for word in pair]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    print(f"{side.name}, {load.streams} x {load.tokens}: {answer}", file=sys.stderr)
    return answer


def _settle(pid: int, limit_s: float = 60.0) -> None:
    """Until what an overload has left behind is done."""
    end_s = time.monotonic() + limit_s
    used_s = -1.0
    while processor_s(pid) - used_s > _IDLE_CORES * _SETTLE_S and time.monotonic() < end_s:
        used_s = processor_s(pid)
        time.sleep(_SETTLE_S)


def _row(
    case: Case, side: Side, found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """A side's numbers in one case; what it adds is taken within each run."""
    mine = found[case.name, side.name]
    row: dict[str, Any] = {"case": case.name, "side": side.name, "version": side.version}
    row |= {name: _summary(mine, name) for name in mine[0]}
    if side.base is not None and case.paced:
        base = found[case.name, side.base]
        for name in ("first_token_ms_median", "first_token_ms_p99"):
            added = [one[name] - other[name] for one, other in zip(mine, base, strict=True)]
            row[f"added_{name}"] = Series(added).summary()
    for name in ("requests", "tokens", "events"):
        per_core = [one[f"{name}_per_s"] / max(one["cores"], 1e-9) for one in mine]
        row[f"{name}_per_s_and_core"] = Series(per_core).summary()
    return row


def _summary(runs: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    return Series([run[name] for run in runs]).summary()


def _line(row: Mapping[str, Any]) -> str:
    shown = {
        name: value["median"]
        for name, value in row.items()
        if isinstance(value, Mapping) and name != "samples"
    }
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
    return f"{row['case']}: {row['side']}: {numbers}"


if __name__ == "__main__":
    main()
