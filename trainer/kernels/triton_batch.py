"""Where the rows of a batch's ids are, and what is wrong with the batch, in one kernel each.

What is wrong is counted in words on the device, int64, which start at 0; nobody waits for them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.triton_rows import grid_of

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


def locate_rows(ids_L: Tensor, offsets: Tensor, of: FeatureRows, report: Tensor) -> tuple[Tensor, Tensor]:
    length, num_bags, num_features = len(ids_L), len(offsets) - 1, len(of.first_F)
    slots_L, row_L = torch.empty_like(ids_L, dtype=of.slot_type()), torch.empty_like(ids_L)
    if length:
        _locate_kernel[grid_of(length, _BLOCK)](
            *(ids_L, offsets, of.first_F, of.count_F, slots_L, row_L, report),
            *(length, num_bags, num_bags // num_features, num_features, num_bags.bit_length()),
            BLOCK=_BLOCK,
        )
    return slots_L, row_L


def count_not_finite(values: Tensor, report: Tensor) -> None:
    """Add to report[0] how many elements are not finite; values are contiguous."""
    if values.numel():
        grid = grid_of(values.numel(), _GRADIENTS)
        _not_finite_kernel[grid](values, report, values.numel(), BLOCK=_GRADIENTS)
