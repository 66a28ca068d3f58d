"""Writes tables: rows are gathered block by block into reused memory, hashed there, and written a segment a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import ColumnGroup, TableDigest, combine
from ett.checkpoint.id_codec import pack_ids
from ett.checkpoint.quantised_rows import (
    CODECS,
    EXACT,
    WeightBits,
    bits_of,
    first_unfit,
    quantise,
    restored,
    stored_row_bytes,
)
from ett.checkpoint.segment import SegmentIdentity, StoredFile, padding_bytes
from ett.checkpoint.segment_writer import BlockOfRows, RowForm, SegmentWriter
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec, segment_folder
from ett.checkpoint.worker_threads import CORES, in_threads, num_io_threads, one_ahead
from ett.errors import CorruptState

Gather = Callable[[Ids, tuple[Bytes, ...]], None]
PIECE_BYTES = 8 << 20  # of rows of the first group that are gathered and written at once (ADR 0003)
_NO_IDS: Ids = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsToWrite:
    """What of a table goes into files of one kind.

    ids: int64 [N], strictly ascending. gather: copies the rows of some of them to uint8 [n, row_bytes] a group of the
    spec, by several threads at a time. tombstones: int64 [M], strictly ascending, none of ids: rows that are no more.
    """

    spec: TableSpec
    kind: str
    ids: Ids
    gather: Gather
    tombstones: Ids = field(default_factory=lambda: _NO_IDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenTable:
    spec: TableSpec
    kind: str
    num_rows: int
    digest: str  # of the rows in these files, as they come back
    files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a table goes into one segment."""

    table: RowsToWrite
    number: int
    ids: Ids
    tombstones: Ids
    weight_bits: int  # of an element in the file; 0: as it is

    @property
    def id_range(self) -> tuple[int, int]:
        ends = [int(ids[at]) for ids in (self.ids, self.tombstones) if len(ids) for at in (0, -1)]
        return min(ends), max(ends)


def write_tables(
    store: Store,
    tables: Iterable[RowsToWrite],
    identity: SegmentIdentity,
    buffers: BufferPool,
    written: list[str],
    *,
    weight_bits: WeightBits = EXACT,
) -> list[WrittenTable]:
    """Write tables, which are asked for one by one; no rows and no tombstones are no segment.

    A table may come several times, with files of another kind each.
    Args: written: takes the name of every segment, also where another one fails. weight_bits: of float32 weights
        (quantised_rows.py).
    Raises: CorruptState: a weight that is to be quantised is not finite.
    """
    seen: list[WrittenTable] = []

    def parts() -> Iterator[_Part]:
        for table in tables:
            empty = combine([])
            seen.append(WrittenTable(spec=table.spec, kind=table.kind, num_rows=len(table.ids), digest=empty, files=()))
            yield from _parts(table, bits_of(table.spec.groups[0], weight_bits.of(table.spec.name)))

    def write(part: _Part) -> tuple[tuple[str, str], TableFile, str]:
        file, digest = _write_segment(store, part, identity, buffers)
        written.append(file.stored.path)
        return (part.table.spec.table_id, part.table.kind), file, digest

    of_table: dict[tuple[str, str], list[tuple[TableFile, str]]] = {}
    for key, file, digest in in_threads(parts(), write, num_io_threads()):
        of_table.setdefault(key, []).append((file, digest))
    return [_with_files(table, of_table.get((table.spec.table_id, table.kind), [])) for table in seen]


def _with_files(table: WrittenTable, files: Sequence[tuple[TableFile, str]]) -> WrittenTable:
    return replace(table, files=tuple(file for file, _ in files), digest=combine([digest for _, digest in files]))


def _parts(table: RowsToWrite, weight_bits: int) -> Iterator[_Part]:
    size = table.spec.segment_rows
    for number, start in enumerate(range(0, max(len(table.ids), len(table.tombstones)), size)):
        part = slice(start, start + size)
        yield _Part(table, number, table.ids[part], table.tombstones[part], weight_bits)


