"""The row kernels in plain torch: what the Triton kernels compute, bit by bit where the order of a sum is given.

Shapes: R rows of a table, D elements of a row, L positions (lookups), B bags, U distinct rows, N rows of a list.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ett.trainer.kernels.feature_rows import FeatureRows
from ett.trainer.kernels.segments import CHUNK, RowGradients
from ett.trainer.sparse.row_optimizer import RowOptimizer, States


def gather_rows(table_RD: Tensor, slots_N: Tensor) -> Tensor:
    return table_RD.index_select(0, slots_N)


def scatter_rows(table_RD: Tensor, slots_N: Tensor, rows_ND: Tensor) -> None:
    table_RD.index_copy_(0, slots_N, rows_ND)


def pool_rows(table_RD: Tensor, slots_L: Tensor, offsets: Tensor, scale_L: Tensor | None, batch_size: int) -> Tensor:
    """Add up each bag in the order of its positions, one rounding an addition."""
    rows_LD = table_RD.index_select(0, slots_L)
    if scale_L is not None:
        rows_LD = rows_LD * scale_L[:, None]
    pooled = _added_in_order(rows_LD, offsets)
    return pooled.view(-1, batch_size, pooled.shape[1]).transpose(0, 1).reshape(pooled.shape) if batch_size else pooled


def locate_rows(ids_L: Tensor, offsets: Tensor, of: FeatureRows, report: Tensor) -> tuple[Tensor, Tensor]:
    num_features = len(of.first_F)
    batch_size = (len(offsets) - 1) // num_features
    position_L = torch.arange(len(ids_L), device=ids_L.device)
    bag_L = torch.searchsorted(offsets[1:], position_L, right=True)
    feature_L = bag_L // max(batch_size, 1)
    is_right_L = (ids_L >= 0) & (ids_L < of.count_F[feature_L])
    wrong = position_L[~is_right_L]
    if len(wrong):
        report[0] += len(wrong)
        report[1] = torch.maximum(report[1], len(ids_L) - wrong[0])
    slots_L = torch.where(is_right_L, ids_L + of.first_F[feature_L], 0).to(of.slot_type())
    return slots_L, bag_L % max(batch_size, 1) * num_features + feature_L


def count_not_finite(values: Tensor, report: Tensor) -> None:
    report[0] += (~torch.isfinite(values)).sum()


def sum_segments(gradients: RowGradients) -> tuple[Tensor, Tensor]:
    """Return the distinct slots, int64 [U], and float32 [U, D]: chunks of 32 positions in order, blocks of 32
    chunks, then a segment's blocks in order.
    """
    order, slots = gradients.segments.order_L, gradients.segments.slots_L
    sums = gradients.grads_BD.index_select(0, gradients.bag_of_L[order])
    if gradients.scale_L is not None:
        sums = sums * gradients.scale_L[order][:, None]
    slots_U, counts = torch.unique_consecutive(slots, return_counts=True)
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    for _ in range(2):
        pieces = (starts.diff() + CHUNK - 1) // CHUNK
        first = torch.nn.functional.pad(pieces.cumsum(0), (1, 0))
        of_piece = torch.repeat_interleave(pieces)
        within = torch.arange(len(of_piece), device=starts.device) - first[of_piece]
        sums = _added_in_order(sums, torch.cat([starts[of_piece] + within * CHUNK, starts[-1:]]))
        starts = first
    return slots_U.to(torch.int64), _added_in_order(sums, starts)


def _added_in_order(values_LD: Tensor, starts: Tensor) -> Tensor:
    """Return the sum of values_LD[starts[i] : starts[i + 1]] for each i, from zero, one addition after the other."""
    lengths = starts.diff()
    total = values_LD.new_zeros((len(lengths), values_LD.shape[1]))
    for step in range(int(lengths.max()) if len(lengths) else 0):
        some = torch.nonzero(lengths > step).squeeze(1)
        total[some] = total[some] + values_LD[starts[some] + step]
    return total


def apply_gradients(
    optimizer: RowOptimizer, weights_RD: Tensor, states: States, gradients: RowGradients, learning_rate: float
) -> None:
    if gradients.wrong is not None and bool(gradients.wrong.any()):
        return
    slots_U, sums_UD = sum_segments(gradients)
    device = weights_RD.device
    rows_UD = weights_RD[slots_U].cpu()  # the optimizers' own arithmetic is the host's
    states_L = gradients.segments.states_L
    at_U = slots_U if states_L is None else torch.unique_consecutive(states_L).to(torch.int64)
    of_rows = {name: state[at_U].cpu() for name, state in states.items()}
    optimizer.update(rows_UD, sums_UD.cpu(), of_rows, learning_rate)
    weights_RD[slots_U] = rows_UD.to(device)
    for name, state in of_rows.items():
        states[name][at_U] = state.to(device)
