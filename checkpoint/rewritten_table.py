"""A table's live rows, read from a chain of files and written as new base segments, in bounded memory.

Every file is read once, front to back; what is live in several is brought together, a segment at most at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.digest import TableDigest, combine
from ett.checkpoint.live_rows import LiveRows, live_rows
from ett.checkpoint.quantised_rows import WeightBits
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import TableToRead, read_rows, read_tables
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables
from ett.checkpoint.worker_threads import in_threads
from ett.errors import CorruptState

# Each holds a segment's rows twice, as they were brought together and as they are written, and what it reads.
THREADS = 2


@dataclass(frozen=True, slots=True)
class _Segment:
    """Files whose live rows become one new segment."""

    number: int
    files: list[int]
    num_rows: int


@dataclass(frozen=True, slots=True)
class _Rewrite:
    store: Store
    spec: TableSpec
    files: Sequence[TableFile]
    live: LiveRows
    identity: SegmentIdentity
    buffers: BufferPool
    written: list[str]
    weight_bits: int

    def make(self, segment: _Segment) -> tuple[tuple[TableFile, ...], str, str]:
        """Return the new file, the digest of its rows as read, and as written."""
        spec, ids = self.spec, np.empty(segment.num_rows, np.int64)
        digest = TableDigest(spec.name, spec.groups)
        with self.buffers.taken(segment.num_rows * spec.row_bytes) as memory:
            columns = _columns(spec, segment.num_rows, memory)
            end = 0
            for number in segment.files:
                wanted = self.live.wanted(number)
                for rows in read_rows(self.store, spec, self.files[number], wanted, self.buffers):
                    digest.add(rows.ids, rows.columns)
                    start, end = end, end + len(rows.ids)
                    ids[start:end] = rows.ids
                    for column, found in zip(columns, rows.columns, strict=True):
                        column[start:end] = found
            order = np.argsort(ids, kind="stable")
            table = RowsToWrite(spec=spec, kind="base", ids=ids[order], gather=_gather(ids[order], order, columns))
            identity = replace(self.identity, writer=segment.number)
            bits = WeightBits(self.weight_bits)
            (made,) = write_tables(self.store, [table], identity, self.buffers, self.written, weight_bits=bits)
        return made.files, digest.hex, made.digest


def rewrite_table(
    store: Store, table: TableEntry, identity: SegmentIdentity, first_number: int, written: list[str]
) -> TableEntry:
    """Write the live rows of a table as base segments, read them back, and return the table that they make.

    Args:
        first_number: of the new files, which have numbers where a save's have the writer's rank.
        written: takes the names of all files, also where it fails.
    Raises: CorruptState: rows or digest are not those of the table, in what was read or in what was written.
    """
    spec, buffers = table.spec, BufferPool()
    files = sorted(table.files, key=_by_id)
    with live_rows(store, spec, files) as live:
        rewrite = _Rewrite(store, spec, files, live, identity, buffers, written, _common_bits(files))
        parts = in_threads(_segments(live.counts, spec.segment_rows, first_number), rewrite.make, THREADS)
    made = tuple(file for files, _, _ in parts for file in files)
    store.sync([file.stored.path for file in made])
    as_read = live.num_rows, combine([digest for _, digest, _ in parts])
    as_written = sum(file.num_rows for file in made), combine([digest for *_, digest in parts])
    found = {"in its chain": as_read, "as written": as_written, "as read back": _read_back(store, spec, made, buffers)}
    expected = table.num_rows, table.digest or as_read[1]
    for where, (num_rows, digest) in found.items():
        if (num_rows, digest) != expected:
            raise CorruptState(
                f"table {spec.name} {where} has {num_rows} rows with digest {digest}",
                expected=f"{expected[0]} rows with digest {expected[1]}",
                did="committed nothing",
                do="`ett checkpoint verify --level load` shows which commits are whole",
            )
    return replace(table, digest=expected[1], files=made)


def _common_bits(files: Sequence[TableFile]) -> int:
    """Return the bits of a weight where all files have the same: such rows are stored as they were, bit for bit."""
    bits = {file.weight_bits for file in files if file.num_rows}
    return bits.pop() if len(bits) == 1 else 0


def _by_id(file: TableFile) -> tuple[int, str]:
    return file.min_id, file.stored.path


def _segments(counts: list[int], segment_rows: int, number: int) -> Iterator[_Segment]:
    """Yield which files become which segment: in order, a full one at most."""
    files: list[int] = []
    num_rows = 0
    for file, count in enumerate(counts):
        if files and num_rows + count > segment_rows:
            yield _Segment(number, files, num_rows)
            files, num_rows, number = [], 0, number + 1
        if count:
            files.append(file)
            num_rows += count
    if files:
        yield _Segment(number, files, num_rows)


def _columns(spec: TableSpec, num_rows: int, memory: Bytes) -> list[Bytes]:
    ends = np.cumsum([num_rows * group.row_bytes for group in spec.groups])
    return [part.reshape(num_rows, -1) for part in np.split(memory, ends[:-1])]


def _gather(ids: Ids, order: Ids, columns: list[Bytes]) -> Callable[[Ids, tuple[Bytes, ...]], None]:
    def gather(some: Ids, out: tuple[Bytes, ...]) -> None:
        start = int(np.searchsorted(ids, some[0]))  # they follow each other
        for column, target in zip(columns, out, strict=True):
            np.take(column, order[start : start + len(some)], axis=0, out=target)

    return gather


def _read_back(store: Store, spec: TableSpec, files: tuple[TableFile, ...], buffers: BufferPool) -> tuple[int, str]:
    everything = TableToRead(
        spec=spec, files=files, owned=lambda ids: np.ones(len(ids), np.bool_), take=lambda rows: None
    )
    ((num_rows, digest),) = read_tables(store, [everything], buffers)
    return num_rows, digest
