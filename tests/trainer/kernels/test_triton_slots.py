"""The cache's slots: Triton against the reference, and both against a dictionary."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch

from ett.trainer.kernels import reference_slots, slot_map
from ett.trainer.kernels.segments import Segments, segments_of
from ett.trainer.kernels.slot_map import TOLD_HEADER, Found, Staged, make_slot_map

NUM_ROWS, WIDTH = 90, 3


def kernels() -> ModuleType:
    from ett.trainer.kernels import triton_slots

    return triton_slots


class Cache:
    """The calls of a cache, in their order, by one of the two sets of kernels."""

    def __init__(self, kind: ModuleType, num_slots: int, device: torch.device, room: int = 0) -> None:
        """Args: room: rows that come and leave beside the exchange."""
        self.room = room
        self.kind, self.slots = kind, make_slot_map(NUM_ROWS, num_slots, device)
        self.below = torch.arange(NUM_ROWS * WIDTH, device=device).view(NUM_ROWS, WIDTH).float()
        self.rows = torch.full((num_slots, WIDTH), float("nan"), device=device)
        counts = torch.zeros(NUM_ROWS, 1, dtype=torch.int64, device=device)
        self.others = [(torch.full((num_slots, 1), -(10**9), device=device), counts)]

    def place(self, rows: list[int], now: int, in_flight: int) -> bool:
        device = self.rows.device
        drawn = torch.tensor([*rows, *rows[::2], rows[0]], device=device).flip(0)  # ids repeat
        segments = segments_of(drawn)
        self.num_short = torch.zeros(1, dtype=torch.int64, device=device)
        found = self.kind.make_room(self.slots, segments, self.num_short, now, in_flight)
        staged = self.stage(segments, found) if self.room else None
        self.kind.exchange(self.slots, segments, found, [(self.rows, self.below), *self.others], staged, now=now)
        is_placed = not int(self.num_short)
        if is_placed:
            assert torch.equal(found.by_position_L, self.slots.slot_of_row[drawn])
            assert torch.equal(found.slots_L, self.slots.slot_of_row[segments.slots_L])
        return is_placed

    def stage(self, segments: Segments, found: Found) -> Staged:
        """What the host does: put down the rows that were lifted, and bring the first missing ones."""
        tables, words = [(self.rows, self.below), *self.others], TOLD_HEADER + self.room + self.room // 2
        told = torch.zeros(words, dtype=torch.int64, device=self.rows.device)
        self.kind.list_rows(self.slots, segments, found, told, self.room)
        come, leave, room_in, room_out = told[:TOLD_HEADER].tolist()
        assert (room_in, room_out) == (self.room, self.room // 2)
        rows_in = told[TOLD_HEADER : TOLD_HEADER + min(come, room_in)]
        rows_out = told[TOLD_HEADER + room_in :][: min(leave, room_out)]
        staged = []
        for cached, below in tables:
            lifted = cached.new_full((room_out, cached.shape[1]), -7)
            self.kind.lift_rows(self.slots, cached, lifted)
            below[rows_out] = lifted[: len(rows_out)]
            staged.append(cached.new_full((room_in, cached.shape[1]), -7))
            staged[-1][: len(rows_in)] = below[rows_in]
        return Staged(staged, room_in, room_out)

    def slots_of(self, rows: list[int]) -> torch.Tensor:
        return self.slots.slot_of_row[torch.tensor(rows, device=self.rows.device)].long()

    def read(self, rows: list[int]) -> torch.Tensor:
        out = self.rows.new_empty((len(rows), WIDTH))
        rows_N = torch.tensor(rows, dtype=torch.int64, device=self.rows.device)
        self.kind.read_through(self.rows, self.below, self.slots.slot_of_row, rows_N, out)
        return out.cpu()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "room"), [(0, 0), (1, 0), (2, 0), (3, 8), (4, 100)])
def test_rows_come_and_go_as_in_a_flat_table(seed: int, room: int, device: torch.device) -> None:
    rng, flat = random.Random(seed), torch.arange(NUM_ROWS * WIDTH).view(NUM_ROWS, WIDTH).float()
    num_slots = rng.choice([40, 41, 80])
    ours = Cache(kernels(), num_slots, device, room)
    reference = Cache(reference_slots, num_slots, torch.device("cpu"), room)
    now = 0
    for _ in range(25):
        now += rng.choice([1, 1, 1, 500])  # after a long pause a bin of the histogram stands for several batches
        rows = sorted(rng.sample(range(NUM_ROWS), rng.randrange(1, 21)))
        in_flight = max(1, now - rng.randrange(2))
        for cache in (ours, reference):
            assert cache.place(rows, now, in_flight)
            at = cache.slots_of(rows)
            assert len(set(at.tolist())) == len(rows)
            assert torch.equal(cache.rows[at].cpu(), flat[rows])
            cache.rows[at] += 1
            cache.others[0][0][at] += 1
        flat[rows] += 1
        asked = rng.sample(range(NUM_ROWS), 30)
        assert torch.equal(ours.read(asked), flat[asked]) and torch.equal(reference.read(asked), flat[asked])
        # Which rows are there is the same; in which slots, for one program at a time only.
        assert torch.equal(ours.slots.slot_of_row.cpu() >= 0, reference.slots.slot_of_row >= 0)
        assert ours.slots.words.cpu().tolist() == reference.slots.words.tolist()
        assert not int(ours.slots.histogram.abs().sum())
    assert int(reference.slots.words[slot_map.MISSED]) > num_slots
    for cache in (ours, reference):
        used = torch.nonzero(cache.slots.last_used != slot_map.FREE).squeeze(1)
        for cached, below in [(cache.rows, cache.below), *cache.others]:
            cache.kind.write_down(cached, below, cache.slots.row_of_slot, used)
        assert torch.equal(cache.below.cpu(), flat)
        assert torch.equal(cache.others[0][1].cpu()[:, 0].float(), flat[:, 0] - WIDTH * torch.arange(NUM_ROWS))


@pytest.mark.slow
def test_the_rows_used_longest_ago_leave_first(device: torch.device) -> None:
    for kind in (kernels(), reference_slots):
        cache = Cache(kind, 6, device)
        for now, rows in enumerate([[0, 1], [2, 3], [4, 5], [0]], start=1):
            assert cache.place(rows, now, now)
        assert cache.place([7, 8, 9], 5, 5)  # 1 alone is not enough, so 2 and 3 leave with it
        assert torch.nonzero(cache.slots.slot_of_row >= 0).squeeze(1).tolist() == [0, 4, 5, 7, 8, 9]


@pytest.mark.slow
def test_a_batch_without_room_takes_no_slot(device: torch.device) -> None:
    for kind in (kernels(), reference_slots):
        cache = Cache(kind, 6, device)
        assert cache.place([0, 1, 2, 3], 1, 1)
        assert not cache.place([3, 4, 5, 6, 7], 2, 1)  # four are missing, and only two slots are not in flight
        assert cache.num_short.tolist() == [2]
        assert torch.nonzero(cache.slots.slot_of_row >= 0).squeeze(1).tolist() == [0, 1, 2, 3]
        assert cache.place([3, 4, 5, 6, 7], 3, 3)
        assert cache.num_short.tolist() == [0]