def _write_segment(store: Store, part: _Part, identity: SegmentIdentity, buffers: BufferPool) -> tuple[TableFile, str]:
    spec, kind = part.table.spec, part.table.kind
    whose = replace(identity, table=spec.name, kind=kind, part=part.number)
    folder = segment_folder(whose.ckpt_uuid, whose.writer)
    path = f"{folder}/{spec.table_id}.{kind}.w{whose.writer:05d}.{part.number}.seg"
    segment = _SegmentInPieces(part, whose, buffers)
    with store.create_stream(path) as file:
        for piece in one_ahead(segment.pieces()):
            with piece.lent:
                for data in piece.data:
                    file.write(data)
    low, high = part.id_range
    written = TableFile(
        stored=StoredFile(path=path, bytes=segment.length, xxh3_128=segment.file_hash),
        identity=whose,
        num_rows=len(part.ids),
        num_tombstones=len(part.tombstones),
        min_id=low,
        max_id=high,
        weight_bits=part.weight_bits,
    )
    return written, segment.digest.hex


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is written next, in memory that is lent until then."""

    data: list[memoryview | bytes]
    lent: ExitStack


class _SegmentInPieces:
    """A segment front to back: the first group's rows are gathered some blocks at a time, with those of the others,
    which follow them in the file and are kept until then."""

    def __init__(self, part: _Part, identity: SegmentIdentity, buffers: BufferPool) -> None:
        self.digest = TableDigest(part.table.spec.name, part.table.spec.groups)
        self.length, self.file_hash = 0, ""
        self._part, self._spec, self._buffers = part, part.table.spec, buffers
        self._bits = part.weight_bits
        raw, *others = (group.row_bytes for group in self._spec.groups)
        weight = RowForm(stored_row_bytes(self._spec.groups[0], self._bits), raw, CODECS.get(self._bits, 0))
        self._forms = [weight, *(RowForm(size, size) for size in others)]
        self._header = _header(part, identity)
        self._data: list[memoryview | bytes] = []

    def write(self, data: memoryview | bytes) -> None:
        self._data.append(data)

    def pieces(self) -> Iterator[_Piece]:
        """Yield the segment; afterwards its length and hashes are known."""
        writer = SegmentWriter(self, self._header)
        self._write_ids(writer, 0, self._part.ids)
        with ExitStack() as kept:
            later = self._room(self._spec.groups[1:], len(self._part.ids), kept)
            blocks = self._blocks(self._part.ids)
            records: list[list[BlockOfRows]] = [[] for _ in self._spec.groups]
            writer.begin_section()
            at_once = max(1, PIECE_BYTES // (self._spec.block_rows * self._spec.groups[0].row_bytes))
            for start in range(0, len(blocks), at_once):
                yield self._rows_of(blocks[start : start + at_once], later, records, writer)
            for number, column in enumerate(later, start=2):
                writer.begin_section()
                writer.write_rows(number, _flat(column), records[number - 1], self._forms[number - 1])
            if len(self._part.tombstones):
                self._write_ids(writer, len(self._spec.groups) + 1, self._part.tombstones)
            self.length, self.file_hash = writer.finish()
            yield self._piece(kept.pop_all())

    def _rows_of(
        self,
        blocks: list[slice],
        later: tuple[Bytes, ...],
        records: list[list[BlockOfRows]],
        writer: SegmentWriter,
    ) -> _Piece:
        """Gather some blocks and hash them, while they are in the processor's cache."""
        first, end = blocks[0].start, blocks[-1].stop
        ids, lent = self._part.ids[first:end], ExitStack()
        columns = self._room(self._spec.groups[:1], end - first, lent) + tuple(column[first:end] for column in later)
        with CORES:
            self._part.table.gather(ids, columns)
            stored = self._stored(ids, columns[0])
            self.digest.add(ids, columns)
            columns = (stored, *columns[1:])
            for of_group, column in zip(records, columns, strict=True):
                for block in blocks:
                    checksum = xxhash.xxh3_64_intdigest(_flat(column[block.start - first : block.stop - first]))
                    id_range = _ends(self._part.ids[block])
                    of_group.append(BlockOfRows(block.stop - block.start, id_range, checksum))
            writer.write_rows(1, _flat(columns[0]), records[0][-len(blocks) :], self._forms[0])
        return self._piece(lent)

    def _stored(self, ids: Ids, weights: Bytes) -> Bytes:
        """Return weights as they are written, and leave in their place what will come back."""
        if not self._bits:
            return weights
        unfit = first_unfit(weights)
        if unfit is not None:
            raise CorruptState(
                f"table {self._spec.name}: the weights of id {ids[unfit]} are not all finite",
                expected="finite numbers: they are to be quantised",
                do="find out where they come from; without checkpoint.quantise they are saved as they are",
            )
        stored = quantise(weights, self._bits)
        weights[:] = restored(stored, self._spec.groups[0].width, self._bits)
        return stored

    def _room(self, groups: Sequence[ColumnGroup], num_rows: int, stack: ExitStack) -> tuple[Bytes, ...]:
        """Return memory for rows, uint8 [num_rows, row_bytes] a group, each on a page, until the stack unwinds."""
        sizes = [num_rows * group.row_bytes for group in groups]
        memory = stack.enter_context(self._buffers.taken(sum(size + padding_bytes(size) for size in sizes)))
        columns, start = [], 0
        for group, size in zip(groups, sizes, strict=True):
            columns.append(memory[start : start + size].reshape(num_rows, group.row_bytes))
            start += size + padding_bytes(size)
        return tuple(columns)

    def _piece(self, lent: ExitStack) -> _Piece:
        data, self._data = self._data, []
        return _Piece(data, lent)

    def _blocks(self, ids: Ids) -> list[slice]:
        rows = self._spec.block_rows
        return [slice(start, min(len(ids), start + rows)) for start in range(0, len(ids), rows)]

    def _write_ids(self, writer: SegmentWriter, section: int, ids: Ids) -> None:
        writer.begin_section()
        for block in self._blocks(ids):
            codec, payload = pack_ids(ids[block])
            num_rows = block.stop - block.start
            writer.write_block(
                section, payload, codec=codec, num_rows=num_rows, raw_length=8 * num_rows, id_range=_ends(ids[block])
            )


def _flat(column: Bytes) -> memoryview:
    return column.reshape(-1).data


def _header(part: _Part, identity: SegmentIdentity) -> dict[str, Any]:
    spec, (low, high) = part.table.spec, part.id_range
    return {
        **identity.as_json(),
        "format": "rckseg",
        "version": 1,
        "dim": spec.dim,
        "sections": spec.sections(has_tombstones=bool(len(part.tombstones)), weight_bits=part.weight_bits),
        "num_rows": len(part.ids),
        "num_tombstones": len(part.tombstones),
        "block_rows": spec.block_rows,
        "row_range": [low, high + 1],
        "col_range": [0, spec.dim],
    }


def _ends(ids: Ids) -> tuple[int, int]:
    return int(ids[0]), int(ids[-1])
