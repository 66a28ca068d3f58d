"""What hot and cold would have cost each row of a period that is over: exact, whatever the pattern of its updates."""

from __future__ import annotations

import numpy as np

from ett.checkpoint.policy.access_counter import Slots
from ett.checkpoint.policy.io_cost import Floats


class HindsightCounters:
    """Of every row the number of intervals with an update, the first of them and their sum, within one period.

    12 bytes a row: for one table beside a training job, or for a simulation, not for every table.
    """

    def __init__(self, num_slots: int) -> None:
        self._count, self._first, self._sum = (np.zeros(num_slots, np.uint32) for _ in range(3))

    def end_interval(self, number: int, updated: Slots) -> None:
        """Args: number: of the checkpoint that ends it, from 1 at the first after the base. updated: distinct slots."""
        first = self._first[updated]
        self._first[updated] = np.where(first == 0, number, first)
        self._count[updated] += 1
        self._sum[updated] += np.uint32(number)

    @property
    def counts(self) -> Slots:
        return self._count.astype(np.int64)

    def costs(self, period: int, weight: float) -> tuple[Floats, Floats]:
        """Return float64 [num_slots] twice: records saved, and restorable ones times weight, had a row been cold, hot.

        A cold record of checkpoint u is restorable for period - u intervals; a hot row is written from its first update
        on, and is in one file at a time.
        """
        count, total = self._count.astype(np.float64), self._sum.astype(np.float64)
        cold = count + weight * (count * period - total)
        hot = np.where(count > 0, period - self._first.astype(np.float64), 0.0) * (1 + weight)
        return cold, hot
