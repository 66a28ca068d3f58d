"""The kernels of `slot_map.py` in Triton. Whether anything has to leave the cache is known on the device alone.

Which of the free slots a row gets may differ from run to run where several programs free slots at once; which rows
leave, and every value, do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ett.trainer.kernels import slot_map
from ett.trainer.kernels.segments import Segments
from ett.trainer.kernels.slot_map import EVICTED_AHEAD, TOLD_HEADER, Found, SlotMap, Staged
from ett.trainer.kernels.triton_rows import grid_of, tile_of

_NUM_FREE = tl.constexpr(slot_map.NUM_FREE)
_BEGIN, _END = tl.constexpr(slot_map.BEGIN), tl.constexpr(slot_map.END)
_CUTOFF, _OLDEST, _CURSOR = tl.constexpr(slot_map.CUTOFF), tl.constexpr(slot_map.OLDEST), tl.constexpr(slot_map.CURSOR)
_NUM_MISSING, _NUM_DONE = tl.constexpr(slot_map.NUM_MISSING), tl.constexpr(slot_map.NUM_DONE)
_LOOKED_UP, _MISSED = tl.constexpr(slot_map.LOOKED_UP), tl.constexpr(slot_map.MISSED)
_FREE, _BINS = tl.constexpr(slot_map.FREE), tl.constexpr(slot_map.BINS)

_BLOCK = 1024
_AT_ONCE = 4096  # slots or rows that a program looks through
# Rows of 256 bytes, sorted, over PCIe 5 from 25.6 GB of host memory, on an H200: with 128 KiB under way 18 GB/s, with
# 256 KiB 27, with 512 KiB 18 again. Few programs with many rows each have them under way, and leave the other
# multiprocessors to the batch that trains.
_EXCHANGE_PROGRAMS, _EXCHANGE_TILES, _EXCHANGE_WARPS = 8, 4, 16
_PROGRAMS = 128  # where rows stay within the device's memory: about one for each multiprocessor


@triton.jit(do_not_specialize=["now"])
def _probe_kernel(rows, slot_of_row, last_used, missing, words, length, now, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    row = tl.load(rows + at, mask=live, other=0)
    is_first = live & (tl.load(rows + at - 1, mask=live & (at > 0), other=-1) != row)
    slot = tl.load(slot_of_row + row, mask=live, other=0)
    stamp = tl.zeros((BLOCK,), tl.int64) + now
    tl.store(last_used + slot, stamp, mask=is_first & (slot >= 0))
    is_missing = is_first & (slot < 0)
    ones = is_missing.to(tl.int32)
    first = tl.atomic_add(words + _NUM_MISSING, tl.sum(ones).to(tl.int64))
    tl.store(missing + first + tl.cumsum(ones) - 1, at, mask=is_missing)
    tl.atomic_add(words + _LOOKED_UP, tl.sum(is_first.to(tl.int64)))


@triton.jit(do_not_specialize=["in_flight"])
def _plan_kernel(
    last_used, words, histogram, num_short, num_slots, in_flight, evicted_ahead,
    BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the slots by last use if rows have to leave; the last program decides which."""
    num_missing, num_free = tl.load(words + _NUM_MISSING), tl.load(words + _NUM_FREE)
    oldest = tl.load(words + _OLDEST)
    width = (in_flight - oldest) // BINS + 1
    if num_missing > num_free:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        stamp = tl.load(last_used + at, mask=at < num_slots, other=_FREE)
        # Half of the bins are for what stays.
        of = tl.where(stamp < in_flight, (stamp - oldest) // width, BINS).to(tl.int32)
        found = tl.histogram(of, 2 * BINS)
        all_bins = tl.arange(0, 2 * BINS)
        tl.atomic_add(histogram + all_bins, found, mask=(all_bins < BINS) & (found > 0))
    tl.debug_barrier()  # a program counts as done when all of its threads have counted
    if tl.atomic_add(words + _NUM_DONE, 1) == tl.num_programs(0) - 1:
        bins = tl.arange(0, BINS)
        # From where the other programs' counts are: not from this multiprocessor's own cache.
        counts = tl.load(histogram + bins, cache_modifier=".cg").to(tl.int64)
        wanted = num_missing - num_free
        wanted = tl.where(wanted > 0, tl.maximum(wanted, evicted_ahead), 0)
        leaves = tl.cumsum(counts, 0) - counts < wanted
        end = num_free + tl.sum(tl.where(leaves, counts, 0))
        cutoff = tl.minimum(oldest + tl.sum(leaves.to(tl.int64)) * width, in_flight)
        is_placed = end >= num_missing
        tl.store(num_short, num_missing - end, mask=is_placed == 0)
        tl.store(words + _BEGIN, num_free)
        tl.store(words + _END, end)
        tl.store(words + _CURSOR, num_free)
        tl.store(words + _CUTOFF, cutoff)
        tl.store(words + _OLDEST, cutoff)
        tl.store(words + _NUM_FREE, tl.where(is_placed, end - num_missing, end))
        tl.store(words + _MISSED, tl.load(words + _MISSED) + num_missing)
        tl.store(words + _NUM_MISSING, 0)
        tl.store(words + _NUM_DONE, 0)
        tl.store(histogram + bins, tl.zeros((BINS,), tl.int32))


@triton.jit
def _evict_kernel(slot_of_row, last_used, free, words, num_rows, BLOCK: tl.constexpr):
    """Look through the rows, not the slots: rows that are written down in their order come about twice as fast."""
    if tl.load(words + _END) > tl.load(words + _BEGIN):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        slot = tl.load(slot_of_row + row, mask=row < num_rows, other=-1)
        leaves = tl.load(last_used + slot, mask=slot >= 0, other=_FREE) < tl.load(words + _CUTOFF)
        ones = leaves.to(tl.int32)
        count = tl.sum(ones, 0)
        if count > 0:
            first = tl.atomic_add(words + _CURSOR, count.to(tl.int64))
            tl.store(free + first + tl.cumsum(ones, 0) - 1, slot, mask=leaves)
            tl.store(last_used + slot, tl.full((BLOCK,), _FREE, tl.int64), mask=leaves)
            tl.store(slot_of_row + row, tl.full((BLOCK,), -1, tl.int32), mask=leaves)


@triton.jit(do_not_specialize=["room_in", "room_out"])
def _list_kernel(
    free, row_of_slot, rows, missing, words, told, room_in, room_out, HEADER: tl.constexpr, BLOCK: tl.constexpr
):
    begin, end, first = tl.load(words + _BEGIN), tl.load(words + _END), tl.load(words + _NUM_FREE)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    comes = (at < end - first) & (at < room_in)
    new_row = tl.load(rows + tl.load(missing + at, mask=comes, other=0), mask=comes, other=0)
    tl.store(told + HEADER + at, new_row.to(tl.int64), mask=comes)
    leaves = (at < end - begin) & (at < room_out)
    slot = tl.load(free + begin + at, mask=leaves, other=0)
    tl.store(told + HEADER + room_in + at, tl.load(row_of_slot + slot, mask=leaves, other=0), mask=leaves)
    if tl.program_id(0) == 0:
        tl.store(told, end - first)
        tl.store(told + 1, end - begin)
        tl.store(told + 2, room_in)
        tl.store(told + 3, room_out)


@triton.jit(do_not_specialize=["room_out"])
def _lift_kernel(cached, free, words, out, room_out, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.arange(0, COLUMNS)
    begin = tl.load(words + _BEGIN)
    count = tl.minimum(tl.load(words + _END) - begin, room_out)
    block = tl.program_id(0).to(tl.int64)
    while block * ROWS < count:
        at = block * ROWS + tl.arange(0, ROWS)
        slot = tl.load(free + begin + at, mask=at < count, other=0).to(tl.int64)
        mask = (at < count)[:, None] & (columns < num_columns)[None, :]
        row = tl.load(cached + slot[:, None] * num_columns + columns[None, :], mask=mask)
        tl.store(out + at[:, None] * num_columns + columns[None, :], row, mask=mask)
        block += tl.num_programs(0)


@triton.jit(do_not_specialize=["room_in", "room_out", "now"])
def _exchange_kernel(
    cached, below, come, free, row_of_slot, slot_of_row, last_used, rows, missing, words,
    room_in, room_out, num_columns, now,
    IS_LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Both ways at once: a program has the same slots when they are left and when they are filled."""
    columns = tl.arange(0, COLUMNS)
    begin, end, first = tl.load(words + _BEGIN), tl.load(words + _END), tl.load(words + _NUM_FREE)
    block = tl.minimum(begin, first) // ROWS + tl.program_id(0)
    while block * ROWS < end:
        at = block * ROWS + tl.arange(0, ROWS)
        leaves = (at >= begin + room_out) & (at < end)
        comes = (at >= first) & (at < end)
        number = end - 1 - at
        is_column = (columns < num_columns)[None, :]
        slot = tl.load(free + at, mask=leaves | comes, other=0).to(tl.int64)
        in_cache = cached + slot[:, None] * num_columns + columns[None, :]
        position = tl.load(missing + number, mask=comes, other=0)
        old_row = tl.load(row_of_slot + slot, mask=leaves, other=0)
        new_row = tl.load(rows + position, mask=comes, other=0).to(tl.int64)
        is_staged = (comes & (number < room_in))[:, None] & is_column
        staged = tl.load(come + number[:, None] * num_columns + columns[None, :], mask=is_staged)
        is_below = (comes & (number >= room_in))[:, None] & is_column
        new = tl.load(below + new_row[:, None] * num_columns + columns[None, :], mask=is_below)  # while others go down
        old = tl.load(in_cache, mask=leaves[:, None] & is_column)
        tl.store(below + old_row[:, None] * num_columns + columns[None, :], old, mask=leaves[:, None] & is_column)
        tl.debug_barrier()  # what was in the slot, and whose it was, has been read by all threads
        tl.store(in_cache, tl.where(is_staged, staged, new), mask=comes[:, None] & is_column)
        if IS_LAST:
            tl.store(slot_of_row + new_row, slot.to(tl.int32), mask=comes)
            tl.store(row_of_slot + slot, new_row, mask=comes)
            tl.store(last_used + slot, tl.zeros((ROWS,), tl.int64) + now, mask=comes)
        block += tl.num_programs(0)


@triton.jit
def _tell_kernel(rows, order, slot_of_row, found, placed, length, BLOCK: tl.constexpr):
    """Where each position's row is by now."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < length
    row = tl.load(rows + at, mask=live, other=0)
    slot = tl.maximum(tl.load(slot_of_row + row, mask=live, other=0), 0)
    tl.store(found + at, slot, mask=live)
    tl.store(placed + tl.load(order + at, mask=live, other=0), slot, mask=live)


@triton.jit
def _write_down_kernel(
    cached, below, row_of_slot, chosen, num_chosen, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    columns = tl.arange(0, COLUMNS)
    first = tl.program_id(0).to(tl.int64) * ROWS
    while first < num_chosen:
        at = first + tl.arange(0, ROWS)
        live = at < num_chosen
        slot = tl.load(chosen + at, mask=live, other=0)
        row = tl.load(row_of_slot + slot, mask=live, other=0)
        mask = live[:, None] & (columns < num_columns)[None, :]
        values = tl.load(cached + slot[:, None] * num_columns + columns[None, :], mask=mask)
        tl.store(below + row[:, None] * num_columns + columns[None, :], values, mask=mask)
        first += tl.num_programs(0) * ROWS


@triton.jit
def _read_through_kernel(
    cached, below, slot_of_row, rows, out, num_rows, num_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    live = at < num_rows
    row = tl.load(rows + at, mask=live, other=0)
    slot = tl.load(slot_of_row + row, mask=live, other=-1).to(tl.int64)
    is_cached = slot >= 0
    mask = live[:, None] & (columns < num_columns)[None, :]
    here = tl.load(cached + slot[:, None] * num_columns + columns[None, :], mask=mask & is_cached[:, None])
    there = tl.load(below + row[:, None] * num_columns + columns[None, :], mask=mask & (slot < 0)[:, None])
    values = tl.where((slot >= 0)[:, None], here, there)
    tl.store(out + at[:, None] * num_columns + columns[None, :], values, mask=mask)


def make_room(slots: SlotMap, rows: Segments, num_short: Tensor, now: int, in_flight: int) -> Found:
    length, num_slots, words = len(rows.slots_L), len(slots.free), slots.words
    found = Found(*torch.empty(3, length, dtype=torch.int32, device=words.device).unbind())
    _probe_kernel[grid_of(length, _BLOCK)](
        *(rows.slots_L, slots.slot_of_row, slots.last_used, found.missing, words, length, now), BLOCK=_BLOCK
    )
    _plan_kernel[grid_of(num_slots, _AT_ONCE)](
        *(slots.last_used, words, slots.histogram, num_short, num_slots, in_flight, num_slots // EVICTED_AHEAD),
        BINS=slot_map.BINS,
        BLOCK=_AT_ONCE,
    )
    num_rows = len(slots.slot_of_row)
    _evict_kernel[grid_of(num_rows, _AT_ONCE)](
        slots.slot_of_row, slots.last_used, slots.free, words, num_rows, BLOCK=_AT_ONCE
    )
    return found


def list_rows(slots: SlotMap, rows: Segments, found: Found, told: Tensor, room_in: int) -> None:
    room_out = len(told) - TOLD_HEADER - room_in
    _list_kernel[grid_of(max(room_in, room_out, 1), _BLOCK)](
        *(slots.free, slots.row_of_slot, rows.slots_L, found.missing, slots.words, told, room_in, room_out),
        HEADER=TOLD_HEADER,
        BLOCK=_BLOCK,
    )


def lift_rows(slots: SlotMap, cached_CW: Tensor, out_NW: Tensor) -> None:
    rows, columns = tile_of(cached_CW.shape[1])
    _lift_kernel[(_PROGRAMS,)](
        *(cached_CW, slots.free, slots.words, out_NW, len(out_NW), cached_CW.shape[1]), ROWS=rows, COLUMNS=columns
    )


def exchange(
    slots: SlotMap,
    rows: Segments,
    found: Found,
    tables: Sequence[tuple[Tensor, Tensor]],
    staged: Staged | None,
    *,
    now: int,
) -> None:
    is_staged = staged is not None
    rooms = (staged.room_in, staged.room_out) if staged is not None else (0, 0)
    for number, (cached_CW, below_RW) in enumerate(tables):
        tile, columns = tile_of(cached_CW.shape[1])
        _exchange_kernel[(_PROGRAMS if is_staged else _EXCHANGE_PROGRAMS,)](
            *(cached_CW, below_RW, cached_CW if staged is None else staged.come[number]),
            *(slots.free, slots.row_of_slot, slots.slot_of_row, slots.last_used),
            *(rows.slots_L, found.missing, slots.words, *rooms, cached_CW.shape[1], now),
            IS_LAST=number == len(tables) - 1,  # the others read whose rows leave
            ROWS=tile if is_staged else tile * _EXCHANGE_TILES,
            COLUMNS=columns,
            num_warps=4 if is_staged else _EXCHANGE_WARPS,
        )
    length = len(rows.slots_L)
    _tell_kernel[grid_of(length, _BLOCK)](
        *(rows.slots_L, rows.order_L, slots.slot_of_row, found.slots_L, found.by_position_L, length), BLOCK=_BLOCK
    )


def write_down(cached_CW: Tensor, below_RW: Tensor, row_of_slot: Tensor, chosen_N: Tensor) -> None:
    rows, columns = tile_of(cached_CW.shape[1])
    _write_down_kernel[(_EXCHANGE_PROGRAMS,)](
        *(cached_CW, below_RW, row_of_slot, chosen_N, len(chosen_N), cached_CW.shape[1]),
        ROWS=rows * _EXCHANGE_TILES,
        COLUMNS=columns,
        num_warps=_EXCHANGE_WARPS,
    )


def read_through(cached_CW: Tensor, below_RW: Tensor, slot_of_row: Tensor, rows_N: Tensor, out: Tensor) -> None:
    if not len(rows_N):
        return
    rows, columns = tile_of(cached_CW.shape[1])
    _read_through_kernel[grid_of(len(rows_N), rows)](
        *(cached_CW, below_RW, slot_of_row, rows_N, out, len(rows_N), cached_CW.shape[1]), ROWS=rows, COLUMNS=columns
    )
