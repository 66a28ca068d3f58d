"""Run as a program, without the interpreter: compile every kernel for an H200. No GPU is needed. Prints what failed."""

from __future__ import annotations

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ett.trainer.kernels import triton_index, triton_rows, triton_update

H200 = GPUTarget("cuda", 90, 32)
INTS = ("num_rows", "num_bags", "num_chunks", "num_columns", "num_ids", "batch_size")
NUMBERS = ("key", "first_id")
LONGS = ("slots", "offsets", "rows", "starts", "ends", "count", "source_rows", "target_rows")
LONGS += ("first_chunk", "first_block", "numbers")
FLOATS = ("learning_rate", "eps", "keep1", "keep2", "take2", "half_width", "middle")


def kind_of(name: str, *, of_index: bool) -> str:
    if name in INTS:
        return "i32"
    if name in FLOATS:
        return "fp32"
    if name in NUMBERS:
        return "i64"
    if of_index:
        return {"state": "*i32", "mask": "i64"}.get(name, "*i64")
    return "*i64" if name in LONGS else "*fp32"


def fails(kernel: triton.JITFunction, constants: dict[str, int], *, is_aligned: bool, of_index: bool = False) -> bool:
    kinds = {name: "constexpr" if name in constants else kind_of(name, of_index=of_index) for name in kernel.arg_names}
    # What the launcher tells of every pointer from torch, and of a number of columns that is a multiple of 16.
    aligned = [
        i for i, (name, kind) in enumerate(kinds.items()) if kind[0] == "*" or (is_aligned and name == "num_columns")
    ]
    attrs = {(i,): [["tt.divisibility", 16]] for i in aligned}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=constants, attrs=attrs)
    try:
        triton.compile(source, target=H200, options={"enable_fp_fusion": False})
    except Exception as err:  # noqa: BLE001 - the compiler has no class of its own for what it cannot do
        print(kernel.__name__, constants, err)
        return True
    return False


def main() -> None:
    failed = 0
    for dim in map(int, sys.argv[1:]):
        rows, columns = triton_rows.tile_of(dim)
        tile = {"ROWS": rows, "COLUMNS": columns}
        is_aligned = dim % 16 == 0
        failed += fails(triton_rows._fill_kernel, tile, is_aligned=is_aligned)
        for gather in (0, 1):
            failed += fails(triton_rows._copy_kernel, tile | {"GATHER": gather}, is_aligned=is_aligned)
        for scaled in (0, 1):
            failed += fails(triton_rows._pool_kernel, tile | {"SCALED": scaled}, is_aligned=is_aligned)
            failed += fails(triton_update._chunk_kernel, tile | {"SCALED": scaled}, is_aligned=is_aligned)
        for kind in range(5):
            failed += fails(triton_update._update_kernel, tile | {"SCALED": 1, "KIND": kind}, is_aligned=is_aligned)
    failed += fails(triton_index._insert_kernel, {"BLOCK": 256}, is_aligned=False, of_index=True)
    for erase in (0, 1):
        failed += fails(triton_index._find_kernel, {"BLOCK": 256, "ERASE": erase}, is_aligned=False, of_index=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
