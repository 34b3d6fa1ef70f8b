"""How precise the matrix products of training are.

Units for bfloat16 make a step half again as fast as float32 does, and a head that is exported in
float16 loses nothing by them. What serves, and what writes the answers, never comes near this.

Knows: the setting and who has such units. Does not know: what is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch


def has_bfloat16_units(device: str) -> bool:
    """Whether products in bfloat16 are faster there: on GPUs, and on CPUs with AMX."""
    if torch.device(device).type == "cuda":
        return True
    # Older versions of torch cannot tell.
    capabilities: Callable[[], Mapping[str, object]] = getattr(torch.cpu, "get_capabilities", dict)
    return bool(capabilities().get("amx_bf16", False))


@contextmanager
def products(bfloat16: bool) -> Iterator[None]:
    """Within, float32 products may be taken of operands that were rounded to bfloat16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if bfloat16 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
