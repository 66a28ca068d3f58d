"""Gather, scatter, pool and segment kernels in Triton: several rows a program, every sum in a given order.

No autotuning: the shape of a program decides the order in which a row-wise sum is added up, and the same row must get
the same bits in every run. Fused multiply-add is off for the same reason: the CPU's reference has none.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE = 2048  # elements a program handles at once: 32 rows of 64


@triton.jit
def added_in_order(
    values,
    rows,
    scale,
    start,
    end,
    columns,
    num_columns,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Return [ROWS, COLUMNS]: values[rows[start + 0]] + values[rows[start + 1]] + ..., from zero, in this order."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    longest = tl.max(end - start)
    step = tl.zeros_like(longest)
    while step < longest:
        here = start + step < end
        # Not masked by `here`: Triton 3.6 fails to compile a condition that is used in one dimension and in two.
        position = tl.maximum(tl.minimum(start + step, end - 1), 0)
        row = tl.load(rows + position).to(tl.int64)
        mask = here[:, None] & (columns < num_columns)[None, :]
        # x + -0.0 is x for every x, so a bag that has ended stays as it is.
        found = tl.load(values + row[:, None] * num_columns + columns[None, :], mask=mask, other=-0.0)
        if SCALED:
            found = found * tl.load(scale + position)[:, None]
        total += found
        step += 1
    return total


@triton.jit
def _copy_kernel(
    source,
    source_rows,
    target,
    target_rows,
    num_rows,
    num_columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GATHER: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = rows < num_rows
    if GATHER:
        read, write = tl.load(source_rows + rows, mask=live, other=0).to(tl.int64), rows
    else:
        read, write = rows, tl.load(target_rows + rows, mask=live, other=0).to(tl.int64)
    mask = live[:, None] & (columns < num_columns)[None, :]
    values = tl.load(source + read[:, None] * num_columns + columns[None, :], mask=mask)
    tl.store(target + write[:, None] * num_columns + columns[None, :], values, mask=mask)


@triton.jit
def _pool_kernel(
    table,
    slots,
    offsets,
    scale,
    out,
    num_bags,
    batch_size,
    num_columns,
    SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    bags = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = bags < num_bags
    start = tl.load(offsets + bags, mask=live, other=0)
    end = tl.load(offsets + bags + 1, mask=live, other=0)
    total = added_in_order(table, slots, scale, start, end, columns, num_columns, SCALED, ROWS, COLUMNS)
    mask = live[:, None] & (columns < num_columns)[None, :]
    # Bags come feature by feature, and go example by example.
    row = (bags % batch_size) * (num_bags // batch_size) + bags // batch_size
    tl.store(out + row[:, None] * num_columns + columns[None, :], total, mask=mask)


@triton.jit
def _fill_kernel(
    out, key, first_id, num_rows, num_columns, half_width, middle, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Initial rows as `ett.trainer.sparse.hashing.RowInit` gives them, by its formula."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    row_key = mix((rows + first_id).to(tl.uint64) ^ key.to(tl.uint64))
    word = mix(row_key[:, None] + (columns + 1).to(tl.uint64)[None, :] * 0x9E3779B97F4A7C15)
    unit = (word >> 40).to(tl.int32).to(tl.float32) * 1.1920928955078125e-07 - 1.0
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    tl.store(out + rows[:, None] * num_columns + columns[None, :], unit * half_width + middle, mask=mask)


@triton.jit
def mix(word):
    """The finaliser of splitmix64, as `ett.checkpoint.digest.mix`."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    return word ^ (word >> 31)


def fill_initial_rows(out_ND: Tensor, key: int, first_id: int, scale: float, middle: float) -> None:
    """Args: key: of the `RowInit`, as int64."""
    count, dim = out_ND.shape
    if count:
        rows, columns = tile_of(dim)
        _fill_kernel[grid_of(count, rows)](
            *(out_ND, key, first_id, count, dim, scale, middle), ROWS=rows, COLUMNS=columns, enable_fp_fusion=False
        )


def gather_rows(table_RD: Tensor, slots_N: Tensor, out_ND: Tensor) -> None:
    _copy(table_RD, slots_N, out_ND, slots_N, len(slots_N), is_gather=True)


def scatter_rows(table_RD: Tensor, slots_N: Tensor, rows_ND: Tensor) -> None:
    _copy(rows_ND, slots_N, table_RD, slots_N, len(slots_N), is_gather=False)


def _copy(
    source: Tensor, source_rows: Tensor, target: Tensor, target_rows: Tensor, count: int, *, is_gather: bool
) -> None:
    if not count:
        return
    dim = source.shape[1]
    rows, columns = tile_of(dim)
    grid = grid_of(count, rows)
    _copy_kernel[grid](
        source, source_rows, target, target_rows, count, dim, ROWS=rows, COLUMNS=columns, GATHER=is_gather
    )


def pool_rows(table_RD: Tensor, slots_L: Tensor, offsets: Tensor, scale_L: Tensor | None, batch_size: int) -> Tensor:
    num_bags, dim = len(offsets) - 1, table_RD.shape[1]
    out = table_RD.new_empty((num_bags, dim))
    if num_bags:
        rows, columns = tile_of(dim)
        scale = slots_L if scale_L is None else scale_L
        _pool_kernel[grid_of(num_bags, rows)](
            *(table_RD, slots_L, offsets, scale, out, num_bags, batch_size, dim),
            SCALED=scale_L is not None,
            ROWS=rows,
            COLUMNS=columns,
            enable_fp_fusion=False,
        )
    return out


# Triton's own functions for these take 13 us a call on the host.
def grid_of(count: int, block: int) -> tuple[int]:
    """Return the programs that it takes to handle `count` things, `block` each."""
    return (-(-count // block),)


def power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def tile_of(dim: int) -> tuple[int, int]:
    """Return the rows and columns of a program's tile, powers of two."""
    columns = power_of_two(dim)
    return max(1, _TILE // columns), columns
