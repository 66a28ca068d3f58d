"""A table's live rows, read from a chain of files and written as new base segments, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.digest import combine
from ett.checkpoint.live_parts import LivePart, LiveTable, PartRows, by_id, live_parts
from ett.checkpoint.live_rows import live_rows
from ett.checkpoint.quantised_rows import WeightBits
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables
from ett.checkpoint.worker_threads import in_threads
from ett.errors import CorruptState

# Each holds a segment's rows twice, as they were brought together and as they are written, and what it reads.
THREADS = 2


@dataclass(frozen=True, slots=True)
class _Rewrite:
    table: LiveTable
    identity: SegmentIdentity
    written: list[str]
    weight_bits: int

    def make(self, part: LivePart) -> tuple[tuple[TableFile, ...], str, str]:
        """Return the new file, the digest of its rows as read, and as written."""
        spec = self.table.spec
        with self.table.read(part) as rows:
            to_write = RowsToWrite(spec=spec, kind="base", ids=rows.ids, gather=_gather(rows))
            identity = replace(self.identity, writer=part.number)
            bits = WeightBits(self.weight_bits)
            store, buffers = self.table.store, self.table.buffers
            (made,) = write_tables(store, [to_write], identity, buffers, self.written, weight_bits=bits)
            return made.files, rows.digest, made.digest


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
    files = sorted(table.files, key=by_id)
    with live_rows(store, spec, files) as live:
        rewrite = _Rewrite(LiveTable(store, spec, files, live, buffers), identity, written, _common_bits(files))
        parts = in_threads(live_parts(live.counts, spec.segment_rows, first_number), rewrite.make, THREADS)
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


def _gather(rows: PartRows) -> Callable[[Ids, tuple[Bytes, ...]], None]:
    def gather(some: Ids, out: tuple[Bytes, ...]) -> None:
        start = int(np.searchsorted(rows.ids, some[0]))  # they follow each other
        for group, target in enumerate(out):
            rows.take(group, start, target)

    return gather


def _read_back(store: Store, spec: TableSpec, files: tuple[TableFile, ...], buffers: BufferPool) -> tuple[int, str]:
    everything = TableToRead(
        spec=spec, files=files, owned=lambda ids: np.ones(len(ids), np.bool_), take=lambda rows: None
    )
    (found,) = read_tables(store, [everything], buffers)
    return found.num_rows, found.digest
