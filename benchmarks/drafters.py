"""What each drafter is worth on SmolLM2: acceptance, cost, the best fixed K, `two_stage`, off.

    python -m benchmarks drafters [--short] [--requests 1 8] [--drafters ngram suffix …]

In process, on the engine as served. Every turn decodes the same prompts in every way: off, each
drafter with each fixed K and under the policy, and off again, which shows the noise. Ratios are to
the off of the same turn. At one request a turn is one prompt, at eight all of them. The policy
starts cold, and its first turn, over a prompt that is not measured, is left out. All texts must be
those of off, greedy and sampled. *edit* is predicted output: the prediction is the answer of off
with one word in twenty replaced. Only rounds count in which all requests decode.

Every kind of text is written down as it is measured. Parts can be measured apart: rows measured
before are kept where they are not measured anew.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.drafter_cells import EDIT, MAX_REQUESTS, SHORT, Cell, Scope, Setting
from benchmarks.measure import RESULTS, write_result
from outrider_runtime.logs import configure_logs
from outrider_worker.speculate.drafter import PREDICTED

TEMPERATURES = (0.0, 0.8)
_KEYS = ("kind", "temperature", "requests", "drafter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, MAX_REQUESTS])
    parser.add_argument("--drafters", nargs="+", help="of those loaded; all by default")
    parser.add_argument("--policy", default="two_stage")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    configure_logs("benchmark", "warning")
    setting = Setting.open(options.threads, options.policy, SHORT if options.short else Scope())
    chosen = options.drafters or setting.drafters
    if unknown := set(chosen) - set(setting.drafters):
        parser.error(f"not loaded: {', '.join(unknown)}; there are {', '.join(setting.drafters)}")
    for requests in options.requests:
        for kind in setting.scope.kinds:
            able = [name for name in chosen if (name == PREDICTED) == (kind == EDIT)]
            rows: list[Mapping[str, Any]] = []
            for temperature in TEMPERATURES if able else ():
                rows += Cell(setting, kind, temperature, requests, able).measure()
            for row in rows:
                print(_line(row, options.policy), flush=True)
            if rows and not options.short:
                write_result("drafters", vars(options), merged(rows))


def merged(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """With the rows of other parts that are in the result already."""
    file = RESULTS / "drafters.json"
    before = json.loads(file.read_text())["rows"] if file.exists() else []
    new = {tuple(row[key] for key in _KEYS) for row in rows}
    return [*(row for row in before if tuple(row[key] for key in _KEYS) not in new), *rows]


def _line(row: Mapping[str, Any], policy: str) -> str:
    best, planned = row["fixed"][str(row["best_fixed_k"])], row[policy]
    off, noise = row["off_tokens_per_s"]["median"], row["off_again_over_off"]
    return (
        f"{row['kind']}, temperature {row['temperature']}, n = {row['requests']}, {row['drafter']}:"
        f" drafts in {row['drafted_share']:.0%} of rounds, {row['draft_ms']} ms,"
        f" hold {row['accepted_by_position']}; off {off:.1f} tokens/s"
        f" (again {noise['min']:.2f}–{noise['max']:.2f}); K = {row['best_fixed_k']}"
        f" {_ratio(best)}; {policy} {_ratio(planned)}"
    )


def _ratio(way: Mapping[str, Any]) -> str:
    over = way["over_off"]
    spread = f"{over['min']:.2f}–{over['max']:.2f}"
    return f"{over['median']:.2f} × off ({spread}), {way['tokens_per_round']:.2f} tokens a round"


if __name__ == "__main__":
    main()
