"""Decode speed without speculation, against transformers: same weights, dtype and threads.

    python -m benchmarks.decode [--threads 2] [--tokens 128] [--runs 5]

Both sides decode the same prompts greedily, in turns (A B A B …), so that a machine whose speed
drifts disturbs both alike. Counted is the time after the first token: prefill is in neither.
"""

import argparse
import time
from collections.abc import Sequence

import torch

from benchmarks.measure import Series, write_result
from outrider_worker.assembly import Assembly, assemble
from outrider_worker.engine.engine import Engine
from outrider_worker.engine.inbox import Submit
from outrider_worker.engine.records import RoundRecord
from outrider_worker.engine.types import RequestKey, RequestSpec, SamplingParams
from outrider_worker.settings import WorkerSettings

# Short enough for all prompts of a batch to be prefilled by one forward.
PROMPT_TOKENS = 16
BATCHES = (1, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    assembly = assemble(WorkerSettings(planner="", threads=options.threads))
    peer = Transformers(assembly)
    rows = []
    for batch in BATCHES:
        prompts = _prompts(assembly, batch)
        ours, theirs = Series(), Series()
        for _ in range(options.runs + 1):
            ours.add(batch * options.tokens / _ours_s(assembly, prompts, options.tokens))
            theirs.add(batch * options.tokens / peer.decode_s(prompts, options.tokens))
        ours.drop_warm_up()
        theirs.drop_warm_up()
        ratio = Series([a / b for a, b in zip(ours.values, theirs.values, strict=True)])
        rows.append(
            {"batch": batch, "ours_tokens_per_s": ours.summary(),
             "transformers_tokens_per_s": theirs.summary(), "ratio": ratio.summary()}
        )  # fmt: skip
        print(f"batch {batch}: ours {ours}  transformers {theirs}  ratio {ratio}")
    write_result("decode", vars(options), rows)


def _prompts(assembly: Assembly, batch: int) -> list[list[int]]:
    """Different prompts of equal length, so that the peer need not pad."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assembly.folder / "tokenizer.json"))
    texts = [
        f"Chapter {i}. Tell a long story about {topic}. " * 12 for i, topic in enumerate(TOPICS)
    ]
    return [tokenizer.encode(text).ids[:PROMPT_TOKENS] for text in texts[:batch]]


TOPICS = ("rain", "bridges", "a fox", "the sea", "bread", "clocks", "winter", "a library")


def _ours_s(assembly: Assembly, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """Seconds of the rounds that emit `tokens` tokens after the first, for every prompt."""
    records: list[RoundRecord] = []
    engine = Engine(assembly.parts, lambda _round, _news: None, records.append)
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens + 1, ignore_eos=True)
        key = RequestKey("bench", f"{number}")
        engine.inbox.put(Submit(RequestSpec(key, tuple(prompt), params)))
    engine.step()
    assert records[0].prefill_tokens == sum(len(prompt) for prompt in prompts)
    started_s = time.perf_counter()
    while not engine.idle:
        engine.step()
    return time.perf_counter() - started_s


class Transformers:
    """The reference library's own greedy loop."""

    def __init__(self, assembly: Assembly) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(assembly.folder, dtype=torch.float32)

    def decode_s(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds of `tokens` decode steps: a long run less one that stops at its first token."""
        return self._generate_s(prompts, tokens + 1) - self._generate_s(prompts, 1)

    def _generate_s(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        ids = torch.tensor(prompts)
        started_s = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=2,
            )
        return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
