"""The verifier that a deployment has chosen, fit for its model and its drafters.

Knows: what each verifier needs. Does not know: how any of them judges.
"""

import json
from pathlib import Path

from outrider_worker.engine.drafters import Drafters
from outrider_worker.model.config import ModelError
from outrider_worker.open_drafters import Target
from outrider_worker.settings import WorkerSettings
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


def _verifier(settings: WorkerSettings, target: Target, drafters: Drafters) -> Verifier:
    config = target.loaded.config
    if settings.verifier == "rejection" and drafters.names:
        laws = DraftLaws(
            settings.max_running, drafters.max_tokens, config.vocab_size, device=target.device
        )
        return RejectionVerifier(laws)
    if settings.verifier == "relaxed":
        around = (settings.think_open, settings.think_close)
        opens, closes = (_token_id(target.loaded.folder, text) for text in around)
        rule = RelaxedRule(opens, closes, settings.relaxed_top, settings.relaxed_delta)
        return RelaxedVerifier(rule)
    return SamplerMatch()


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
