"""The device against the CPU reference, on tiny models of every family.

float32: logits within a tolerance, greedy texts equal token by token. In the precision that is
served: each greedy token must be the reference's best, or as good but for rounding (a tie); how
many were ties is reported.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.models import CPU, TINY, random_model, tiny_config
from benchmarks.gpu.scene import Scene
from outrider_worker.model.config import ModelConfig

LOGITS_TOLERANCE = 1e-4
"""Largest difference in float32, as a part of the largest logit."""

TIE_GAP = 0.15
"""How far below the best a tie may be, in standard deviations of the row's logits. Rounding to
bfloat16 in two layers moves a logit by about a tenth of that."""


def check(machine: Machine) -> dict[str, Any]:
    """One entry per family."""
    families = ["llama"] if machine.dry else list(TINY)
    entries = {family: check_family(machine, family) for family in families}
    return {"ok": all(entry["ok"] for entry in entries.values()), "families": entries}


def check_family(machine: Machine, family: str) -> dict[str, Any]:
    """Logits and greedy texts of one of `TINY`."""
    config = tiny_config(family)
    tokens = 3 if machine.dry else 64
    exact = _exact(machine, config, tokens)
    served = _served(machine, config, tokens)
    same = exact["equal_tokens"] and exact["logits_error"] <= LOGITS_TOLERANCE
    # A rounding error may send a row to another expert: then nothing bounds the difference.
    explained = served["unexplained"] == 0 or config.moe is not None
    return {"ok": same and explained, "float32": exact, "served": served}


def _texts(machine: Machine) -> list[list[int]]:
    """Of different lengths, up to beyond a page."""
    lengths = (3, 9) if machine.dry else (1, 17, 64, 65, 130)
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 259, (n,), generator=generator).tolist() for n in lengths]


def _exact(machine: Machine, config: ModelConfig, tokens: int) -> dict[str, Any]:
    """In float32, with the Triton kernels on either device."""
    texts = _texts(machine)

    def scene(device: torch.device, attention: str) -> Scene:
        model = random_model(config, device, torch.float32, attention)
        return Scene(model, device, torch.float32, texts, 256)

    expected, found = scene(CPU, "blocks"), scene(machine.device, "triton")
    reference, logits = expected.all_logits(), found.all_logits().cpu()
    error = float((logits - reference).abs().max() / reference.abs().max())
    equal = expected.greedy(tokens) == found.greedy(tokens)
    return {"logits_error": error, "equal_tokens": equal, "tokens": tokens * len(texts)}


def _served(machine: Machine, config: ModelConfig, tokens: int) -> dict[str, Any]:
    """In the served precision, against the same rounded weights in float32 on the CPU."""
    texts, dtype = _texts(machine), machine.dtype
    model = random_model(config, machine.device, dtype, machine.attention, rounded_to=dtype)
    written = Scene(model, machine.device, dtype, texts, 256).greedy(tokens)
    whole = [[*text, *more] for text, more in zip(texts, written, strict=True)]
    judge = random_model(config, CPU, torch.float32, "blocks", rounded_to=dtype)
    logits = Scene(judge, CPU, torch.float32, whole, 256).all_logits()
    ties = unexplained = end = 0
    for text, more in zip(texts, written, strict=True):
        end += len(text) + tokens
        rows = logits[end - tokens - 1 : end - 1]
        chosen = rows.gather(1, torch.tensor(more)[:, None]).squeeze(1)
        gaps = (rows.amax(-1) - chosen) / rows.std(-1)
        ties += int(((gaps > 0) & (gaps <= TIE_GAP)).sum())
        unexplained += int((gaps > TIE_GAP).sum())
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": tokens * len(texts),
        "ties": ties,
        "unexplained": unexplained,
    }
