"""What a small job holds after each step, from a seed alone: the truth that every restore is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

Ids = NDArray[np.int64]
TABLES = {"users": 4, "items": 2}  # name -> dim
SAMPLES_PER_STEP = 10


@dataclass(frozen=True, slots=True)
class TableState:
    """ids: int64 [N], ascending. rows: float32 [N, dim + 1], weights and one sum.

    changed, gone: ids that the last step wrote, or took away.
    """

    ids: Ids
    rows: NDArray[np.float32]
    changed: Ids
    gone: Ids


@dataclass(frozen=True, slots=True)
class JobState:
    step: int
    tables: dict[str, TableState]
    dense: NDArray[np.float32]  # [8]


class Oracle:
    """States by step; equal for equal seeds, in any process."""

    def __init__(self, seed: int, num_rows: int) -> None:
        self.seed = seed
        self._random = np.random.default_rng(seed)
        none = np.empty(0, np.int64)
        tables = {
            name: TableState(none, np.empty((0, dim + 1), np.float32), none, none) for name, dim in TABLES.items()
        }
        self._states = [JobState(0, tables, np.zeros(8, np.float32))]
        self._num_rows = num_rows

    def state(self, step: int) -> JobState:
        while len(self._states) <= step:
            self._states.append(self._next(self._states[-1]))
        return self._states[step]

    def image(self, step: int) -> bytes:
        """Return what `FaultJob.image` is when the job holds this step's state."""
        state = self.state(step)
        rows = {name: (table.ids, table.rows[:, :-1], table.rows[:, -1:]) for name, table in state.tables.items()}
        return image_of(step, rows, state.dense, step * SAMPLES_PER_STEP)

    def ids_since(self, table: str, first: int, last: int) -> tuple[Ids, Ids]:
        """Return which ids the steps first + 1 .. last wrote and are there, and which they took away and are not."""
        steps = [self.state(step).tables[table] for step in range(first + 1, last + 1)]
        present = self.state(last).tables[table].ids
        none = np.empty(0, np.int64)
        changed = np.unique(np.concatenate([none, *(step.changed for step in steps)]))
        gone = np.unique(np.concatenate([none, *(step.gone for step in steps)]))
        return np.intersect1d(changed, present), np.setdiff1d(gone, present)

    def _next(self, state: JobState) -> JobState:
        tables = {name: self._trained(table) for name, table in state.tables.items()}
        return JobState(state.step + 1, tables, self._bits((8,)))

    def _trained(self, table: TableState) -> TableState:
        """Update some rows, make some, take some away; a first step makes them all."""
        chance = self._random
        num_new = 3 if len(table.ids) else self._num_rows
        updated = table.ids[chance.random(len(table.ids)) < 0.3]
        new = np.setdiff1d(chance.integers(-(2**62), 2**62, num_new), table.ids)
        gone = np.setdiff1d(table.ids[chance.random(len(table.ids)) < 0.06], updated)
        stay = ~np.isin(table.ids, gone)
        ids = np.concatenate([table.ids[stay], new])
        rows = np.concatenate([table.rows[stay], self._bits((len(new), table.rows.shape[1]))])
        order = np.argsort(ids)
        ids, rows = ids[order], rows[order]
        at = np.searchsorted(ids, updated)
        rows[at] = self._bits((len(updated), rows.shape[1]))
        return TableState(ids, rows, np.union1d(updated, new), gone)

    def _bits(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return random bits: NaN payloads and denormals must come back as they were."""
        return self._random.integers(0, 2**32, shape, np.uint32).view(np.float32)


def image_of(
    step: int,
    tables: dict[str, tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]],
    dense: NDArray[np.float32],
    cursor: int,
) -> bytes:
    """Return every bit of a state, as one text of bytes: equal if and only if the states are."""
    parts = [step.to_bytes(8, "big"), cursor.to_bytes(8, "big"), dense.tobytes()]
    for name in sorted(tables):
        ids, weights, sums = tables[name]
        parts += [name.encode(), len(ids).to_bytes(8, "big"), ids.tobytes()]
        parts += [np.ascontiguousarray(weights).tobytes(), np.ascontiguousarray(sums).tobytes()]
    return xxhash.xxh3_128_digest(b"".join(parts)) + b"".join(parts)
