"""How families store their multi-token prediction modules.

Knows: names of tensors and the family's habits (order of inputs, stored norms, what is carried).
Does not know: files, layers. A new family is one entry of LAYOUTS.

Our names: `modules.M.{enorm,hnorm,eh_proj,norm}.weight` for what module M has around its layer,
`modules.M.{embed_tokens,head}.weight` for tables of its own, `model.layers.M.…` for the layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MODULE_PARTS = ("enorm", "hnorm", "eh_proj", "norm")
"""What every module has beside its layer."""


@dataclass(frozen=True)
class MtpLayout:
    """One way to name things. In templates {} is the module's number."""

    layer: str
    """What names in the layer begin with."""
    around: str
    """What names of the parts begin with."""
    parts: Mapping[str, str]
    """Our name of a part → the one that is stored."""
    hidden_first: bool = False
    """Whether the hidden state comes before the embedding in the product's input."""
    norm_offset: float = 0.0
    """What the stored weights of norms lack."""
    carry_norm: bool = True
    """Whether the next step is fed the hidden state behind the module's last norm, not before."""

    def names(self, stored: Iterable[str]) -> MtpNames:
        """The names of a checkpoint seen so; modules are counted from 0 whatever their numbers."""
        layer = re.compile(re.escape(self.layer).replace(r"\{\}", r"(\d+)"))
        found = tuple(stored)
        numbers = {int(match[1]) for name in found if (match := layer.match(name))}
        return MtpNames(self, found, tuple(sorted(numbers)))


@dataclass(frozen=True)
class MtpNames:
    """A checkpoint's tensors under our names."""

    layout: MtpLayout
    stored: tuple[str, ...]
    numbers: tuple[int, ...]
    """Of the modules, as they are stored."""

    def ours(self) -> dict[str, str]:
        """Our name of each → the stored one; what belongs to no module keeps its name."""
        parts = {
            self.spelled(ours): ours
            for rank in range(len(self.numbers))
            for ours in (f"modules.{rank}.{part}.weight" for part in self.layout.parts)
        }
        return {parts.get(name) or self._in_layer(name): name for name in self.stored}

    def spelled(self, ours: str) -> str:
        """As it would be stored."""
        kind, _, inside = ours.removeprefix("model.").partition(".")
        rank, _, rest = inside.partition(".")
        if kind not in ("modules", "layers"):
            return ours
        number = self.numbers[int(rank)]
        if kind == "layers":
            return self.layout.layer.format(number) + rest
        part = self.layout.parts[rest.removesuffix(".weight")]
        return f"{self.layout.around.format(number)}{part}.weight"

    def _in_layer(self, name: str) -> str:
        for rank, number in enumerate(self.numbers):
            prefix = self.layout.layer.format(number)
            if name.startswith(prefix):
                return f"model.layers.{rank}.{name.removeprefix(prefix)}"
        return name


LAYOUTS: Mapping[str, MtpLayout] = {
    # Also GLM-4.5. An export of the one layer alone, as SGLang makes, calls it layer 0.
    "DeepSeek-V3": MtpLayout(
        layer="model.layers.{}.",
        around="model.layers.{}.",
        parts={
            "enorm": "enorm",
            "hnorm": "hnorm",
            "eh_proj": "eh_proj",
            "norm": "shared_head.norm",
            "head": "shared_head.head",
            "embed_tokens": "embed_tokens",
        },
    ),
    # Also Qwen3.5.
    "Qwen3-Next": MtpLayout(
        layer="mtp.layers.{}.",
        around="mtp.",
        parts={
            "enorm": "pre_fc_norm_embedding",
            "hnorm": "pre_fc_norm_hidden",
            "eh_proj": "fc",
            "norm": "norm",
        },
        norm_offset=1.0,
    ),
    "MiMo": MtpLayout(
        layer="model.mtp_layers.{}.",
        around="model.mtp_layers.{}.",
        parts={
            "enorm": "token_layernorm",
            "hnorm": "hidden_layernorm",
            "eh_proj": "input_proj",
            "norm": "final_layernorm",
        },
        hidden_first=True,
    ),
}


def find_layout(stored: Iterable[str]) -> MtpNames | None:
    """The names seen by the layout whose input product is among them; None where none is."""
    found = tuple(stored)
    seen = (layout.names(found) for layout in LAYOUTS.values())
    return next((names for names in seen if "modules.0.eh_proj.weight" in names.ours()), None)
