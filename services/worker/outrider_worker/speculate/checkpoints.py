"""From a checkpoint to a drafter of the right kind.

Knows: how kinds are told apart, by the tensors that are there and never by a prefix alone. Does
not know: any kind's tensors or arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import torch

from outrider_worker.attention import AttentionBackend, default_attention
from outrider_worker.model.checkpoint import Checkpoint
from outrider_worker.model.config import ModelError
from outrider_worker.model.config_json import read_json
from outrider_worker.model.draft.eagle3 import own_eagle3_name, read_eagle3, stored_eagle3_name
from outrider_worker.model.draft.eagle3_config import parse_eagle3
from outrider_worker.model.draft.mtp import read_modules
from outrider_worker.model.draft.mtp_layouts import MtpNames, find_layout
from outrider_worker.model.draft.tensors import DraftTensors
from outrider_worker.model.loader import LoadedModel
from outrider_worker.speculate.block_checkpoint import (
    looks_like_dflash,
    looks_like_dspark,
    open_dflash,
)
from outrider_worker.speculate.device import StatefulDrafter
from outrider_worker.speculate.eagle import EagleDrafter
from outrider_worker.speculate.mtp_vanilla import VanillaMtpDrafter

MTP = "mtp"
"""As a path: the layers behind the target's own in its own checkpoint."""

_log = structlog.get_logger(__name__)


def open_drafter(
    path: Path | str,
    target: LoadedModel,
    max_draft_tokens: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    backend: AttentionBackend | None = None,
) -> StatefulDrafter:
    """The drafter in the folder `path`, or with MTP that in the target's own checkpoint.

    dtype, device: the target's. Where it reads the target's hidden states is logged, in our own
    counting (FeatureSpec): files count layers in several ways.

    Raises ModelError naming the folder and the tensors or settings that are missing, unknown, or
    made for another target.
    """
    place = torch.device(device)
    opening = _Opening(
        folder=target.folder if path == MTP else Path(path),
        target=target,
        max_draft_tokens=max_draft_tokens,
        dtype=dtype,
        device=place,
        backend=backend or default_attention(place),
    )
    try:
        drafter = opening.own_modules() if path == MTP else opening.from_folder()
    except ModelError as error:
        named = str(opening.folder) in str(error)
        raise error if named else ModelError(f"{opening.folder}: {error}") from error
    spec, name = drafter.feature_spec, drafter.traits.name
    taps = spec.boundaries if spec else ()
    _log.info("drafter_loaded", drafter=name, path=str(path), boundaries=taps)
    return drafter


@dataclass(frozen=True)
class _Opening:
    """All that a drafter is made from."""

    folder: Path
    target: LoadedModel
    max_draft_tokens: int
    dtype: torch.dtype
    device: torch.device
    backend: AttentionBackend

    def own_modules(self) -> StatefulDrafter:
        """Those that the target's checkpoint has behind the target."""
        names = self.target.mtp_tensors
        if not names:
            raise ModelError("there are no layers behind the model's own to draft with")
        if looks_like_dspark(names):
            raise ModelError(
                f"{_some(names)} are a DSpark drafter's, which is no multi-token prediction in "
                "spite of its prefix"
            )
        modules = find_layout(names)
        if modules is None:
            raise ModelError(f"{_some(names)} are of no known form of multi-token prediction")
        return self._modules(modules)

    def from_folder(self) -> StatefulDrafter:
        """Of whatever kind the folder's tensors are."""
        settings = self.folder / "config.json"
        config = read_json(settings) if settings.is_file() else {}  # modules have the target's
        with Checkpoint(self.folder) as checkpoint:
            names = tuple(checkpoint.names)
        if looks_like_dspark(names) or looks_like_dflash(names):
            return open_dflash(
                self.folder,
                self.target,
                self.max_draft_tokens,
                self.dtype,
                self.device,
                self.backend,
            )
        if modules := find_layout(names):
            return self._modules(modules)
        if {"fc.weight", "model.layers.0.mlp.down_proj.weight"} <= {*map(own_eagle3_name, names)}:
            return self._eagle3(config, names)
        if {"model.embed_tokens.weight", "model.norm.weight"} <= {*names}:
            raise ModelError(
                f"{self.folder} holds a whole model: to draft with it, ask for draft:{self.folder}"
            )
        raise ModelError(f"{_some(names)} are of no known kind of drafter")

    def _modules(self, names: MtpNames) -> StatefulDrafter:
        """One module drafts again and again; several draft one token each."""
        with Checkpoint(self.folder, self.target.config.quantisation) as checkpoint:
            tensors = DraftTensors(checkpoint, names.ours(), self.dtype, self.device, names.spelled)
            modules = read_modules(tensors, names, self.target, self.backend)
        if len(modules) == 1:
            return EagleDrafter(modules[0], MTP, self.max_draft_tokens, self.dtype, self.device)
        return VanillaMtpDrafter(modules, MTP, self.max_draft_tokens, self.dtype, self.device)

    def _eagle3(self, raw: Mapping[str, Any], names: Iterable[str]) -> StatefulDrafter:
        stored = {own_eagle3_name(name): name for name in names}
        config = parse_eagle3(raw, stored, self.target.config)
        with Checkpoint(self.folder, config.layers.quantisation) as checkpoint:
            spelled = partial(stored_eagle3_name, stored=stored.values())
            tensors = DraftTensors(checkpoint, stored, self.dtype, self.device, spelled)
            head = read_eagle3(tensors, config, self.target, self.backend)
        return EagleDrafter(head, "eagle3", self.max_draft_tokens, self.dtype, self.device)


def _some(names: Iterable[str]) -> str:
    """A few of them, for a message."""
    first, *others = sorted(names)[:4]
    return ", ".join([first, *others])
