"""What the processor alone allows: the tables' rows copied and hashed as a save and a restore do, without a disk."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import nn

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import TableDigest
from ett.checkpoint.segment_rows import READ_BYTES
from ett.checkpoint.table_segments import Bytes, Rows, TableSpec
from ett.checkpoint.training_state import TrainingState
from ett.checkpoint.worker_threads import NUM_CORES, in_threads

_TIMES = 3
Work = Callable[[TableSpec, NDArray[np.int64], tuple[Bytes, ...]], object]


def rates_of_work(model: nn.Module) -> dict[str, float]:
    """Return bytes a second, all cores at work: the best of three times over all rows.

    gather, scatter: between the tables and reused memory. save_hashes, read_hashes: of rows that are in no cache.
    """
    state = TrainingState(model)

    def gather(spec: TableSpec, ids: NDArray[np.int64], columns: tuple[Bytes, ...]) -> None:
        state.all_rows(spec).gather(ids, columns)

    def scatter(spec: TableSpec, ids: NDArray[np.int64], columns: tuple[Bytes, ...]) -> None:
        gather(spec, ids, columns)  # the very rows: the table stays as it is
        state.import_rows(spec, Rows(ids, columns))

    passes: dict[str, Work] = {
        "gather": gather,
        "gather_scatter": scatter,
        "read_hashes": _hash,
        "save_hashes": _hash_to_save,
    }
    num_bytes = sum(len(state.all_rows(spec).ids) * spec.row_bytes for spec in state.specs)
    seconds = {name: min(_seconds(state, work) for _ in range(_TIMES)) for name, work in passes.items()}
    seconds["scatter"] = max(1e-9, seconds.pop("gather_scatter") - seconds["gather"])
    return {name: num_bytes / value for name, value in seconds.items()}


def with_overlap(disk_rate: float, *work_rates: float) -> float:
    """Return the rate where work on all cores and the disk run beside each other, and neither waits for the other."""
    return min(disk_rate, 1 / sum(1 / rate for rate in work_rates))


def _hash(spec: TableSpec, ids: NDArray[np.int64], columns: tuple[Bytes, ...]) -> None:
    TableDigest(spec.name, spec.groups).sum_of(ids, columns)
    for column in columns:
        xxhash.xxh3_64_intdigest(column.reshape(-1).data)


def _hash_to_save(spec: TableSpec, ids: NDArray[np.int64], columns: tuple[Bytes, ...]) -> None:
    _hash(spec, ids, columns)
    for column in columns:
        xxhash.xxh3_128_intdigest(column.reshape(-1).data)


def _seconds(state: TrainingState, work: Work) -> float:
    buffers = BufferPool()
    pieces = []
    for spec in state.specs:
        ids = state.all_rows(spec).ids
        rows = READ_BYTES // spec.row_bytes
        pieces += [(spec, ids[start : start + rows]) for start in range(0, len(ids), rows)]

    def do(piece: tuple[TableSpec, NDArray[np.int64]]) -> None:
        spec, ids = piece
        with buffers.taken(len(ids) * spec.row_bytes) as memory:
            ends = np.cumsum([len(ids) * group.row_bytes for group in spec.groups])
            work(spec, ids, tuple(part.reshape(len(ids), -1) for part in np.split(memory, ends[:-1])))

    in_threads(pieces[: 2 * NUM_CORES], do, NUM_CORES)
    began = time.perf_counter()
    in_threads(pieces, do, NUM_CORES)
    return time.perf_counter() - began
