"""Compiles the Triton kernels for an H200 (compute capability 9.0), which needs no GPU.

    python -m tests.support.kernel_compiler

The interpreter runs kernels as Python and takes much that the compiler refuses. Prints a line for
each: its name and the bytes of shared memory of a block. Run it in a process without
TRITON_INTERPRET: kernels are made for one or the other when they are imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider_worker.attention.triton_decode import KernelShape
from outrider_worker.attention.triton_kernels import attend_split, combine_splits

H200 = GPUTarget("cuda", 90, 32)
GROUPED = KernelShape(group=4, key_dim=128, value_dim=128, window=4096, widen=False)
LATENT = KernelShape(group=128, key_dim=576, value_dim=512, window=0, widen=False)

_TYPES = {
    **dict.fromkeys(("q_ptr", "keys_ptr", "values_ptr", "out_ptr"), "*bf16"),
    **dict.fromkeys(("sequence_ptr", "lengths_ptr", "table_ptr"), "*i64"),
    **dict.fromkeys(("mixed_ptr", "peaks_ptr", "totals_ptr"), "*fp32"),
    "scale": "fp32",
}
"""All others that are no constants are strides."""


def main() -> None:
    for shape in (GROUPED, LATENT):
        _compile(attend_split, shape.constants_of_attend(), shape.options_of_attend())
    _compile(combine_splits, GROUPED.constants_of_combine(), {"enable_fp_fusion": True})


def _compile(kernel: Any, constants: Mapping[str, int], options: Mapping[str, int]) -> None:
    names = kernel.arg_names
    types = {n: "constexpr" if n in constants else _TYPES.get(n, "i32") for n in names}
    by_place = {(names.index(name),): value for name, value in constants.items()}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if types[name] in ("*bf16", "*fp32")
    }
    source = ASTSource(kernel, types, by_place, aligned)
    compiled = triton.compile(source, target=H200, options=dict(options))
    assert compiled.asm["cubin"]
    print(kernel.fn.__name__, compiled.metadata.shared)


if __name__ == "__main__":
    main()
