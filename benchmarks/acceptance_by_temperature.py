"""How often drafts are accepted by sampler match and by rejection sampling, by temperature.

    python -m benchmarks acceptance_by_temperature [--threads 2]

The target is SmolLM2; the drafter is the same model without its last two blocks, so its laws p and
q are those of a good drafter. Computed exactly, over the last places of the benchmark's prompts:

*rejection*: Σ min(p, q) = 1 − TV, what rejection sampling accepts.
*coupled*: Σ_v 1 / Σ_w max(p_w/p_v, q_w/q_v), what sampler match accepts of drafts drawn with the
target's noise; *bound* is (1 − TV)/(1 + TV) (Daliri et al. 2024, arXiv 2408.07978).
*given*: p of the drafter's best token, what either accepts of drafts that are not drawn.
*uncoupled*: Σ p q, what sampler match would accept of drafts drawn with other noise.
"""

import argparse
from collections.abc import Iterator
from itertools import chain

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.measure import write_result
from benchmarks.prompts import PROMPTS
from outrider_worker.attention.base import Rows
from outrider_worker.kv import PAGE_TOKENS, KvPool
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.gguf import converted_folder
from outrider_worker.model.layers import RmsNorm
from outrider_worker.model.loader import LoadedModel, load_model
from outrider_worker.model.resolve import DEMO, resolve_model

TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0, 1.3)
BLOCKS_LEFT_OUT = 2
TEXTS_OF_A_KIND, POSITIONS_OF_A_TEXT = 4, 16
_ROWS_AT_ONCE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target, drafter = smollm_logits()
    rows = [measure(target, drafter, each) for each in TEMPERATURES]
    write_result("acceptance_by_temperature", vars(options), rows)


def measure(target: Tensor, drafter: Tensor, temperature: float) -> dict[str, float]:
    """Logits [P, V] of P places → mean acceptance over them."""
    found: dict[str, list[Tensor]] = {}
    for part in range(0, len(target), _ROWS_AT_ONCE):
        some = slice(part, part + _ROWS_AT_ONCE)
        p, q = ((each[some].double() / temperature).softmax(-1) for each in (target, drafter))
        overlap = rejection_acceptance(p, q)
        values = {
            "rejection": overlap,
            "coupled": coupled_acceptance(p, q),
            "bound": overlap / (2 - overlap),
            "given": p.gather(1, q.argmax(-1, keepdim=True)).squeeze(1),
            "uncoupled": (p * q).sum(-1),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    row = {name: round(float(torch.cat(values).mean()), 4) for name, values in found.items()}
    print(f"temperature {temperature}: " + ", ".join(f"{n} {v:.3f}" for n, v in row.items()))
    return {"temperature": temperature, "places": len(target), **row}


def rejection_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """[P, V] laws → [P]"""
    return torch.minimum(p, q).sum(-1)


def coupled_acceptance(p: Tensor, q: Tensor) -> Tensor:
    """[P, V] positive laws → [P], the chance that one race gives both the same token.

    p_w/p_v ≥ q_w/q_v just where p_w/q_w ≥ p_v/q_v: in order of p/q the inner sum is one of p over
    all from v on, and one of q over all before.
    """
    order = (p.log() - q.log()).argsort(-1)
    p, q = p.gather(1, order), q.gather(1, order)
    p_from = p.flip(-1).cumsum(-1).flip(-1)
    q_before = q.cumsum(-1) - q
    return (1 / (p_from / p + q_before / q)).sum(-1)


def smollm_logits() -> tuple[Tensor, Tensor]:
    """[P, V] of the target and of the drafter, at the last places of every text."""
    folder = converted_folder(resolve_model(DEMO))
    loaded = load_model(folder)
    with Checkpoint(folder) as checkpoint:
        norm = RmsNorm(checkpoint.tensor("model.norm.weight", torch.float32),
                       loaded.config.rms_eps)  # fmt: skip
    both = [_text_logits(loaded, norm, ids) for ids in _texts(str(folder / "tokenizer.json"))]
    target, drafter = zip(*both, strict=True)
    return torch.cat(target), torch.cat(drafter)


def _texts(tokenizer_file: str) -> Iterator[list[int]]:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    for text in chain.from_iterable(texts[:TEXTS_OF_A_KIND] for texts in PROMPTS.values()):
        yield tokenizer.encode(text).ids


def _text_logits(loaded: LoadedModel, norm: RmsNorm, ids: list[int]) -> tuple[Tensor, Tensor]:
    model, tokens = loaded.model, len(ids)
    pages = -(-tokens // PAGE_TOKENS)
    pool = KvPool.of_pages(loaded.config, pages + 1, torch.float32)
    positions = torch.arange(tokens)
    rows = Rows(
        token_ids=torch.tensor(ids),
        positions=positions,
        slots=PAGE_TOKENS + positions,
        sequence=torch.zeros_like(positions),
        lengths=positions + 1,
        page_table=torch.arange(1, pages + 1)[None],
    )
    early = (loaded.config.layers - BLOCKS_LEFT_OUT,)
    hidden, features = model.forward_with_features(rows, pool, early)
    last = slice(-POSITIONS_OF_A_TEXT, None)
    return model.logits(hidden[last]), model.logits(norm(features[last]))


if __name__ == "__main__":
    main()
