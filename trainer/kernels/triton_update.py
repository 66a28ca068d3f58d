"""The update of the touched rows in one kernel: sum the gradients of each row, step its optimizer, write it back.

A row that many positions look up is summed by several programs first, in chunks and blocks of chunks. Formulas and
their order are those of `ett.trainer.sparse.row_optimizer`, divisions and roots are rounded correctly and nothing is
fused. Row-wise Adagrad's mean over a row is added up in the order of `tl.sum`, the same for every row of a table.

Positions are those of the sorted slots. A segment, chunk or block is known by its first position; the lists of these
are in no order, and no bit depends on it: what is summed from a position is kept by that position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels.segments import CHUNK, RowGradients
from ett.trainer.kernels.triton_rows import added_in_order, grid_of, power_of_two, tile_of
from ett.trainer.sparse.row_optimizer import Adagrad, Adam, RowOptimizer, RowWiseAdagrad, Sgd, States

_SGD, _ADAGRAD, _ROWWISE_ADAGRAD, _ADAM = range(4)
_BLOCK = 1024  # positions that a program looks for heads in


@triton.jit
def _run_length(slots, at, slot, stride, most, length, num_steps):
    """Return how many of at, at + stride, at + 2 stride, ... have the slot that `at` has: from 1 to `most`."""
    low = tl.zeros_like(at) + 1
    high = tl.zeros_like(at) + most
    step = tl.zeros((), tl.int32)
    while step < num_steps:
        step += 1
        middle = (low + high + 1) // 2
        place = at + (middle - 1) * stride
        is_open = low < high
        found = tl.load(slots + place, mask=is_open & (place < length), other=-1)
        is_in = is_open & (found == slot)
        is_out = is_open & (found != slot)
        low = tl.where(is_in, middle, low)
        high = tl.where(is_out, middle - 1, high)
    return low


@triton.jit
def _append(flags, values, list_, count):
    number = flags.to(tl.int32)
    begin = tl.atomic_add(count, tl.sum(number))
    tl.store(list_ + begin + tl.cumsum(number) - number, values, mask=flags)


@triton.jit
def _heads_kernel(
    slots, order, rows, scale, wrong, sorted_rows, sorted_scale, heads, chunk_heads, block_heads, counts,
    length, num_wrong, num_steps,
    SCALED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < length
    slot = tl.load(slots + at, mask=here, other=-1)
    position = tl.load(order + at, mask=here, other=0)
    tl.store(sorted_rows + at, tl.load(rows + position, mask=here, other=0), mask=here)
    if SCALED:
        tl.store(sorted_scale + at, tl.load(scale + position, mask=here, other=0.0), mask=here)
    word = tl.arange(0, WORDS)
    is_right = tl.max((tl.load(wrong + word, mask=word < num_wrong, other=0) != 0).to(tl.int32)) == 0
    live = here & is_right
    is_first = live & (tl.load(slots + at - 1, mask=live & (at > 0), other=-1) != slot)
    goes_on = tl.load(slots + at + CHUNK, mask=live & (at + CHUNK < length), other=-1) == slot
    goes_on_long = tl.load(slots + at + CHUNK * CHUNK, mask=live & (at + CHUNK * CHUNK < length), other=-1) == slot
    is_later = live & (tl.load(slots + at - CHUNK, mask=live & (at >= CHUNK), other=-1) == slot)
    # How far into its segment: searched for only where a chunk may begin that is not the first.
    rank = _run_length(slots, at, slot, -1, tl.where(is_later, at + 1, 1), length, num_steps) - 1
    _append(is_first, at, heads, counts)
    _append((is_first & goes_on) | (is_later & (rank % CHUNK == 0)), at, chunk_heads, counts + 1)
    _append((is_first & goes_on_long) | (is_later & (rank % (CHUNK * CHUNK) == 0)), at, block_heads, counts + 2)


@triton.jit
def _is_first(slots, at, slot):
    return (tl.load(slots + at - 1, mask=at > 0, other=-1) != slot).to(tl.int64)


@triton.jit
def _added_apart(values, first, rest, count, columns, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return [ROWS, COLUMNS]: values[first] + values[rest + 2] + values[rest + 4] + ..., `count` of them, from zero."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    longest = tl.max(count)
    step = tl.zeros_like(longest)
    while step < longest:
        row = tl.where(step == 0, first, rest + 2 * step)
        mask = (step < count)[:, None] & (columns < num_columns)[None, :]
        total += tl.load(values + row[:, None] * num_columns + columns[None, :], mask=mask, other=-0.0)
        step += 1
    return total


@triton.jit
def _chunk_kernel(
    grads, rows, scale, slots, chunk_heads, counts, out, length, num_columns,
    SCALED: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = number < tl.load(counts + 1)
    at = tl.load(chunk_heads + number, mask=live, other=0)
    slot = tl.load(slots + at)
    end = at + _run_length(slots, at, slot, 1, tl.where(live, CHUNK, 1), length, 5)
    end = tl.where(live, end, at)
    total = added_in_order(grads, rows, scale, at, end, columns, num_columns, SCALED, ROWS, COLUMNS)
    # Of CHUNK positions in a row at most two begin a chunk: the last one of a row, and the first one of the next.
    row = 2 * (at // CHUNK) + _is_first(slots, at, slot)
    mask = live[:, None] & (columns < num_columns)[None, :]
    tl.store(out + row[:, None] * num_columns + columns[None, :], total, mask=mask)


@triton.jit
def _block_kernel(
    chunk_sums, slots, block_heads, counts, out, length, num_columns,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = number < tl.load(counts + 2)
    at = tl.load(block_heads + number, mask=live, other=0)
    slot = tl.load(slots + at)
    count = _run_length(slots, at, slot, CHUNK, tl.where(live, CHUNK, 1), length, 5)
    count = tl.where(live, count, 0)
    is_first = _is_first(slots, at, slot)
    rest = 2 * (at // CHUNK)
    total = _added_apart(chunk_sums, rest + is_first, rest, count, columns, num_columns, ROWS, COLUMNS)
    row = 2 * (at // (CHUNK * CHUNK)) + is_first
    mask = live[:, None] & (columns < num_columns)[None, :]
    tl.store(out + row[:, None] * num_columns + columns[None, :], total, mask=mask)


@triton.jit
def _update_kernel(
    grads, rows, scale, slots, states, heads, counts, chunk_sums, block_sums, length, num_steps,
    weights, state, state2, step_size, root, learning_rate, eps, keep1, keep2, take2, num_columns,
    KIND: tl.constexpr, SCALED: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = number < tl.load(counts)
    head = tl.load(heads + number, mask=live, other=0)
    slot = tl.load(slots + head)
    goes_on = live & (tl.load(slots + head + CHUNK, mask=live & (head + CHUNK < length), other=-1) == slot)
    is_long = head + CHUNK * CHUNK < length
    is_long = live & (tl.load(slots + head + CHUNK * CHUNK, mask=live & is_long, other=-1) == slot)
    # One of three lists is added up; the others are empty, and x + 0.0 is x for every sum that began at 0.0.
    is_short = live & (goes_on == 0)
    end = head + _run_length(slots, head, slot, 1, tl.where(is_short, CHUNK, 1), length, 5)
    end = tl.where(is_short, end, head)
    gradient = added_in_order(grads, rows, scale, head, end, columns, num_columns, SCALED, ROWS, COLUMNS)
    is_medium = goes_on & (is_long == 0)
    count = _run_length(slots, head, slot, CHUNK, tl.where(is_medium, CHUNK, 1), length, 5)
    count = tl.where(is_medium, count, 0)
    rest = 2 * (head // CHUNK)
    gradient += _added_apart(chunk_sums, rest + 1, rest, count, columns, num_columns, ROWS, COLUMNS)
    most = tl.where(is_long, length // (CHUNK * CHUNK) + 1, 1)
    count = _run_length(slots, head, slot, CHUNK * CHUNK, most, length, num_steps)
    count = tl.where(is_long, count, 0)
    rest = 2 * (head // (CHUNK * CHUNK))
    gradient += _added_apart(block_sums, rest + 1, rest, count, columns, num_columns, ROWS, COLUMNS)
    mask = live[:, None] & (columns < num_columns)[None, :]
    at = slot.to(tl.int64)[:, None] * num_columns + columns[None, :]
    weight = tl.load(weights + at, mask=mask, other=0.0)
    row_state = tl.load(states + head).to(tl.int64)
    at_state = row_state[:, None] * num_columns + columns[None, :]
    if KIND == 0:
        weight = weight - learning_rate * gradient
    elif KIND == 1:
        squares = tl.load(state + at_state, mask=mask, other=0.0) + gradient * gradient
        tl.store(state + at_state, squares, mask=mask)
        weight = weight - tl.div_rn(learning_rate * gradient, tl.sqrt_rn(squares) + eps)
    elif KIND == 2:
        mean = tl.div_rn(tl.sum(gradient * gradient, 1), tl.full((ROWS,), 0.0, tl.float32) + num_columns)
        squares = tl.load(state + row_state, mask=live, other=0.0) + mean
        tl.store(state + row_state, squares, mask=live)
        root_1 = (tl.sqrt_rn(squares) + eps)[:, None] + tl.zeros_like(gradient)
        weight = weight - tl.div_rn(learning_rate * gradient, root_1)
    else:
        size = tl.load(step_size + number, mask=live, other=0.0)[:, None]
        correction = tl.load(root + number, mask=live, other=1.0)[:, None] + tl.zeros_like(gradient)
        mean = tl.load(state + at_state, mask=mask, other=0.0)
        mean = mean + keep1 * (gradient - mean)
        square = tl.load(state2 + at_state, mask=mask, other=0.0)
        square = square * keep2 + take2 * gradient * gradient
        tl.store(state + at_state, mean, mask=mask)
        tl.store(state2 + at_state, square, mask=mask)
        weight = weight - tl.div_rn(mean * size, tl.div_rn(tl.sqrt_rn(square), correction) + eps)
    tl.store(weights + at, weight, mask=mask)


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
    lists, states_L, steps = _lists_of(gradients), _states_of(gradients), states["step"].squeeze(1)
    is_live = torch.arange(len(states_L), device=weights_RD.device) < lists.counts[0]
    slots = torch.where(is_live, states_L[torch.where(is_live, lists.heads, 0)], 0)
    steps.index_add_(0, slots, is_live.to(steps.dtype))
    step = steps[slots].to(torch.float64)
    _launch(
        *(_ADAM, gradients, weights_RD, states["exp_avg"], states["exp_avg_sq"]),
        lists=lists,
        step_size=(learning_rate / (1.0 - adam.beta1**step)).to(torch.float32),
        root=(1.0 - adam.beta2**step).sqrt().to(torch.float32),
        eps=adam.eps,
        betas=(adam.beta1, adam.beta2),
    )


@dataclass(frozen=True, slots=True)
class _Lists:
    """First positions of segments, of their chunks if there are several, and of their blocks if there are several."""

    heads: Tensor  # int64 [L], of which counts[0] count
    chunk_heads: Tensor  # counts[1]
    block_heads: Tensor  # counts[2]
    counts: Tensor  # int32 [3]
    rows: Tensor  # int64 [L]: the bag of each sorted position
    scale: Tensor | None


def _lists_of(gradients: RowGradients) -> _Lists:
    slots, order = gradients.segments.slots_L, gradients.segments.order_L
    length, scale = len(slots), gradients.scale_L
    wrong = slots.new_zeros(1, dtype=torch.int64) if gradients.wrong is None else gradients.wrong
    lists = _Lists(
        heads=torch.empty_like(order),
        # More than CHUNK of a list make at least two pieces, so there are at most 2 / CHUNK as many.
        chunk_heads=order.new_empty(2 * length // CHUNK + 1),
        block_heads=order.new_empty(2 * length // CHUNK**2 + 1),
        counts=torch.zeros(3, dtype=torch.int32, device=slots.device),
        rows=torch.empty_like(order),
        scale=None if scale is None else torch.empty_like(scale),
    )
    if length:
        _heads_kernel[grid_of(length, _BLOCK)](
            *(slots, order, gradients.bag_of_L, order if scale is None else scale, wrong),
            *(lists.rows, lists.rows if lists.scale is None else lists.scale),
            *(lists.heads, lists.chunk_heads, lists.block_heads, lists.counts),
            *(length, len(wrong), length.bit_length()),
            SCALED=scale is not None,
            CHUNK=CHUNK,
            BLOCK=_BLOCK,
            WORDS=power_of_two(len(wrong)),
        )
    return lists


def _states_of(gradients: RowGradients) -> Tensor:
    segments = gradients.segments
    return segments.slots_L if segments.states_L is None else segments.states_L


def _launch(
    kind: int,
    gradients: RowGradients,
    weights: Tensor,
    *states: Tensor,
    lists: _Lists | None = None,
    step_size: Tensor | None = None,
    root: Tensor | None = None,
    learning_rate: float = 0.0,
    eps: float = 0.0,
    betas: tuple[float, float] = (0.0, 0.0),
) -> None:
    grads, slots = gradients.grads_BD, gradients.segments.slots_L
    length, dim = len(slots), grads.shape[1]
    if not length:
        return
    lists = _lists_of(gradients) if lists is None else lists
    rows, columns = tile_of(dim)
    tile = {"CHUNK": CHUNK, "ROWS": rows, "COLUMNS": columns, "enable_fp_fusion": False}
    scale, is_scaled = (lists.rows, False) if lists.scale is None else (lists.scale, True)
    chunk_sums = grads.new_empty((2 * (length // CHUNK + 1), dim))
    _chunk_kernel[grid_of(len(lists.chunk_heads), rows)](
        *(grads, lists.rows, scale, slots, lists.chunk_heads, lists.counts, chunk_sums, length, dim),
        SCALED=is_scaled,
        **tile,
    )
    block_sums = grads.new_empty((2 * (length // CHUNK**2 + 1), dim))
    _block_kernel[grid_of(len(lists.block_heads), rows)](
        chunk_sums, slots, lists.block_heads, lists.counts, block_sums, length, dim, **tile
    )
    # A pointer that a kind of optimizer does not follow must be one all the same.
    state, state2 = (*states, weights, weights)[:2]
    keep1, keep2, take2 = 1.0 - betas[0], betas[1], 1.0 - betas[1]
    _update_kernel[grid_of(length, rows)](
        *(grads, lists.rows, scale, slots, _states_of(gradients), lists.heads, lists.counts, chunk_sums, block_sums),
        *(length, (length // CHUNK**2 + 1).bit_length()),
        *(weights, state, state2, weights if step_size is None else step_size, weights if root is None else root),
        *(learning_rate, eps, keep1, keep2, take2, dim),
        KIND=kind,
        SCALED=is_scaled,
        **tile,
    )
