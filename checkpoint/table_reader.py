"""Reads tables back from their files: of every row the version with the highest seq, each verified, each once.

A table's files are its bases, which have all rows between their lowest and highest ids at their seq, and what changed
since: hot and cold files, with rows and tombstones. Kind decides nothing else. First the ids of what changed are read,
which says where each of them stands newest; then the pieces of all files are read, many at a time, and give away what
no other file has newer. No file is opened for longer than one piece of it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import TableDigest
from ett.checkpoint.newest_rows import NewestRows
from ett.checkpoint.read_plan import REMOTE_READS, Blocks, Mask, reads_at_once
from ett.checkpoint.segment_reader import Segment, open_segment
from ett.checkpoint.segment_rows import (
    Piece,
    UncheckedRows,
    checked_blocks,
    id_ranges,
    pieces_of,
    read_ids,
    unchecked_rows,
)
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import IDS, TOMBSTONES, Ids, Rows, TableFile, TableSpec
from ett.checkpoint.worker_threads import Parts, in_pipeline, in_threads
from ett.store_uri import is_local

REMOTE_READ_BYTES = 8 << 20  # of rows at once from a remote store: a tenth of a second of one connection


@dataclass(frozen=True, kw_only=True, slots=True)
class TableToRead:
    """What of a table is read, and who takes it.

    owned: returns bool [N], which of ids (int64 [N]) are wanted. take: is given the rows, by several threads at a
    time, in memory that is used for others afterwards.
    """

    spec: TableSpec
    files: tuple[TableFile, ...]
    owned: Callable[[Ids], Mask]
    take: Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class ReadTable:
    """What was given away of a table. num_bytes: read for it, of rows."""

    num_rows: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Job:
    """Something of a file to read: first the file, then parts of its ids, then pieces of its rows."""

    table: int
    file: TableFile
    known: Segment | None = None  # its envelope, once it was read
    ids: list[Blocks] | None = None
    piece: Piece | None = None


def read_tables(
    store: Store, tables: Sequence[TableToRead], buffers: BufferPool, remote_reads: int = REMOTE_READS
) -> list[ReadTable]:
    """Give the wanted rows of each table away.

    A block without a wanted row is skipped: what is not read here is read and verified by the rank that wants it, or
    is older than what is read.

    Args: remote_reads: requests under way at once to a store that is not a local folder.
    Raises: CorruptState: any byte that matters differs from what was committed.
    """
    reads = reads_at_once(store, remote_reads)
    read_bytes = None if is_local(store.uri) else REMOTE_READ_BYTES
    jobs = [_Job(number, file) for number, table in enumerate(tables) for file in table.files]
    changes = [job for job in jobs if job.file.identity.kind != "base"]
    found = in_threads(changes, lambda job: _changed_ids(store, tables[job.table], job.file), reads)
    newest = [NewestRows(table.spec, table.files, table.owned) for table in tables]
    known: dict[str, Segment] = {}
    for job, (ids, tombstones, segment) in zip(changes, found, strict=True):
        newest[job.table].add(job.file, ids, tombstones)
        known[job.file.stored.path] = segment
    for overlay in newest:
        overlay.settle()
    digests = [TableDigest(table.spec.name, table.spec.groups) for table in tables]

    def read(job: _Job) -> tuple[int, UncheckedRows] | Parts[_Job]:
        spec, file = tables[job.table].spec, job.file
        with open_segment(store, file.stored, file.identity, job.known) as segment:
            if job.piece is not None:
                return job.table, job.piece.read(segment, buffers)
            job = replace(job, known=segment.without_reader())
            if job.ids is None:
                parts = id_ranges(segment, spec, file)
                if len(parts) != 1:
                    return Parts([replace(job, ids=part) for part in parts])
                job = replace(job, ids=parts[0])
            assert job.ids is not None
            wanted = newest[job.table].wanted(file)
            pieces = pieces_of(segment, spec, file, job.ids, wanted, read_bytes=read_bytes)
            return Parts([replace(job, piece=piece) for piece in pieces])

    def take(item: tuple[int, UncheckedRows]) -> tuple[int, int, int, int]:
        number, unchecked = item
        num_bytes = sum(request.length for request in unchecked.piece.requests)
        with unchecked.lent:
            rows = unchecked.checked()
            words = digests[number].sum_of(rows.ids, rows.columns)
            tables[number].take(rows)
            return number, len(rows.ids), words, num_bytes

    counts, sizes = [0] * len(tables), [0] * len(tables)
    begun = (replace(job, known=known.pop(job.file.stored.path, None)) for job in jobs)
    for number, num_rows, words, num_bytes in in_pipeline(begun, read, take, reads):
        counts[number] += num_rows
        sizes[number] += num_bytes
        digests[number].value += words
    totals = zip(counts, digests, sizes, strict=True)
    return [ReadTable(num_rows, digest.hex, num_bytes) for num_rows, digest, num_bytes in totals]


def _changed_ids(store: Store, table: TableToRead, file: TableFile) -> tuple[Ids, Ids, Segment]:
    """Return the wanted ids of the rows and of the tombstones of a file, and its envelope."""
    with open_segment(store, file.stored, file.identity) as segment:
        per_section = checked_blocks(segment, table.spec, file)
        found = {IDS: [np.empty(0, np.int64)], TOMBSTONES: [np.empty(0, np.int64)]}
        for section in (0, *range(len(table.spec.groups) + 1, len(per_section))):
            name = segment.header["sections"][section]["name"]
            for ids in read_ids(segment, per_section[section], name):
                found[name].append(ids[table.owned(ids)])
        return np.concatenate(found[IDS]), np.concatenate(found[TOMBSTONES]), segment.without_reader()


def read_rows(
    store: Store, spec: TableSpec, file: TableFile, wanted: Callable[[Ids], Mask], buffers: BufferPool
) -> Iterator[Rows]:
    """Yield the wanted rows of a segment, in order, some blocks at a time, in memory that is used again.

    Raises: CorruptState: any byte that matters differs from what was committed.
    """
    with open_segment(store, file.stored, file.identity) as segment:
        for unchecked in unchecked_rows(segment, spec, file, wanted, buffers):
            with unchecked.lent:
                yield unchecked.checked()
