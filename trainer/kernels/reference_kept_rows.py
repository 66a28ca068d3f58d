"""The kernels of `kept_rows.py` in torch; a call is one step that no other thread sees half done."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from ett.trainer.kernels.kept_rows import KEPT, LAUNCH, WORD_BITS, Ring, RowBits, Updated

_AT_A_TIME = threading.Lock()  # what a stream and atomic words are on a device


def note_update(updated: Updated, bits: RowBits, ring: Ring | None, launch: int) -> None:
    is_wrong = updated.wrong is not None and bool(updated.wrong.any())
    at = torch.arange(updated.begin, updated.begin if is_wrong else updated.end)
    slots = updated.segments.slots_L.long()
    is_first = torch.ones(len(at), dtype=torch.bool)
    is_first[at > 0] = slots[at[at > 0]] != slots[at[at > 0] - 1]
    at = at[is_first]
    rows = slots[at] if updated.row_of_slot is None else updated.row_of_slot[slots[at]]
    with _AT_A_TIME:
        _set(bits.changed, rows)
        if ring is None:
            return
        ring.words[LAUNCH] = launch
        is_wanted = _is_set(bits.wanted, rows)
        _clear(bits.wanted, rows)
        at, rows = at[is_wanted], rows[is_wanted]
        first = int(ring.words[KEPT])
        places = (first + torch.arange(len(rows))) % ring.capacity
        ring.rows[places] = rows
        states = updated.segments.slots_L if updated.segments.states_L is None else updated.segments.states_L
        for number, (table, kept) in enumerate(zip(updated.columns, ring.columns, strict=True)):
            kept[places] = table[slots[at] if number == 0 else states[at].long()]
        ring.words[KEPT] = first + len(rows)


def claim(rows_N: Tensor, wanted: Tensor, words: Tensor, out: Tensor) -> None:
    with _AT_A_TIME:
        out[:-1] = _is_set(wanted, rows_N)
        _clear(wanted, rows_N)
        out[-1] = words[LAUNCH]


def merge(words: Tensor, others: Tensor, *, is_and: bool) -> None:
    with _AT_A_TIME:
        words.copy_(words & others if is_and else words | others)


def peek(rows_N: Tensor, slot_of_row: Tensor, cached_CW: Tensor, out_NW: Tensor, places_N: Tensor) -> None:
    places_N.copy_(slot_of_row[rows_N])
    found = places_N >= 0
    out_NW[found] = cached_CW[places_N[found].long()]


def _bit(rows: Tensor) -> Tensor:
    return torch.ones_like(rows) << rows % WORD_BITS


def _is_set(words: Tensor, rows: Tensor) -> Tensor:
    return (words[rows // WORD_BITS].long() & _bit(rows)) != 0


def _set(words: Tensor, rows: Tensor) -> None:
    new = rows[~_is_set(words, rows)]
    _add(words, new, 1)


def _clear(words: Tensor, rows: Tensor) -> None:
    old = rows[_is_set(words, rows)]
    _add(words, old, -1)


def _add(words: Tensor, rows: Tensor, sign: int) -> None:
    """Args: rows: distinct, whose bits all change: a sum of them carries nothing over."""
    summed = words.long() & 0xFFFFFFFF
    summed.index_add_(0, rows // WORD_BITS, sign * _bit(rows))
    words.copy_(torch.where(summed >= 2**31, summed - 2**32, summed).to(torch.int32))
