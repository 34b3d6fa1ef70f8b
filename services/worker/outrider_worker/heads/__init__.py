"""Drafting heads that come with the worker, each for one target.

A head is a folder as `outrider train-drafter` exports it, with a card (README.md) that says what it
was trained on and what it is worth. Its config.json names the target by the digest of its weights.

Knows: which heads there are and for whom. Does not know: what is in them.
"""

from __future__ import annotations

import json
from pathlib import Path

from outrider_worker.identity import model_digest

_FOLDER = Path(__file__).parent


def shipped_head(target: Path) -> Path | None:
    """The folder of the head for the model in the folder `target`; None where there is none."""
    digest = model_digest(target)
    return next((head for head in shipped_heads() if _target_of(head) == digest), None)


def shipped_heads() -> list[Path]:
    """All that come with the worker."""
    return sorted(path.parent for path in _FOLDER.glob("*/config.json"))


def _target_of(head: Path) -> str:
    config = json.loads((head / "config.json").read_text(encoding="utf-8"))
    return str(config["target_digest"])
