"""From the names in the settings to drafters that are loaded and fit the target.

Knows: what a name means. Does not know: any drafter, the engine, how memory is shared out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider_worker.attention import AttentionBackend
from outrider_worker.engine.drafters import Drafters
from outrider_worker.heads import shipped_head
from outrider_worker.identity import file_digest, model_digest
from outrider_worker.model.config import ModelError
from outrider_worker.model.loader import LoadedModel
from outrider_worker.model.resolve import resolve_model
from outrider_worker.speculate.checkpoints import MTP, open_drafter
from outrider_worker.speculate.device import DeviceDrafter, StatefulDrafter
from outrider_worker.speculate.device_ngram import DeviceNgramDrafter
from outrider_worker.speculate.draft_model import open_draft_model
from outrider_worker.speculate.drafter import (
    NO_DRAFTER,
    Drafter,
    UnknownDrafter,
    known_drafters,
    load_drafter,
)
from outrider_worker.speculate.ngram import NgramDrafter

HEAD = "head"
"""The head that comes with the worker for its model."""
DRAFT_PREFIX = "draft:"
"""Before the folder, file or hub id of a separate draft model."""


@dataclass(frozen=True)
class Target:
    """The model that is drafted for, and where it runs."""

    loaded: LoadedModel
    dtype: torch.dtype
    device: torch.device
    backend: AttentionBackend


def names_a_checkpoint(name: str) -> bool:
    """Whether a drafter of this name is read from files."""
    return name in (MTP, HEAD) or name.startswith(DRAFT_PREFIX) or _is_path(name)


def require_drafters(names: Iterable[str], target_folder: Path) -> None:
    """Whether every name stands for something, before the target's weights are read.

    Raises:
        UnknownDrafter, ModelError: a name that means nothing, or files that are not there.
    """
    for name in names:
        if name.startswith(DRAFT_PREFIX):
            _require_weights(resolve_model(name.removeprefix(DRAFT_PREFIX)))
        elif name == HEAD:
            _shipped(target_folder)
        elif _is_path(name):
            _require_weights(Path(name).expanduser())
        elif name != MTP and name not in known_drafters():
            raise _unknown(name)


def open_drafters(names: Iterable[str], max_draft_tokens: int, target: Target) -> Drafters:
    """All of them, in order of preference.

    On an accelerator n-gram works in both places, and each round takes the cheaper one.

    Raises:
        UnknownDrafter, ModelError: a name that means nothing, files that do not fit the target.
        ValueError: more than one drafter with a state.
    """
    hosts: list[Drafter] = []
    devices: list[DeviceDrafter] = []
    for name in names if max_draft_tokens else ():
        if names_a_checkpoint(name):
            devices.append(_open(name, max_draft_tokens, target))
        elif (host := _on_host(name, max_draft_tokens)) is not None:
            hosts.append(host)
            if isinstance(host, NgramDrafter) and target.device.type != "cpu":
                devices.append(DeviceNgramDrafter(max_draft_tokens))
    trained = [each.traits.name for each in devices if isinstance(each, StatefulDrafter)]
    if len(trained) > 1:
        raise ValueError(f"one trained drafter at a time, not {' and '.join(trained)}")
    return Drafters(hosts, devices)


def drafter_digests(names: Iterable[str]) -> tuple[str, ...]:
    """What tells each drafter from others of its name, for what is measured and learned of it."""
    return tuple(f"{name}{_digest(name)}" for name in names if name != NO_DRAFTER)


def _unknown(name: str) -> UnknownDrafter:
    return UnknownDrafter(
        f"unknown drafter {name!r}: known are {', '.join(known_drafters())}; besides {MTP}, "
        f"{HEAD}, {DRAFT_PREFIX}MODEL and the folder of a checkpoint, if there is one"
    )


def _require_weights(path: Path) -> None:
    """Raises ModelError for a folder without any."""
    if path.is_dir() and not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} holds no .safetensors: it is no checkpoint")


def _on_host(name: str, max_draft_tokens: int) -> Drafter | None:
    """See load_drafter; its error goes on with what else a name can be."""
    try:
        return load_drafter(name, max_draft_tokens)
    except UnknownDrafter:
        raise _unknown(name) from None


def _open(name: str, max_draft_tokens: int, target: Target) -> StatefulDrafter:
    loaded, dtype, device, backend = target.loaded, target.dtype, target.device, target.backend
    if name.startswith(DRAFT_PREFIX):
        path = resolve_model(name.removeprefix(DRAFT_PREFIX))
        return open_draft_model(path, loaded, max_draft_tokens, dtype, device, backend)
    folder = _folder(name, loaded)
    return open_drafter(folder, loaded, max_draft_tokens, dtype, device, backend)


def _folder(name: str, target: LoadedModel) -> Path | str:
    """What `open_drafter` is given for a name."""
    if name == MTP:
        return MTP
    return _shipped(target.folder) if name == HEAD else Path(name).expanduser()


def _shipped(target_folder: Path) -> Path:
    head = shipped_head(target_folder)
    if head is None:
        raise ModelError(
            f"no head comes with the worker for {target_folder.name}: "
            "`outrider train-drafter` makes one"
        )
    return head


def _is_path(name: str) -> bool:
    return name not in known_drafters() and Path(name).expanduser().exists()


def _digest(name: str) -> str:
    """Of the files that a name stands for; nothing where it says all there is to know."""
    if name in (MTP, HEAD) or not names_a_checkpoint(name):
        return ""
    path = Path(name.removeprefix(DRAFT_PREFIX)).expanduser()
    if not path.exists():
        return ""  # a hub id, which names one revision
    return f"@{model_digest(path) if path.is_dir() else file_digest(path)}"
