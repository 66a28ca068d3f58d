"""The update of the touched rows in one kernel: sum the gradients of each row, step its optimizer, write it back.

A row that many positions look up is summed by several programs first, in chunks and blocks of chunks. Formulas and
their order are those of `ett.trainer.sparse.row_optimizer`, divisions and roots are rounded correctly and nothing is
fused. Row-wise Adagrad's mean over a row is added up in the order of `tl.sum`, the same for every row of a table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels.segments import Chunks, RowGradients
from ett.trainer.kernels.triton_rows import added_in_order, tile_of
from ett.trainer.sparse.row_optimizer import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd, States

_SGD, _ADAGRAD, _ROWWISE_ADAGRAD, _ADAM, _SUM_ONLY = range(5)


@triton.jit
def _chunk_kernel(
    grads, rows, scale, starts, ends, out, num_chunks, num_columns,
    SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    chunks = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = chunks < num_chunks
    start = tl.load(starts + chunks, mask=live, other=0)
    end = tl.load(ends + chunks, mask=live, other=0)
    total = added_in_order(grads, rows, scale, start, end, columns, num_columns, SCALED, ROWS, COLUMNS)
    mask = (live & (start < end))[:, None] & (columns < num_columns)[None, :]
    tl.store(out + chunks[:, None] * num_columns + columns[None, :], total, mask=mask)


@triton.jit
def _update_kernel(
    grads, rows, scale, starts, count, first_chunk, first_block, numbers, chunk_sums, block_sums, slots,
    weights, state, state2, step_size, root, learning_rate, eps, keep1, keep2, take2, num_columns,
    KIND: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    segments = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = segments < tl.load(count)
    start = tl.load(starts + segments, mask=live, other=0)
    end = tl.load(starts + segments + 1, mask=live, other=0)
    chunk = tl.load(first_chunk + segments, mask=live, other=0)
    chunk_end = tl.load(first_chunk + segments + 1, mask=live, other=0)
    block = tl.load(first_block + segments, mask=live, other=0)
    block_end = tl.load(first_block + segments + 1, mask=live, other=0)
    # One of the three lists is added up; the others are empty, and x + 0.0 is x for every sum that began at 0.0.
    end = tl.where(chunk < chunk_end, start, end)
    chunk_end = tl.where(block < block_end, chunk, chunk_end)
    gradient = added_in_order(grads, rows, scale, start, end, columns, num_columns, SCALED, ROWS, COLUMNS)
    gradient += added_in_order(chunk_sums, numbers, scale, chunk, chunk_end, columns, num_columns, False, ROWS, COLUMNS)
    gradient += added_in_order(block_sums, numbers, scale, block, block_end, columns, num_columns, False, ROWS, COLUMNS)
    mask = live[:, None] & (columns < num_columns)[None, :]
    slot = tl.load(slots + segments, mask=live, other=0)
    at = slot[:, None] * num_columns + columns[None, :]
    if KIND == 4:
        tl.store(weights + segments[:, None] * num_columns + columns[None, :], gradient, mask=mask)
    else:
        weight = tl.load(weights + at, mask=mask, other=0.0)
        if KIND == 0:
            weight = weight - learning_rate * gradient
        elif KIND == 1:
            squares = tl.load(state + at, mask=mask, other=0.0) + gradient * gradient
            tl.store(state + at, squares, mask=mask)
            weight = weight - tl.div_rn(learning_rate * gradient, tl.sqrt_rn(squares) + eps)
        elif KIND == 2:
            mean = tl.div_rn(tl.sum(gradient * gradient, 1), tl.full((ROWS,), 0.0, tl.float32) + num_columns)
            squares = tl.load(state + slot, mask=live, other=0.0) + mean
            tl.store(state + slot, squares, mask=live)
            root_1 = (tl.sqrt_rn(squares) + eps)[:, None] + tl.zeros_like(gradient)
            weight = weight - tl.div_rn(learning_rate * gradient, root_1)
        else:
            size = tl.load(step_size + segments, mask=live, other=0.0)[:, None]
            correction = tl.load(root + segments, mask=live, other=1.0)[:, None] + tl.zeros_like(gradient)
            mean = tl.load(state + at, mask=mask, other=0.0)
            mean = mean + keep1 * (gradient - mean)
            square = tl.load(state2 + at, mask=mask, other=0.0)
            square = square * keep2 + take2 * gradient * gradient
            tl.store(state + at, mean, mask=mask)
            tl.store(state2 + at, square, mask=mask)
            weight = weight - tl.div_rn(mean * size, tl.div_rn(tl.sqrt_rn(square), correction) + eps)
        tl.store(weights + at, weight, mask=mask)


def sum_segments(gradients: RowGradients) -> Tensor:
    """Return float32 [L, D]; rows beyond the number of segments are undefined."""
    out = gradients.grads_BD.new_empty((len(gradients.bag_of_L), gradients.grads_BD.shape[1]))
    _launch(_SUM_ONLY, gradients, out)
    return out


def apply_gradients(
    optimizer: RowOptimizer, weights_RD: Tensor, states: States, gradients: RowGradients, learning_rate: float
) -> None:
    match optimizer:
        case Sgd():
            _launch(_SGD, gradients, weights_RD, learning_rate=learning_rate)
        case Adagrad(eps=eps):
            _launch(_ADAGRAD, gradients, weights_RD, states["momentum1"], learning_rate=learning_rate, eps=eps)
        case RowWiseAdagrad(eps=eps):
            _launch(_ROWWISE_ADAGRAD, gradients, weights_RD, states["momentum1"], learning_rate=learning_rate, eps=eps)
        case Adam():
            _step_adam(optimizer, weights_RD, states, gradients, learning_rate)
        case _:
            raise AssertionError(f"no kernel for {optimizer}")


def _step_adam(adam: Adam, weights_RD: Tensor, states: States, gradients: RowGradients, learning_rate: float) -> None:
    segments, steps = gradients.segments, states["step"].squeeze(1)
    is_live = torch.arange(len(segments.slots), device=weights_RD.device) < segments.count
    slots = torch.where(is_live, segments.slots, 0)
    steps.index_add_(0, slots, is_live.to(steps.dtype))
    step = steps[slots].to(torch.float64)
    _launch(
        *(_ADAM, gradients, weights_RD, states["exp_avg"], states["exp_avg_sq"]),
        step_size=(learning_rate / (1.0 - adam.beta1**step)).to(torch.float32),
        root=(1.0 - adam.beta2**step).sqrt().to(torch.float32),
        eps=adam.eps,
        betas=(adam.beta1, adam.beta2),
    )


def _launch(
    kind: int,
    gradients: RowGradients,
    weights: Tensor,
    *states: Tensor,
    step_size: Tensor | None = None,
    root: Tensor | None = None,
    learning_rate: float = 0.0,
    eps: float = 0.0,
    betas: tuple[float, float] = (0.0, 0.0),
) -> None:
    segments, grads = gradients.segments, gradients.grads_BD
    length, dim = len(gradients.bag_of_L), grads.shape[1]
    if not length:
        return
    rows, columns = tile_of(dim)
    tile = {"SCALED": gradients.scale_L is not None, "ROWS": rows, "COLUMNS": columns, "enable_fp_fusion": False}
    bags = gradients.bag_of_L[segments.order_L]
    scale = bags if gradients.scale_L is None else gradients.scale_L[segments.order_L]
    numbers = torch.arange(len(segments.chunks.starts), device=grads.device)
    chunk_sums = _sum_chunks(grads, bags, scale, segments.chunks, tile)
    block_sums = _sum_chunks(chunk_sums, numbers, numbers, segments.blocks, tile | {"SCALED": False})
    # A pointer that a kind of optimizer does not follow must be one all the same.
    state, state2 = (*states, weights, weights)[:2]
    keep1, keep2, take2 = 1.0 - betas[0], betas[1], 1.0 - betas[1]
    _update_kernel[(triton.cdiv(length, rows),)](
        *(grads, bags, scale, segments.starts, segments.count, segments.chunks.first, segments.blocks.first),
        *(numbers, chunk_sums, block_sums, segments.slots),
        *(weights, state, state2, weights if step_size is None else step_size, weights if root is None else root),
        *(learning_rate, eps, keep1, keep2, take2, dim),
        KIND=kind,
        **tile,
    )


def _sum_chunks(values: Tensor, rows: Tensor, scale: Tensor, chunks: Chunks, tile: dict[str, int]) -> Tensor:
    """Return float32 [bound, D]; undefined beyond the last chunk."""
    num_chunks, dim = len(chunks.starts), values.shape[1]
    sums = values.new_empty((num_chunks, dim))
    grid = (triton.cdiv(num_chunks, tile["ROWS"]),)
    _chunk_kernel[grid](values, rows, scale, chunks.starts, chunks.ends, sums, num_chunks, dim, **tile)
    return sums
