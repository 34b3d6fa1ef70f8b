"""The verifier that a deployment has chosen, fit for its model and its drafters.

Knows: what each verifier needs. Does not know: how any of them judges.
"""

import json
from pathlib import Path

from torch import Tensor

from outrider_worker.engine.drafters import Drafters
from outrider_worker.model.config import ModelError
from outrider_worker.open_drafters import Target
from outrider_worker.settings import WorkerSettings
from outrider_worker.speculate.device import DraftsSomeTokens
from outrider_worker.speculate.draft_laws import DraftLaws
from outrider_worker.speculate.rejection import RejectionVerifier
from outrider_worker.speculate.relaxed import RelaxedRule, RelaxedVerifier
from outrider_worker.speculate.verify import SamplerMatch, Verifier, check_cuts


def open_verifier(settings: WorkerSettings, target: Target, drafters: Drafters) -> Verifier:
    """As the settings say.

    Raises:
        LossyCut: its drafters' scores would bias what it emits.
        ModelError: relaxed acceptance, of a model that has no tokens around its thinking.
    """
    verifier = _verifier(settings, target, drafters)
    check_cuts(verifier, drafters.traits)
    return verifier


def kept_bytes(verifier: Verifier) -> int:
    """Memory on the device that a verifier keeps for itself, all of it from the start."""
    return verifier.laws.bytes if isinstance(verifier, RejectionVerifier) else 0


def _verifier(settings: WorkerSettings, target: Target, drafters: Drafters) -> Verifier:
    config = target.loaded.config
    if settings.verifier == "rejection" and drafters.names:
        seats, tokens = settings.max_running, drafters.max_tokens
        return RejectionVerifier(
            DraftLaws(
                seats,
                tokens,
                config.vocab_size,
                target.dtype,
                target.device,
                _draft_ids(drafters),
            )
        )
    if settings.verifier == "relaxed":
        around = (settings.think_open, settings.think_close)
        opens, closes = (_token_id(target.loaded.folder, text) for text in around)
        rule = RelaxedRule(opens, closes, settings.relaxed_top, settings.relaxed_delta)
        return RelaxedVerifier(rule)
    return SamplerMatch()


def _draft_ids(drafters: Drafters) -> Tensor | None:
    """The tokens that drafts can be drawn from; the others have no place in a law."""
    drafter = drafters.stateful
    return drafter.draft_ids if isinstance(drafter, DraftsSomeTokens) else None


def _token_id(folder: Path, text: str) -> int:
    """The one token that stands for `text`, from the tokenizer's added tokens."""
    try:
        added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        ids = {str(token["content"]): int(token["id"]) for token in added}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"no added tokens can be read from {folder}: {error}") from error
    if text not in ids:
        raise ModelError(f"{folder}: {text!r}, which bounds thinking, is no token of its own")
    return ids[text]
