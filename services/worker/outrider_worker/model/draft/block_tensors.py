"""A block drafter's tensors under the names that the decoder's parts ask for.

Knows: the prefixes of published files, products that some of them keep fused.
Does not know: settings, what the tensors are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from outrider_worker.model.draft.tensors import DraftTensors
from outrider_worker.model.shapes import Shape

_MARK = "hidden_norm.weight"
"""The norm of the context. EAGLE's heads have one of this name too, but inside a layer."""

_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_LAYER_PRODUCT = re.compile(r"(model\.layers\..*\.)(\w+_proj)(\.\w+)")
_STAGE = re.compile(r"(?:^|\.)mtp\.\d+\.")


def block_names(names: Iterable[str]) -> Mapping[str, str]:
    """Our name → name in the file, of all tensors that are a block drafter's.

    Empty if there is none: no projection of features, no norm of the context. A prefix (`model.`,
    `mtp.`) is found by these two, so it does not matter what it is; where there is one, what
    stands beside it is not the drafter's.
    """
    present = set(names)
    for name in sorted(present):
        prefix = name.removesuffix(_MARK)
        if prefix != name and "layer" not in prefix and f"{prefix}fc.weight" in present:
            ours = (each for each in present if each.startswith(prefix))
            return {_ours(each.removeprefix(prefix)): each for each in ours}
    return {}


def has_heads(names: Iterable[str]) -> bool:
    """Whether among a block drafter's tensors (our names) are heads of DSpark's."""
    return any(name.startswith(("markov_head.", "confidence_head.")) for name in names)


def has_stages(names: Iterable[str]) -> bool:
    """Whether a file holds DeepSeek-V4's own form of DSpark, its layers called `mtp.0` and on."""
    staged = [name for name in names if _STAGE.search(name)]
    return any(".main_proj." in name or ".markov_head." in name for name in staged)


def _ours(name: str) -> str:
    return f"model.{name}" if name.startswith(("layers.", "embed_tokens.")) else name


class SplitWeights:
    """Finds a product's part inside a fused one where the file has it so (a weights.Weights).

    stored_shapes: our names and shapes of what the file must hold.
    """

    def __init__(self, tensors: DraftTensors, shapes: Mapping[str, Shape]) -> None:
        """shapes: of the parts, those of one fused product in its order."""
        self._tensors = tensors
        self.stored_shapes: dict[str, Shape] = {}
        self._part: dict[str, tuple[str, slice]] = {}
        for name, (rows, *columns) in shapes.items():
            whole = self._whole(name)
            first = self.stored_shapes.get(whole, (0,))[0]
            self.stored_shapes[whole] = (first + rows, *columns)
            self._part[name] = (whole, slice(first, first + rows))

    def __call__(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See Weights."""
        whole, part = self._part[name]
        return self._tensors(whole, dtype)[part]

    def _whole(self, name: str) -> str:
        """The fused product that `name` lies in if the file has it, else `name`."""
        product = _LAYER_PRODUCT.fullmatch(name)
        if product is None or product[2] not in _FUSED:
            return name
        whole = f"{product[1]}{_FUSED[product[2]]}{product[3]}"
        return whole if whole in self._tensors else name
