"""Rows kept before an update: Triton against the reference, and both against sets."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch

from ett.trainer.kernels import kept_rows, reference_kept_rows
from ett.trainer.kernels.kept_rows import KEPT, LAUNCH, WORD_BITS, Ring, RowBits, Updated, words_of
from ett.trainer.kernels.segments import Segments, segments_of

NUM_ROWS, CAPACITY = 150, 70
WIDTHS = (5, 1, 2, 7)


def kernels() -> ModuleType:
    from ett.trainer.kernels import triton_kept_rows

    return triton_kept_rows


def rows_set(words: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the bits that are set, ascending."""
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=words.device)
    return torch.nonzero((words[:, None] >> shifts & 1).view(-1)).squeeze(1)


def tables(num_tables: int, num_slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return tuple(
        (torch.arange(num_slots * width, dtype=torch.int32, device=device) + 1000 * width).view(num_slots, width)
        for width in WIDTHS[:num_tables]
    )


def new_ring(columns: tuple[torch.Tensor, ...], device: torch.device) -> Ring:
    kept = tuple(torch.full((CAPACITY, c.shape[1]), -7, dtype=torch.int32, device=device) for c in columns)
    rows = torch.full((CAPACITY,), -7, dtype=torch.int64, device=device)
    return Ring(rows, kept, torch.zeros(2, dtype=torch.int64, device=device))


@pytest.mark.slow
@pytest.mark.parametrize("num_tables", [1, 2, 4])
@pytest.mark.parametrize("is_cached", [False, True])
def test_updates_mark_rows_and_keep_those_that_are_wanted(
    num_tables: int, is_cached: bool, device: torch.device
) -> None:
    rng = random.Random(10 * num_tables + is_cached)
    for kind in (kernels(), reference_kept_rows):
        here = device if kind is not reference_kept_rows else torch.device("cpu")
        num_slots = 40 if is_cached else NUM_ROWS
        row_of_slot = torch.tensor(rng.sample(range(NUM_ROWS), num_slots), device=here) if is_cached else None
        columns = tables(num_tables, num_slots, here)
        bits, ring = RowBits(words_of(NUM_ROWS, here), words_of(NUM_ROWS, here)), new_ring(columns, here)
        wanted = set(rng.sample(range(NUM_ROWS), 90))
        for row in wanted:
            word = bits.wanted[row // 32].item() & 0xFFFFFFFF | 1 << row % 32
            bits.wanted[row // 32] = word - 2**32 if word >= 2**31 else word
        assert set(rows_set(bits.wanted).tolist()) == wanted
        changed: set[int] = set()
        kept = 0
        for launch in range(1, 5):
            drawn = [rng.randrange(num_slots) for _ in range(40)]
            segments = segments_of(torch.tensor(drawn, dtype=torch.int32, device=here))
            if is_cached:
                states = segments.slots_L.flip(0).contiguous()  # states are elsewhere than rows
                segments = Segments(segments.slots_L, segments.order_L, states)
            state_of = segments.slots_L if segments.states_L is None else segments.states_L
            is_wrong = launch == 3
            wrong = torch.tensor([0, int(is_wrong), 0], device=here)
            begin = rng.randrange(10)
            updated = Updated(segments, columns, row_of_slot, begin, len(drawn), wrong)
            kind.note_update(updated, bits, ring, launch)
            assert int(ring.words[LAUNCH]) == launch
            sorted_slots = segments.slots_L.tolist()
            heads = [n for n in range(begin, 40) if n == 0 or sorted_slots[n] != sorted_slots[n - 1]]
            if is_wrong:
                heads = []
            rows = {sorted_slots[n] if row_of_slot is None else int(row_of_slot[sorted_slots[n]]): n for n in heads}
            changed |= rows.keys()
            expected = {row: n for row, n in rows.items() if row in wanted}
            wanted -= expected.keys()
            places = [n % CAPACITY for n in range(kept, int(ring.words[KEPT]))]
            kept = int(ring.words[KEPT])
            assert sorted(ring.rows[places].tolist()) == sorted(expected)
            for place in places:
                n = expected[int(ring.rows[place])]
                for number, (column, out) in enumerate(zip(columns, ring.columns, strict=True)):
                    at = sorted_slots[n] if number == 0 else int(state_of[n])
                    assert torch.equal(out[place], column[at])
            assert set(rows_set(bits.changed).tolist()) == changed
            assert set(rows_set(bits.wanted).tolist()) == wanted
        kind.note_update(Updated(segments, columns, row_of_slot, 0, 40), bits, None, 0)
        assert set(rows_set(bits.wanted).tolist()) == wanted and int(ring.words[KEPT]) == kept


def test_a_claim_has_each_wanted_row_once(device: torch.device) -> None:
    for kind in (kernels(), reference_kept_rows):
        here = device if kind is not reference_kept_rows else torch.device("cpu")
        wanted, words = words_of(NUM_ROWS, here), torch.tensor([0, 9], device=here)
        kind.merge(wanted, torch.full_like(wanted, -1), is_and=False)
        mask = torch.full_like(wanted, -1)
        mask[0] = ~(1 << 5)
        kind.merge(wanted, mask, is_and=True)
        rows = torch.tensor([5, 31, 32, 149, 64], device=here)
        out = torch.full((6,), -1, dtype=torch.int64, device=here)
        kind.claim(rows, wanted, words, out)
        assert out.tolist() == [0, 1, 1, 1, 1, 9]
        kind.claim(rows, wanted, words, out)
        assert out.tolist() == [0, 0, 0, 0, 0, 9]
        assert 33 in rows_set(wanted).tolist()


def test_a_peek_copies_what_is_in_slots(device: torch.device) -> None:
    for kind in (kernels(), reference_kept_rows):
        here = device if kind is not reference_kept_rows else torch.device("cpu")
        cached = tables(1, 20, here)[0]
        slot_of_row = torch.full((NUM_ROWS,), -1, dtype=torch.int32, device=here)
        slot_of_row[[3, 100, 149]] = torch.tensor([7, 0, 19], dtype=torch.int32, device=here)
        out = torch.full((5, WIDTHS[0]), -7, dtype=torch.int32, device=here)
        places = torch.full((5,), -7, dtype=torch.int32, device=here)
        kind.peek(torch.tensor([3, 4, 149, 0, 100], device=here), slot_of_row, cached, out, places)
        assert places.tolist() == [7, -1, 19, -1, 0]
        assert torch.equal(out[[0, 2, 4]], cached[[7, 19, 0]])


def test_the_kernels_are_chosen_by_where_the_bits_are(device: torch.device) -> None:
    assert kept_rows._kernels(words_of(1, torch.device("cpu"))) is reference_kept_rows
