"""Where the rows of a batch's ids are, and what is wrong with the batch, in one kernel each.

What is wrong is counted in words on the device, int64, which start at 0; nobody waits for them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_GRADIENTS = 8192  # elements that a program checks


@triton.jit
def _locate_kernel(
    ids, offsets, first_rows, num_rows, slots, rows, report, length, num_bags, batch_size, num_features, num_steps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    # The bag of a position is the number of bags that end at or before it.
    low = tl.zeros((BLOCK,), tl.int64)
    high = low + num_bags - 1
    step = tl.zeros((), tl.int32)
    while step < num_steps:
        step += 1
        middle = (low + high) // 2
        is_after = (low < high) & (tl.load(offsets + middle + 1) <= at)
        is_here = (low < high) & (is_after == 0)
        low = tl.where(is_after, middle + 1, low)
        high = tl.where(is_here, middle, high)
    feature = low // batch_size
    row_id = tl.load(ids + at, mask=live, other=0)
    limit = tl.load(num_rows + feature)
    is_right = (row_id >= 0) & (row_id < limit)
    slot = tl.where(is_right, row_id + tl.load(first_rows + feature), 0)
    tl.store(slots + at, slot.to(slots.dtype.element_ty), mask=live)
    tl.store(rows + at, low % batch_size * num_features + feature, mask=live)
    is_wrong = live & (is_right == 0)
    count = tl.sum(is_wrong.to(tl.int64))
    if count > 0:
        tl.atomic_add(report, count)
        tl.atomic_max(report + 1, tl.max(tl.where(is_wrong, length - at, 0)))


@triton.jit
def _not_finite_kernel(values, report, length, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + at, mask=at < length, other=0.0)
    count = tl.sum(((tl.abs(value) < float("inf")) == 0).to(tl.int64))
    if count > 0:
        tl.atomic_add(report, count)


def locate_rows(
    ids_L: Tensor, offsets: Tensor, first_rows_F: Tensor, num_rows_F: Tensor, slots_L: Tensor, row_L: Tensor,
    report: Tensor,
) -> None:  # fmt: skip
    """See `ett.trainer.kernels.rows.locate_rows`."""
    num_bags, num_features = len(offsets) - 1, len(first_rows_F)
    if len(ids_L):
        _locate_kernel[(triton.cdiv(len(ids_L), _BLOCK),)](
            *(ids_L, offsets, first_rows_F, num_rows_F, slots_L, row_L, report),
            *(len(ids_L), num_bags, num_bags // num_features, num_features, num_bags.bit_length()),
            BLOCK=_BLOCK,
        )


def count_not_finite(values: Tensor, report: Tensor) -> None:
    """Add to report[0] how many elements are not finite; values are contiguous."""
    if values.numel():
        grid = (triton.cdiv(values.numel(), _GRADIENTS),)
        _not_finite_kernel[grid](values, report, values.numel(), BLOCK=_GRADIENTS)
