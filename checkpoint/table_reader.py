"""Reads tables back from their files: of every row the version with the highest seq, each verified, each once.

A table's files are its bases, which have all rows between their lowest and highest ids at their seq, and what changed
since: hot and cold files, with rows and tombstones. Kind decides nothing else. First the ids of what changed are read,
which says where each of them stands newest; then every file is read front to back by one thread, and gives away what no
other file has newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import TableDigest
from ett.checkpoint.segment_reader import open_segment
from ett.checkpoint.segment_rows import Mask, UncheckedRows, checked_blocks, read_ids, unchecked_rows
from ett.checkpoint.store import Store
from ett.checkpoint.store_uri import is_local
from ett.checkpoint.table_segments import IDS, TOMBSTONES, Ids, Rows, TableFile, TableSpec
from ett.checkpoint.worker_threads import in_pipeline, in_threads, num_io_threads
from ett.errors import CorruptState

DISK_READERS = 3  # keep a local disk busy; more only take the processor from those that work on what was read


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


def read_tables(store: Store, tables: Sequence[TableToRead], buffers: BufferPool) -> list[tuple[int, str]]:
    """Give the wanted rows of each table away, and return how many there were and their digest.

    A block without a wanted row is skipped: what is not read here is read and verified by the rank that wants it, or
    is older than what is read.
    Raises: CorruptState: any byte that matters differs from what was committed.
    """
    threads = num_io_threads()
    changes = [
        (number, file) for number, table in enumerate(tables) for file in table.files if file.identity.kind != "base"
    ]
    found = in_threads(changes, lambda job: _changed_ids(store, tables[job[0]], job[1]), threads)
    newest = [_Newest(table) for table in tables]
    for (number, file), (ids, tombstones) in zip(changes, found, strict=True):
        newest[number].add(file, ids, tombstones)
    for overlay in newest:
        overlay.settle()
    jobs = [(number, file) for number, table in enumerate(tables) for file in table.files]
    digests = [TableDigest(table.spec.name, table.spec.groups) for table in tables]

    def read(job: tuple[int, TableFile]) -> Iterator[tuple[int, UncheckedRows]]:
        number, file = job
        with open_segment(store, file.stored, file.identity) as segment:
            for rows in unchecked_rows(segment, tables[number].spec, file, newest[number].wanted(file), buffers):
                yield number, rows

    def take(item: tuple[int, UncheckedRows]) -> tuple[int, int, int]:
        number, unchecked = item
        with unchecked.lent:
            rows = unchecked.checked()
            words = digests[number].sum_of(rows.ids, rows.columns)
            tables[number].take(rows)
            return number, len(rows.ids), words

    counts = [0] * len(tables)
    for number, num_rows, words in in_pipeline(jobs, read, take, DISK_READERS if is_local(store.uri) else threads):
        counts[number] += num_rows
        digests[number].value += words
    return [(count, digest.hex) for count, digest in zip(counts, digests, strict=True)]


def twice_in(spec: TableSpec, seq: int, row_id: int) -> CorruptState:
    return CorruptState(
        f"table {spec.name}: two files of commit {seq} have id {row_id}",
        expected="a row or its tombstone in one file of a commit",
        do="restore another commit",
    )


class _Newest:
    """Where every id that changed since the base stands newest; 12 bytes an id when settled."""

    def __init__(self, table: TableToRead) -> None:
        self._table = table
        self._bases = [file for file in table.files if file.identity.kind == "base"]
        self._files: list[TableFile] = []
        self._parts: list[tuple[int, Ids, int]] = []  # seq, ids, 2 * number of the file + whether they are tombstones

    def add(self, file: TableFile, ids: Ids, tombstones: Ids) -> None:
        overtaking = Spans(base for base in self._bases if base.seq >= file.seq)
        for part, is_gone in ((ids, False), (tombstones, True)):
            self._parts.append((file.seq, part[~overtaking.cover(part)], 2 * len(self._files) + is_gone))
        self._files.append(file)

    def settle(self) -> None:
        parts = sorted(self._parts, key=lambda part: part[0])
        self._parts = []
        ids = np.concatenate([np.empty(0, np.int64), *(ids for _, ids, _ in parts)])
        places = np.repeat(np.array([place for *_, place in parts], np.int32), [len(ids) for _, ids, _ in parts])
        seqs = np.repeat(np.array([seq for seq, *_ in parts], np.int64), [len(ids) for _, ids, _ in parts])
        order = np.argsort(ids, kind="stable")  # equal ids stay in the order of seq
        ids, places, seqs = ids[order], places[order], seqs[order]
        twice = np.flatnonzero((ids[1:] == ids[:-1]) & (seqs[1:] == seqs[:-1]))
        if len(twice):
            raise twice_in(self._table.spec, int(seqs[twice[0]]), int(ids[twice[0]]))
        is_last = np.ones(len(ids), np.bool_)
        is_last[:-1] = ids[1:] != ids[:-1]
        self._ids, self._places = ids[is_last], places[is_last]

    def wanted(self, file: TableFile) -> Callable[[Ids], Mask]:
        """Return which ids of a file are wanted and stand newest in it."""
        if file.identity.kind == "base":
            newer = Spans(base for base in self._bases if base.seq > file.seq)
            return lambda ids: self._wanted_of_base(ids) & ~newer.cover(ids)
        place = 2 * next(number for number, other in enumerate(self._files) if other is file)

        def is_newest(ids: Ids) -> Mask:
            at, is_known = self._find(ids)
            is_known[is_known] = self._places[at[is_known]] == place
            return is_known

        return is_newest

    def _wanted_of_base(self, ids: Ids) -> Mask:
        mask = self._table.owned(ids)
        return mask & ~self._find(ids)[1] if len(self._ids) else mask

    def _find(self, ids: Ids) -> tuple[Ids, Mask]:
        at = np.searchsorted(self._ids, ids)
        is_known: Mask = at < len(self._ids)
        is_known[is_known] = self._ids[at[is_known]] == ids[is_known]
        return at, is_known


class Spans:
    """Ids between the lowest and the highest of any of some bases."""

    def __init__(self, bases: Iterable[TableFile]) -> None:
        spans = sorted((base.min_id, base.max_id) for base in bases)
        self._lows = np.array([low for low, _ in spans], np.int64)
        self._highs = np.maximum.accumulate(np.array([high for _, high in spans], np.int64))

    def cover(self, ids: Ids) -> Mask:
        if not len(self._lows):
            return np.zeros(len(ids), np.bool_)
        at = np.searchsorted(self._lows, ids, side="right") - 1
        covered: Mask = (at >= 0) & (ids <= self._highs[at])
        return covered


def _changed_ids(store: Store, table: TableToRead, file: TableFile) -> tuple[Ids, Ids]:
    """Return the wanted ids of the rows and of the tombstones of a file."""
    with open_segment(store, file.stored, file.identity) as segment:
        per_section = checked_blocks(segment, table.spec, file)
        found = {IDS: [np.empty(0, np.int64)], TOMBSTONES: [np.empty(0, np.int64)]}
        for section in (0, *range(len(table.spec.groups) + 1, len(per_section))):
            name = segment.header["sections"][section]["name"]
            for ids in read_ids(segment, per_section[section], name):
                found[name].append(ids[table.owned(ids)])
    return np.concatenate(found[IDS]), np.concatenate(found[TOMBSTONES])


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
