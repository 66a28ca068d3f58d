"""Which rows are in which slots of a cache in device memory, and the choice of those that leave it.

No size comes back to the host: how many rows a batch lacks, how many have to leave and whether there is room stay in
`words`. A slot is free, or has the number of the batch that used its row last; a batch's rows leave together, those of
the longest unused batches first, and 1 of 128 slots or more at once, so that few batches pay for a search.
The map takes 4 bytes for each row of the table: as much as a hash index of a tenth of them, and no insert can fail.

Shapes: R rows of the table, C slots, L positions of a batch, sorted by row, N rows of a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from ett.trainer.kernels.segments import Segments

# Places of `words`.
NUM_FREE = 0
BEGIN, END = 1, 2  # free[BEGIN:END] leave for this batch, free[NUM_FREE:END] get its missing rows
CUTOFF = 3  # those that leave had been used before that batch
OLDEST = 4  # no row in a slot was used before that batch
CURSOR, NUM_MISSING, NUM_DONE = 5, 6, 7  # counters of the kernels
LOOKED_UP, MISSED = 8, 9  # distinct rows, of all batches
NUM_WORDS = 10

TOLD_HEADER = 4  # words before the lists of `list_rows`

FREE = 2**62  # later than every batch
BINS = 1024  # of a histogram of the slots by last use
EVICTED_AHEAD = 128


@dataclass(frozen=True, slots=True)
class SlotMap:
    slot_of_row: Tensor  # int32 [R], -1: in no slot
    row_of_slot: Tensor  # int64 [C]; what a free slot had last
    last_used: Tensor  # int64 [C]: number of a batch, or FREE
    free: Tensor  # int32 [C]: a stack of free slots, NUM_FREE high
    words: Tensor  # int64 [NUM_WORDS]
    histogram: Tensor  # int32 [BINS], zeros between calls


@dataclass(frozen=True, slots=True)
class Found:
    """Where a batch's rows are, once `exchange` is done; int32 all."""

    missing: Tensor  # [L]: a position of each row that was in no slot
    slots_L: Tensor  # of the sorted positions; slot 0 where there was no room
    by_position_L: Tensor  # of the positions as they come


@dataclass(frozen=True, slots=True)
class Staged:
    """What is on its way already when `exchange` is called."""

    come: list[Tensor]  # the first missing rows of each table, [room_in, W]
    room_in: int
    room_out: int  # as many of the rows that leave have been lifted, and will be put down


def make_slot_map(num_rows: int, num_slots: int, device: torch.device) -> SlotMap:
    """Return a map of free slots."""
    made = SlotMap(
        slot_of_row=torch.empty(num_rows, dtype=torch.int32, device=device),
        row_of_slot=torch.zeros(num_slots, dtype=torch.int64, device=device),
        last_used=torch.empty(num_slots, dtype=torch.int64, device=device),
        free=torch.arange(num_slots - 1, -1, -1, dtype=torch.int32, device=device),
        words=torch.zeros(NUM_WORDS, dtype=torch.int64, device=device),
        histogram=torch.zeros(BINS, dtype=torch.int32, device=device),
    )
    forget_all(made)
    return made


def forget_all(slots: SlotMap) -> None:
    """Free every slot."""
    num_slots = len(slots.free)
    slots.slot_of_row.fill_(-1)
    slots.last_used.fill_(FREE)
    slots.free.copy_(torch.arange(num_slots - 1, -1, -1))
    slots.words[NUM_FREE] = num_slots


def make_room(slots: SlotMap, rows: Segments, num_short: Tensor, *, now: int, in_flight: int) -> Found:
    """Note the use of a batch's rows, and choose slots for those that are in none; `exchange` must follow.

    Args:
        rows: in [0, R), ascending, L > 0.
        num_short: int64, the first one zero: it becomes how many slots are lacking if there is no room, and no row
            gets one then.
        now: the batch's number, above all before.
        in_flight: rows used by batches from this number on stay.
    """
    found: Found = _kernels(slots.words).make_room(slots, rows, num_short, now, in_flight)
    return found


def list_rows(slots: SlotMap, rows: Segments, found: Found, told: Tensor, room_in: int) -> None:
    """Tell which rows come and which leave.

    Args: told: int64 [4 + room_in + room_out], becomes: number of rows that come, of those that leave, room_in,
        room_out, the rows that come in the order of `found.missing`, those that leave in the order of `free`.
    """
    _kernels(slots.words).list_rows(slots, rows, found, told, room_in)


def lift_rows(slots: SlotMap, cached_CW: Tensor, out_NW: Tensor) -> None:
    """Copy the rows that leave, in the order of `free`, as many as there is room for."""
    _kernels(slots.words).lift_rows(slots, cached_CW, out_NW)


def exchange(
    slots: SlotMap,
    rows: Segments,
    found: Found,
    tables: Sequence[tuple[Tensor, Tensor]],
    staged: Staged | None = None,
    *,
    now: int,
) -> None:
    """Have the missing rows in the cache, and those that leave in the tables, but for what is staged.

    Args: tables: (slots [C, W], all rows [R, W]); a CUDA device reaches the latter even in the host's memory.
    """
    _kernels(slots.words).exchange(slots, rows, found, tables, staged, now=now)


def write_down(cached_CW: Tensor, below_RW: Tensor, slots: SlotMap, chosen_N: Tensor) -> None:
    """Copy the rows of some slots, int64 [N], down."""
    _kernels(cached_CW).write_down(cached_CW, below_RW, slots.row_of_slot, chosen_N)


def read_through(cached_CW: Tensor, below_RW: Tensor, slots: SlotMap, rows_N: Tensor) -> Tensor:
    """Return the rows [N, W] from where they are, and leave the cache as it is."""
    out = cached_CW.new_empty((len(rows_N), cached_CW.shape[1]))
    _kernels(cached_CW).read_through(cached_CW, below_RW, slots.slot_of_row, rows_N, out)
    return out


def _kernels(tensor: Tensor) -> ModuleType:
    if tensor.is_cuda:
        from ett.trainer.kernels import triton_slots

        return triton_slots
    from ett.trainer.kernels import reference_slots

    return reference_slots
