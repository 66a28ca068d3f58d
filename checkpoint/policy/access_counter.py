"""How often rows are updated: one byte a row, and what the bytes foretell, learned from what came true.

A byte holds the last three intervals, newest in the lowest bit, below five bits that rise by an eighth of what is
missing in an interval with an update, and else fall by an eighth. It means nothing by itself: of all rows with the same
byte, the share that was updated in the next interval is counted, and is the estimate for each of them. So a row that
comes in bursts, one that is asked for steadily and rows that are all alike are each foretold as they behave.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.policy.io_cost import Floats
from ett.checkpoint.policy.period import Population
from ett.native import native

Slots = NDArray[np.int64]
NATIVE = native("ett.checkpoint.policy._row_map")
NUM_VALUES = 256
_HISTORY_BITS = 3
_HISTORY, _LEVELS, _SHARE = (1 << _HISTORY_BITS) - 1, 31, 3
MEMORY = 0.8  # what is left of the counts after an interval: five intervals' worth of rows decide
_PRIOR_ROWS = 4.0  # that a byte is believed to mean its level until rows have shown what it means
_CHUNK = 1 << 18  # of bytes, which stay in the second cache between the passes


def _age(values: NDArray[np.uint8]) -> None:
    """Have every byte fall."""
    if NATIVE is not None:
        NATIVE.age(values.ctypes.data, len(values), DOWN.ctypes.data)
        return
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        np.take(DOWN, part, out=part, mode="clip")


def _transitions() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    value = np.arange(NUM_VALUES)
    level, history = value >> _HISTORY_BITS, value << 1 & _HISTORY
    fallen = level - (level + (1 << _SHARE) - 1 >> _SHARE)
    risen = level + (_LEVELS - level + (1 << _SHARE) - 1 >> _SHARE)
    down = fallen << _HISTORY_BITS | history
    return down.astype(np.uint8), (risen << _HISTORY_BITS | history | 1).astype(np.uint8)


DOWN, UP = _transitions()
_PRIOR: Floats = (np.arange(NUM_VALUES) >> _HISTORY_BITS) / _LEVELS


class AccessCounter:
    """A byte for each slot of a table, or `shared_cells` bytes for all: slots that share one are foretold together.

    A table of more than 1e9 rows is counted in shared cells; its slots must not be ordered by how often they are used.
    """

    def __init__(self, shared_cells: int = 0) -> None:
        self._shared_cells = shared_cells
        self._values = np.zeros(shared_cells, np.uint8)
        self._cells = np.zeros(NUM_VALUES, np.int64)  # that have rows, by value
        self._cells[0] = shared_cells
        self._num_rows = 0
        self._seen, self._updated = np.zeros(NUM_VALUES), np.zeros(NUM_VALUES)

    def grow(self, num_slots: int) -> None:
        if not self._shared_cells and num_slots > len(self._values):
            grown = np.zeros(num_slots, np.uint8)
            grown[: len(self._values)] = self._values
            self._values = grown

    def inserted(self, num_rows: int) -> None:
        """Count rows that have come to exist; their slots are as `evicted` or `grow` left them."""
        self._num_rows += num_rows
        if not self._shared_cells:
            self._cells[0] += num_rows

    def evicted(self, slots: Slots) -> None:
        """Forget rows; slots are distinct."""
        self._num_rows -= len(slots)
        if not self._shared_cells:
            self._cells -= np.bincount(self._values[slots], minlength=NUM_VALUES)
            self._values[slots] = 0

    def end_interval(self, updated: Slots) -> None:
        """Age every byte; updated: the distinct slots of rows that changed in the interval, and still exist."""
        cells = np.unique(updated % self._shared_cells) if self._shared_cells else updated
        before = self._values[cells]
        risen = np.bincount(before, minlength=NUM_VALUES)
        num_rows = np.bincount(self.values(updated), minlength=NUM_VALUES) if self._shared_cells else risen
        self._updated = self._updated * MEMORY + num_rows
        self._seen = self._seen * MEMORY + self._rows_by_value()
        fallen = self._cells - risen
        self._cells = np.bincount(DOWN, fallen, NUM_VALUES).astype(np.int64)
        self._cells += np.bincount(UP, risen, NUM_VALUES).astype(np.int64)
        _age(self._values)
        self._values[cells] = UP[before]

    def values(self, slots: Slots) -> NDArray[np.uint8]:
        return self._values[slots % self._shared_cells if self._shared_cells else slots]

    def odds(self) -> Floats:
        """Return float64 [256]: how likely a row with a byte is updated in the next interval."""
        odds: Floats = np.empty(NUM_VALUES)
        np.minimum((self._updated + _PRIOR_ROWS * _PRIOR) / (self._seen + _PRIOR_ROWS), 1.0, out=odds)
        return odds

    def population(self) -> Population:
        return Population(self.odds(), self._rows_by_value())

    def _rows_by_value(self) -> Floats:
        rows: Floats = self._cells.astype(np.float64)
        if self._shared_cells:
            rows *= self._num_rows / self._shared_cells
        return rows
