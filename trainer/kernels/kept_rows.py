"""Rows of a block that a checkpoint is to have, kept before an update changes them: in the order of a stream.

A bit for each row says that it has changed since the last step boundary, another that a checkpoint still wants it as it
was at the boundary. Whoever clears the latter, in one atomic step, has the row: the update's kernel, which copies it to
a ring before it changes, or the sweep, which has read it before and then claims it. So both may run side by side.

Shapes: R rows of a block, C of the ring, L positions of a batch, N rows of a list. Columns are words of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from ett.trainer.kernels.segments import Segments

WORD_BITS = 32
KEPT, LAUNCH = 0, 1  # places of `Ring.words`
MAX_STATES = 3


@dataclass(frozen=True, slots=True)
class RowBits:
    """int32 [ceil(R / 32)] each; bit r % 32 of word r // 32 is row r's."""

    changed: Tensor
    wanted: Tensor


@dataclass(frozen=True, slots=True)
class Ring:
    """Rows that were kept, in turn; the n-th of all stands at n % C."""

    rows: Tensor  # int64 [C]: which rows of the block
    columns: tuple[Tensor, ...]  # int32 [C, W] of the weights, then of each state
    words: Tensor  # int64 [2]: how many were kept so far; the launch that began last

    @property
    def capacity(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Updated:
    """What an update is about to change: the rows of segments, from one position to another."""

    segments: Segments
    columns: tuple[Tensor, ...]  # int32 [slots, W]: of the weights, then of each state
    row_of_slot: Tensor | None = None  # int64 [slots] of a cache; None: slots are rows
    begin: int = 0
    end: int = 0
    wrong: Tensor | None = None  # int64 [n]: nothing changes where one of them is not 0


def words_of(num_rows: int, device: torch.device) -> Tensor:
    """Return a bit for each row, none set."""
    return torch.zeros(-(-num_rows // WORD_BITS), dtype=torch.int32, device=device)


def as_words(rows_RW: Tensor) -> Tensor:
    """Return the same memory as int32 [R, words]."""
    return rows_RW.view(torch.int32)


def note_update(updated: Updated, bits: RowBits, ring: Ring | None, *, launch: int) -> None:
    """Mark rows as changed, and put those that are wanted into the ring.

    Args:
        ring: has room for end - begin rows; None: nobody wants any.
        launch: its number, from 1 on, which rises by one a call with a ring.
    """
    _kernels(bits.changed).note_update(updated, bits, ring, launch)


def claim(rows_N: Tensor, wanted: Tensor, words: Tensor, out: Tensor) -> None:
    """Have the rows that are still wanted, which have been read; nobody else gets them any more.

    Args:
        rows_N: int64, distinct. words: of the ring.
        out: int64 [N + 1]: 1 for a row that is the caller's, 0 for one that was put into the ring, by a launch up to
            one more than the last element, or is not wanted.
    """
    _kernels(wanted).claim(rows_N, wanted, words, out)


def narrow(wanted: Tensor, to: Tensor) -> None:
    """Clear the bits of words that others do not have. Args: int32, as many words."""
    _kernels(wanted).merge(wanted, to, is_and=True)


def widen(changed: Tensor, by: Tensor) -> None:
    """Set the bits of words that others have."""
    _kernels(changed).merge(changed, by, is_and=False)


def peek(rows_N: Tensor, slot_of_row: Tensor, cached_CW: Tensor, out_NW: Tensor, places_N: Tensor) -> None:
    """Copy the rows that are in slots of a cache, and say where each row is: int32 [N], -1 where in no slot."""
    _kernels(cached_CW).peek(rows_N, slot_of_row, cached_CW, out_NW, places_N)


def gather_words(table_RW: Tensor, rows_N: Tensor, out_NW: Tensor) -> None:
    """Copy rows, int32."""
    if table_RW.is_cuda:
        from ett.trainer.kernels.triton_rows import gather_rows

        gather_rows(table_RW, rows_N, out_NW)
    else:
        torch.index_select(table_RW, 0, rows_N, out=out_NW)


def bits_of(words: Tensor, first: int, count: int) -> Tensor:
    """Return the words of rows [first, first + count); first is a multiple of 32."""
    return words[first // WORD_BITS : -(-(first + count) // WORD_BITS)]


def _kernels(tensor: Tensor) -> ModuleType:
    if tensor.is_cuda:
        from ett.trainer.kernels import triton_kept_rows

        return triton_kept_rows
    from ett.trainer.kernels import reference_kept_rows

    return reference_kept_rows
