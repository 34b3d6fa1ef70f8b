"""Compiles the Triton kernels for an H200 (compute capability 9.0), which needs no GPU.

    python -m tests.support.kernel_compiler

The interpreter runs kernels as Python and takes much that the compiler does not. Prints a line per
kernel and shape: its name and the bytes of shared memory that a block takes. Run it in a process
without TRITON_INTERPRET: kernels are made for one or the other when they are imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider_worker.attention.triton_decode import kernel_options, tile
from outrider_worker.attention.triton_kernels import attend_split, combine_splits

H200 = GPUTarget("cuda", 90, 32)
_COMMON = {"PAGE_TOKENS": 64, "SPLITS": 8, "SPLIT_PAGES": 4}
_POINTERS = {
    "sequence_ptr": "*i64",
    "lengths_ptr": "*i64",
    "table_ptr": "*i64",
    "mixed_ptr": "*fp32",
    "peaks_ptr": "*fp32",
    "totals_ptr": "*fp32",
    "scale": "fp32",
}


def main() -> None:
    for group, key_dim, value_dim, window in ((4, 128, 128, 0), (128, 576, 512, 4096)):
        sizes = {"GROUP": group, "KEY_DIM": key_dim, "VALUE_DIM": value_dim, "WINDOW": window}
        tiles = {"HEAD_TILE": 16, "KEY_TILE": tile(min(key_dim, 128)), "VALUE_TILE": tile(value_dim)}
        options = kernel_options(value_dim)
        _compile(attend_split, {**_COMMON, **sizes, **tiles, "WIDEN": False}, options)
    _compile(combine_splits, {**_COMMON, "VALUE_DIM": 128, "VALUE_TILE": 128, "WINDOW": 0}, {})


def _compile(kernel: Any, constants: Mapping[str, int], options: Mapping[str, Any]) -> None:
    """Runtime integers are strides; other pointers are to bfloat16, and aligned."""
    names = kernel.arg_names
    types = {
        name: "constexpr"
        if name in constants
        else _POINTERS.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in names
    }
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in constants}
    del aligned[(names.index("scale"),)] if "scale" in names else {}
    source = ASTSource(kernel, types, constexprs, aligned)
    compiled = triton.compile(source, target=H200, options=dict(options))
    assert compiled.asm["cubin"]
    print(kernel.fn.__name__, compiled.metadata.shared)


if __name__ == "__main__":
    main()
