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
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import PAGE_BYTES, BufferPool
from ett.checkpoint.digest import ColumnGroup, TableDigest, combine
from ett.checkpoint.id_codec import unpack_ids
from ett.checkpoint.segment_reader import Segment, open_segment
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import IDS, TOMBSTONES, Bytes, Ids, Rows, TableFile, TableSpec
from ett.checkpoint.worker_threads import in_threads, num_io_threads
from ett.errors import CorruptState

Mask = NDArray[np.bool_]
READ_GROUP_BYTES = 64 << 20  # most bytes of rows that a thread of a restore holds besides the table itself


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

    def read(job: tuple[int, TableFile]) -> tuple[int, int, str]:
        number, file = job
        table, digest, num_rows = tables[number], TableDigest(tables[number].spec.name, tables[number].spec.groups), 0
        for rows in read_rows(store, table.spec, file, newest[number].wanted(file), buffers):
            digest.add(rows.ids, rows.columns)
            num_rows += len(rows.ids)
            table.take(rows)
        return number, num_rows, digest.hex

    totals: list[tuple[int, list[str]]] = [(0, []) for _ in tables]
    for number, num_rows, digest in in_threads(jobs, read, threads):
        totals[number] = (totals[number][0] + num_rows, [*totals[number][1], digest])
    return [(num_rows, combine(digests)) for num_rows, digests in totals]


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
            for record in per_section[section]:
                ids = read_ids(segment, record, name)
                found[name].append(ids[table.owned(ids)])
    return np.concatenate(found[IDS]), np.concatenate(found[TOMBSTONES])


def read_rows(
    store: Store, spec: TableSpec, file: TableFile, wanted: Callable[[Ids], Mask], buffers: BufferPool
) -> Iterator[Rows]:
    """Yield the wanted rows of a segment, in order, at most READ_GROUP_BYTES at a time, in memory that is used again.

    Raises: CorruptState: any byte that matters differs from what was committed.
    """
    with open_segment(store, file.stored, file.identity) as segment:
        per_section = checked_blocks(segment, spec, file)
        group = max(1, READ_GROUP_BYTES // (spec.block_rows * spec.row_bytes))
        for start in range(0, len(per_section[0]), group):
            chunk = [blocks[start : start + group] for blocks in per_section[: len(spec.groups) + 1]]
            ids = [read_ids(segment, record, IDS) for record in chunk[0]]
            masks = [wanted(part) for part in ids]
            mine = np.concatenate([part[mask] for part, mask in zip(ids, masks, strict=True)])
            if not len(mine):
                continue
            with buffers.taken(_memory_for(spec, chunk, masks)) as memory:
                yield Rows(mine, _read_columns(segment, spec, chunk[1:], masks, memory))


def _memory_for(spec: TableSpec, chunk: list[NDArray[np.void]], masks: list[Mask]) -> int:
    """Return the bytes of a group's rows and, where some are not wanted, of one block beside them."""
    rows = sum(len(mask) for mask in masks)
    has_gaps = not all(mask.all() for mask in masks)
    blocks = max(len(mask) for mask in masks) * max(group.row_bytes for group in spec.groups) if has_gaps else 0
    return rows * spec.row_bytes + blocks + PAGE_BYTES * len(chunk)


def _read_columns(
    segment: Segment, spec: TableSpec, chunk: list[NDArray[np.void]], masks: list[Mask], memory: Bytes
) -> tuple[Bytes, ...]:
    """Return the wanted rows of each group in `memory`: blocks that are wanted whole are read into their place."""
    counts = [int(mask.sum()) for mask in masks]
    columns, start = [], 0
    for blocks, group in zip(chunk, spec.groups, strict=True):
        size = sum(counts) * group.row_bytes
        column, scratch = memory[start : start + size], memory[start + size :]
        is_whole = [count == len(mask) for count, mask in zip(counts, masks, strict=True)]
        if all(is_whole):
            segment.read_run(blocks, group.name, column)
        else:
            wanted = zip(blocks, masks, strict=True)
            _read_wanted(segment, group, wanted, column.reshape(-1, group.row_bytes), scratch)
        columns.append(column.reshape(sum(counts), group.row_bytes))
        start += size + -size % PAGE_BYTES  # so that a local disk is read past the page cache
    return tuple(columns)


def _read_wanted(
    segment: Segment, group: ColumnGroup, blocks: Iterable[tuple[np.void, Mask]], column: Bytes, scratch: Bytes
) -> None:
    row = 0
    for record, mask in blocks:
        count = int(mask.sum())
        if count == len(mask):
            segment.read_block(record, group.name, column[row : row + count].reshape(-1))
        elif count:
            block = segment.read_block(record, group.name, scratch).reshape(len(mask), -1)
            np.compress(mask, block, axis=0, out=column[row : row + count])
        row += count


def read_ids(segment: Segment, record: np.void, section_name: str) -> Ids:
    payload = segment.read_block(record, section_name)
    ids = unpack_ids(int(record["codec"]), payload.data, int(record["min_id"]), int(record["num_rows"]))
    if ids is None or ids[-1] != record["max_id"] or not (ids[1:] > ids[:-1]).all():
        raise segment.corrupt(f"has {section_name} from {record['min_id']} that are not those of its index")
    return ids


def checked_blocks(segment: Segment, spec: TableSpec, file: TableFile) -> list[NDArray[np.void]]:
    """Return the index records of each section after checking that they cover the same rows."""
    expected = spec.sections(has_tombstones=file.num_tombstones > 0)
    header = segment.header
    if header["sections"] != expected or header["block_rows"] != spec.block_rows:
        raise segment.corrupt(f"holds {header['sections']}, the manifest says {expected}")
    per_section = [segment.blocks(number) for number in range(len(expected))]
    ids, values = per_section[0], per_section[1 : len(spec.groups) + 1]
    _check_count(segment, ids, file.num_rows, header["num_rows"], "rows")
    for tombstones in per_section[len(spec.groups) + 1 :]:
        _check_count(segment, tombstones, file.num_tombstones, header["num_tombstones"], "tombstones")
    for blocks, group in zip(values, spec.groups, strict=True):
        same = len(blocks) == len(ids) and all(
            (blocks[field] == ids[field]).all() for field in ("num_rows", "min_id", "max_id")
        )
        if not same or (blocks["length"] != blocks["num_rows"].astype(np.uint64) * group.row_bytes).any():
            raise segment.corrupt(f"has other rows in {group.name} than in its ids")
    return per_section


def _check_count(segment: Segment, blocks: NDArray[np.void], committed: int, in_header: int, what: str) -> None:
    found = int(blocks["num_rows"].sum())
    if found != committed or in_header != committed:
        raise segment.corrupt(f"holds {found} {what}, the manifest says {committed}")
