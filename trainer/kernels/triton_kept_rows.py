"""The kernels of `kept_rows.py` in Triton. Where in the ring a row stands may differ from run to run."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels import kept_rows
from ett.trainer.kernels.kept_rows import Ring, RowBits, Updated
from ett.trainer.kernels.triton_rows import grid_of, power_of_two, tile_of

_KEPT, _LAUNCH = tl.constexpr(kept_rows.KEPT), tl.constexpr(kept_rows.LAUNCH)
_BLOCK = 1024


@triton.jit
def _copy_words(table, slot, ring, place, width, COLUMNS: tl.constexpr):
    """Copy the rows whose place is not negative."""
    columns = tl.arange(0, COLUMNS)
    mask = (place >= 0)[:, None] & (columns < width)[None, :]
    values = tl.load(table + slot[:, None] * width + columns[None, :], mask=mask)
    tl.store(ring + place[:, None] * width + columns[None, :], values, mask=mask)


@triton.jit(do_not_specialize=["begin", "end", "launch"])
def _note_update_kernel(
    slots, states, row_of_slot, changed, wanted, wrong, ring_rows, words, capacity, begin, end, launch, num_wrong,
    table0, ring0, width0, table1, ring1, width1, table2, ring2, width2, table3, ring3, width3,
    WORDS: tl.constexpr, CACHED: tl.constexpr, KEEP: tl.constexpr, NUM_TABLES: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS0: tl.constexpr, COLUMNS1: tl.constexpr, COLUMNS2: tl.constexpr, COLUMNS3: tl.constexpr,
):  # fmt: skip
    at = begin + tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, WORDS)
    is_right = tl.max((tl.load(wrong + word, mask=word < num_wrong, other=0) != 0).to(tl.int32)) == 0
    live = (at < end) & is_right
    slot = tl.load(slots + at, mask=live, other=0).to(tl.int64)
    before = tl.load(slots + at - 1, mask=live & (at > 0), other=-1).to(tl.int64)
    is_first = live & (slot != before)
    row = slot
    if CACHED:
        row = tl.load(row_of_slot + slot, mask=is_first, other=0)
    bit = tl.full((ROWS,), 1, tl.int32) << (row % 32).to(tl.int32)
    tl.atomic_or(changed + row // 32, bit, mask=is_first)
    if KEEP:
        if tl.program_id(0) == 0:
            tl.store(words + _LAUNCH, launch.to(tl.int64))
        old = tl.atomic_and(wanted + row // 32, ~bit, mask=is_first)
        is_wanted = is_first & ((old & bit) != 0)
        ones = is_wanted.to(tl.int32)
        count = tl.sum(ones, 0)
        if count > 0:
            first = tl.atomic_add(words + _KEPT, count.to(tl.int64))
            place = (first + tl.cumsum(ones, 0) - 1) % capacity
            tl.store(ring_rows + place, row, mask=is_wanted)
            place = tl.where(is_wanted, place, -1)
            _copy_words(table0, slot, ring0, place, width0, COLUMNS0)
            if NUM_TABLES > 1:
                state = tl.load(states + at, mask=live, other=0).to(tl.int64)
                _copy_words(table1, state, ring1, place, width1, COLUMNS1)
                if NUM_TABLES > 2:
                    _copy_words(table2, state, ring2, place, width2, COLUMNS2)
                    if NUM_TABLES > 3:
                        _copy_words(table3, state, ring3, place, width3, COLUMNS3)


@triton.jit
def _claim_kernel(rows, wanted, words, out, num_rows, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < num_rows
    row = tl.load(rows + at, mask=live, other=0)
    bit = tl.full((BLOCK,), 1, tl.int32) << (row % 32).to(tl.int32)
    old = tl.atomic_and(wanted + row // 32, ~bit, mask=live)
    tl.store(out + at, ((old & bit) != 0).to(tl.int64), mask=live)
    tl.debug_barrier()
    # After the bits: a row that was lost was put into the ring by this launch, by one before, or by the next.
    tl.atomic_max(out + num_rows, tl.load(words + _LAUNCH, volatile=True))


@triton.jit
def _merge_kernel(words, others, length, AND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    other = tl.load(others + at, mask=at < length, other=0)
    if AND:
        tl.atomic_and(words + at, other, mask=at < length)
    else:
        tl.atomic_or(words + at, other, mask=at < length)


@triton.jit
def _peek_kernel(
    rows, slot_of_row, cached, out, places, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = at < num_rows
    row = tl.load(rows + at, mask=live, other=0)
    place = tl.load(slot_of_row + row, mask=live, other=-1)
    tl.store(places + at, place, mask=live)
    slot = place.to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    mask = (slot >= 0)[:, None] & (columns < num_columns)[None, :]
    values = tl.load(cached + slot[:, None] * num_columns + columns[None, :], mask=mask)
    tl.store(out + at[:, None] * num_columns + columns[None, :], values, mask=mask)


def note_update(updated: Updated, bits: RowBits, ring: Ring | None, launch: int) -> None:
    count = updated.end - updated.begin
    if not count:
        return
    slots, tables = updated.segments.slots_L, updated.columns
    states = slots if updated.segments.states_L is None else updated.segments.states_L
    wrong, num_wrong = (slots, 0) if updated.wrong is None else (updated.wrong, len(updated.wrong))
    rings = tables if ring is None else ring.columns
    arguments, tile = [], 1 << 12
    columns = [1] * (1 + kept_rows.MAX_STATES)
    for number in range(1 + kept_rows.MAX_STATES):
        at = number if number < len(tables) else 0
        rows, columns[number] = tile_of(tables[at].shape[1])
        tile = min(tile, rows)
        arguments += [tables[at], rings[at], tables[at].shape[1]]
    tile = tile if ring is not None else _BLOCK
    _note_update_kernel[grid_of(count, tile)](
        *(slots, states, slots if updated.row_of_slot is None else updated.row_of_slot, bits.changed, bits.wanted),
        *(wrong, slots if ring is None else ring.rows, slots if ring is None else ring.words),
        *(1 if ring is None else ring.capacity, updated.begin, updated.end, launch, num_wrong, *arguments),
        WORDS=power_of_two(max(1, num_wrong)),
        CACHED=updated.row_of_slot is not None,
        KEEP=ring is not None,
        NUM_TABLES=len(tables),
        ROWS=tile,
        **{f"COLUMNS{number}": each for number, each in enumerate(columns)},
    )


def claim(rows_N: Tensor, wanted: Tensor, words: Tensor, out: Tensor) -> None:
    out[-1:].zero_()
    if len(rows_N):
        _claim_kernel[grid_of(len(rows_N), _BLOCK)](rows_N, wanted, words, out, len(rows_N), BLOCK=_BLOCK)


def merge(words: Tensor, others: Tensor, *, is_and: bool) -> None:
    if len(words):
        _merge_kernel[grid_of(len(words), _BLOCK)](words, others, len(words), AND=is_and, BLOCK=_BLOCK)


def peek(rows_N: Tensor, slot_of_row: Tensor, cached_CW: Tensor, out_NW: Tensor, places_N: Tensor) -> None:
    if not len(rows_N):
        return
    rows, columns = tile_of(cached_CW.shape[1])
    _peek_kernel[grid_of(len(rows_N), rows)](
        *(rows_N, slot_of_row, cached_CW, out_NW, places_N, len(rows_N), cached_CW.shape[1]),
        ROWS=rows,
        COLUMNS=columns,
    )
