"""Some rows of a block of tables in device memory, above all of them in the host's; the device moves them by itself.

A row that is in a slot is newer than the one below, which it is written down to when it leaves. Nothing here waits for
the device but `flush` and `forget`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ett.trainer.embedding.device_lanes import Lane
from ett.trainer.embedding.row_ferry import RowFerry, can_ferry
from ett.trainer.kernels import kept_rows, slot_map
from ett.trainer.kernels.segments import Segments
from ett.trainer.kernels.slot_map import SlotMap, make_slot_map

WEIGHT = "weight"  # the only table of a cache of weights


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUse:
    """What a cache has done so far, in distinct rows of all batches."""

    looked_up: int
    missed: int  # of them, came from below


class RowsCache:
    """Tables of one number of rows, such as weights, or all states, that come and go together."""

    def __init__(
        self, below: Mapping[str, Tensor], num_slots: int, device: torch.device, *, ferried: bool | None = None
    ) -> None:
        """Args:
        below: name -> [R, width], which the device reaches.
        ferried: whether rows cross the link by a `RowFerry`; None: where the device is another memory than theirs.
        """
        self.below = dict(below)
        self.rows = {
            name: torch.empty(num_slots, rows.shape[1], dtype=rows.dtype, device=device) for name, rows in below.items()
        }
        self.num_slots = num_slots
        self._slots: SlotMap = make_slot_map(len(next(iter(below.values()))), num_slots, device)
        self._tables = [(self.rows[name], rows) for name, rows in below.items()]
        ferried = device.type == "cuda" and can_ferry() if ferried is None else ferried
        self._ferry = RowFerry(self._tables, device) if ferried else None
        self._moving = threading.Lock()  # held while what moves rows is given to the device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None  # where rows move

    def place(self, rows: Segments, num_short: Tensor, *, now: int, in_flight: int) -> tuple[Tensor, Tensor]:
        """Have rows in slots; return these, int32 [L], in the order of the rows and in that of the positions.

        Args: see `slot_map.make_room`; L may be 0.
        """
        if not len(rows.slots_L):
            return rows.slots_L, rows.slots_L
        with self._moving:
            if self._stream is not None:
                self._stream = torch.cuda.current_stream(self._stream.device)
            found = slot_map.make_room(self._slots, rows, num_short, now=now, in_flight=in_flight)
            staged = None if self._ferry is None else self._ferry.carry(self._slots, rows, found)
            slot_map.exchange(self._slots, rows, found, self._tables, staged, now=now)
        return found.slots_L, found.by_position_L

    @property
    def row_of_slot(self) -> Tensor:
        """Return which row is in each slot, int64 [slots]; any number for one that is free."""
        return self._slots.row_of_slot

    def peek(self, rows_N: Tensor, outs: Mapping[str, Tensor], places_N: Tensor, lane: Lane) -> None:
        """Copy rows of named tables that are in slots, by any thread; rows come and go before or after.

        Args: outs: int32 words [N, W] of each. places_N: int32, becomes the slots, -1 where a row is in none: then what
        left before is below once the lane has been waited for.
        """
        with self._moving:
            if self._stream is None or lane.stream is None:
                self._peek(rows_N, outs, places_N)
                return
            self._stream.wait_stream(lane.stream)
            with torch.cuda.stream(self._stream):
                if self._ferry is not None:
                    self._ferry.join()
                self._peek(rows_N, outs, places_N)
            lane.stream.wait_stream(self._stream)

    def _peek(self, rows_N: Tensor, outs: Mapping[str, Tensor], places_N: Tensor) -> None:
        for name, out_NW in outs.items():
            kept_rows.peek(rows_N, self._slots.slot_of_row, kept_rows.as_words(self.rows[name]), out_NW, places_N)

    def read_through(self, name: str, rows_N: Tensor) -> Tensor:
        """Return rows of the named table, which need not be in slots and are not brought there."""
        if self._ferry is not None:
            self._ferry.join()
        return slot_map.read_through(self.rows[name], self.below[name], self._slots, rows_N)

    def flush(self) -> None:
        """Write down every row that is in a slot, where it stays."""
        used = torch.nonzero(self._slots.last_used != slot_map.FREE).squeeze(1)
        for cached, below in self._tables:
            slot_map.write_down(cached, below, self._slots, used)

    def forget(self) -> None:
        """Empty the slots; what was not flushed is lost."""
        slot_map.forget_all(self._slots)

    def use(self) -> CacheUse:
        """Return it; waits for the device."""
        words = self._slots.words.tolist()
        return CacheUse(looked_up=words[slot_map.LOOKED_UP], missed=words[slot_map.MISSED])


class BlockCache:
    """The caches of a block: of the weights, and of the optimizer's states, where those are not all on the device."""

    def __init__(self, weights: RowsCache, states: RowsCache | None) -> None:
        self.weights, self.states = weights, states
        self.device = weights.rows[WEIGHT].device
        self._parts = [weights] if states is None else [weights, states]
        self._is_flushed = True
        self.times_forgotten = 0  # what was placed before is in no slot any more

    def place(self, rows: Segments, num_short: Tensor, *, now: int, in_flight: int) -> tuple[Segments, Tensor]:
        """Have the rows of segments in slots; return the segments of these, and the slot of each position.

        Args:
            num_short: int64 [2], zeros: becomes the slots that are lacking for weights and for states.
            now, in_flight: see `slot_map.make_room`.
        """
        self._is_flushed = False
        found_L, by_position_L = self.weights.place(rows, num_short, now=now, in_flight=in_flight)
        states_L = rows.slots_L
        if self.states is not None:
            states_L, _ = self.states.place(rows, num_short[1:], now=now, in_flight=in_flight)
        return Segments(found_L, rows.order_L, states_L), by_position_L

    def note_update(self) -> None:
        self._is_flushed = False

    def flush(self) -> None:
        """Bring the tables below up to date, and wait for that."""
        if self._is_flushed:
            return
        self._wait()
        for part in self._parts:
            part.flush()
        self._wait()
        self._is_flushed = True

    def forget(self) -> None:
        """Empty the caches, after the tables below were written to."""
        self.times_forgotten += 1
        self._wait()
        for part in self._parts:
            part.forget()
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
