"""The kernels of `slot_map.py` in plain torch, with the same choice of rows that leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ett.trainer.kernels import slot_map as at
from ett.trainer.kernels.segments import Segments
from ett.trainer.kernels.slot_map import BINS, EVICTED_AHEAD, FREE, TOLD_HEADER, Found, SlotMap, Staged


def make_room(slots: SlotMap, rows: Segments, num_short: Tensor, now: int, in_flight: int) -> Found:
    rows_L = rows.slots_L
    found = slots.slot_of_row[rows_L]
    slots.last_used[found[found >= 0].long()] = now
    is_first = torch.ones_like(rows_L, dtype=torch.bool)
    is_first[1:] = rows_L[1:] != rows_L[:-1]
    positions = torch.nonzero((found < 0) & is_first).squeeze(1)
    num_missing, num_free, oldest = len(positions), int(slots.words[at.NUM_FREE]), int(slots.words[at.OLDEST])
    cutoff = oldest
    if num_missing > num_free:
        cutoff = _cutoff(slots, max(num_missing - num_free, len(slots.free) // EVICTED_AHEAD), oldest, in_flight)
    cached = slots.slot_of_row[slots.slot_of_row >= 0].long()
    victims = cached[slots.last_used[cached] < cutoff]
    end = num_free + len(victims)
    slots.free[num_free:end] = victims.to(torch.int32)
    slots.slot_of_row[slots.row_of_slot[victims]] = -1
    slots.last_used[victims] = FREE
    if end < num_missing:
        num_short[0] = num_missing - end
    slots.words[at.BEGIN], slots.words[at.END], slots.words[at.CURSOR] = num_free, end, end
    slots.words[at.CUTOFF] = slots.words[at.OLDEST] = cutoff
    slots.words[at.NUM_FREE] = end - num_missing if end >= num_missing else end
    slots.words[at.LOOKED_UP] += int(is_first.sum())
    slots.words[at.MISSED] += num_missing
    return Found(positions.to(torch.int32), torch.empty_like(found), torch.empty_like(found))


def _cutoff(slots: SlotMap, wanted: int, oldest: int, in_flight: int) -> int:
    width = (in_flight - oldest) // BINS + 1
    stamps = slots.last_used[slots.last_used < in_flight]
    counts = torch.bincount((stamps - oldest) // width, minlength=BINS)
    num_bins = int((counts.cumsum(0) - counts < wanted).sum())
    return min(oldest + num_bins * width, in_flight)


def list_rows(slots: SlotMap, rows: Segments, found: Found, told: Tensor, room_in: int) -> None:
    leaving, coming = _slots_of(slots)
    room_out = len(told) - TOLD_HEADER - room_in
    told[:TOLD_HEADER] = torch.tensor([len(coming), len(leaving), room_in, room_out])
    come = rows.slots_L[found.missing[: len(coming)].long()][:room_in]
    told[TOLD_HEADER : TOLD_HEADER + len(come)] = come
    left = slots.row_of_slot[leaving[:room_out]]
    told[TOLD_HEADER + room_in : TOLD_HEADER + room_in + len(left)] = left


def lift_rows(slots: SlotMap, cached_CW: Tensor, out_NW: Tensor) -> None:
    leaving = _slots_of(slots)[0][: len(out_NW)]
    out_NW[: len(leaving)] = cached_CW[leaving]


def exchange(
    slots: SlotMap,
    rows: Segments,
    found: Found,
    tables: Sequence[tuple[Tensor, Tensor]],
    staged: Staged | None,
    *,
    now: int,
) -> None:
    leaving, coming = _slots_of(slots)
    new_rows = rows.slots_L[found.missing[: len(coming)].long()].long()
    room_in, room_out = (0, 0) if staged is None else (staged.room_in, staged.room_out)
    for number, (cached_CW, below_RW) in enumerate(tables):
        below_RW[slots.row_of_slot[leaving[room_out:]]] = cached_CW[leaving[room_out:]]
        cached_CW[coming[room_in:]] = below_RW[new_rows[room_in:]]
        if staged is not None:
            cached_CW[coming[:room_in]] = staged.come[number][: len(coming)]
    slots.slot_of_row[new_rows] = coming.to(torch.int32)
    slots.row_of_slot[coming] = new_rows
    slots.last_used[coming] = now
    found.slots_L.copy_(slots.slot_of_row[rows.slots_L].clamp(min=0))
    found.by_position_L[rows.order_L] = found.slots_L


def _slots_of(slots: SlotMap) -> tuple[Tensor, Tensor]:
    """Return the slots of the rows that leave, and those of the missing rows, in their order."""
    begin, end, first = (int(slots.words[word]) for word in (at.BEGIN, at.END, at.NUM_FREE))
    return slots.free[begin:end].long(), slots.free[first:end].flip(0).long()


def write_down(cached_CW: Tensor, below_RW: Tensor, row_of_slot: Tensor, chosen_N: Tensor) -> None:
    below_RW[row_of_slot[chosen_N]] = cached_CW[chosen_N]


def read_through(cached_CW: Tensor, below_RW: Tensor, slot_of_row: Tensor, rows_N: Tensor, out: Tensor) -> None:
    found = slot_of_row[rows_N].long()
    torch.where((found >= 0)[:, None], cached_CW[found.clamp(min=0)], below_RW[rows_N], out=out)
