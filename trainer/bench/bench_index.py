"""Figures of the native id index: lookups in a second of one thread's CPU time, and memory beside the rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.trainer.sparse.id_index import NATIVE, IdIndex, id_index
from ett.trainer.sparse.numpy_id_index import NumpyIdIndex


def index_figures(workload: dict[str, int], quick: bool) -> list[Measured]:
    """Return index_mlookups_per_core and index_bytes_per_row.

    Raises: ThresholdMissed: the index differs from its reference.
    """
    if NATIVE is None:
        reason = "the native index is not built: no C++ compiler at installation"
        return [
            Measured(name="index_mlookups_per_core", unit="M/s", reason=reason),
            Measured(name="index_bytes_per_row", unit="B", reason=reason),
        ]
    _check(workload["checked"])
    num_rows = workload["quick_rows" if quick else "rows"]
    random = np.random.default_rng(1)
    index = _filled(num_rows, workload["inserted_at_once"])
    asked = _id_of(random.integers(0, num_rows, workload["lookups"]))
    rates = []
    for _ in range(workload["repeats"]):
        begun = time.thread_time()
        slots = index.find(asked)
        rates.append(len(asked) / (time.thread_time() - begun) / 1e6)
        if not (slots >= 0).all():
            raise ThresholdMissed("an id that was inserted is not found")
    return [
        Measured(name="index_mlookups_per_core", unit="M/s", samples=rates, reason=f"{num_rows:,} ids, all found"),
        Measured(name="index_bytes_per_row", unit="B", samples=[index.bytes / num_rows]),
    ]


def _filled(num_rows: int, at_once: int) -> IdIndex:
    index = id_index(threads=1)
    for begin in range(0, num_rows, at_once):
        index.insert(_id_of(np.arange(begin, min(num_rows, begin + at_once))))
    return index


def _id_of(number: Any) -> Any:
    """Return distinct ids that are spread over all of int64: an odd factor permutes it."""
    return (number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def _check(count: int) -> None:
    """Insert, find and erase the same ids here and in the reference."""
    ids = _id_of(np.arange(count))
    ours, reference = id_index(threads=1), NumpyIdIndex()
    for index in (ours, reference):
        index.insert(ids)
        index.erase(ids[::3])
        index.insert(ids[: count // 2 : 3])
    asked = _id_of(np.arange(2 * count))
    if not np.array_equal(ours.find(asked), reference.find(asked)):
        raise ThresholdMissed("the native index and its reference give ids other slots")
