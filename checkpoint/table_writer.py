"""Writes tables: rows are gathered block by block into reused memory, hashed there, and written a segment a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import TableDigest, combine
from ett.checkpoint.id_codec import pack_ids
from ett.checkpoint.segment import SegmentIdentity, StoredFile, padding_bytes
from ett.checkpoint.segment_writer import SegmentWriter
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec, segment_folder
from ett.checkpoint.worker_threads import CORES, in_threads, num_io_threads

Gather = Callable[[Ids, tuple[Bytes, ...]], None]
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
    num_rows: int
    digest: str  # of the rows in these files
    files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a table goes into one segment."""

    table: RowsToWrite
    number: int
    ids: Ids
    tombstones: Ids

    @property
    def id_range(self) -> tuple[int, int]:
        ends = [int(ids[at]) for ids in (self.ids, self.tombstones) if len(ids) for at in (0, -1)]
        return min(ends), max(ends)


def write_tables(
    store: Store, tables: Iterable[RowsToWrite], identity: SegmentIdentity, buffers: BufferPool, written: list[str]
) -> list[WrittenTable]:
    """Write tables, which are asked for one by one; no rows and no tombstones are no segment.

    Args: written: takes the name of every segment, also where another one fails.
    """
    seen: list[WrittenTable] = []

    def parts() -> Iterator[_Part]:
        for table in tables:
            seen.append(WrittenTable(spec=table.spec, num_rows=len(table.ids), digest=combine([]), files=()))
            yield from _parts(table)

    def write(part: _Part) -> tuple[TableSpec, TableFile, str]:
        file, digest = _write_segment(store, part, identity, buffers)
        written.append(file.stored.path)
        return part.table.spec, file, digest

    of_table: dict[str, list[tuple[TableFile, str]]] = {}
    for spec, file, digest in in_threads(parts(), write, num_io_threads()):
        of_table.setdefault(spec.table_id, []).append((file, digest))
    return [_with_files(table, of_table.get(table.spec.table_id, [])) for table in seen]


def _with_files(table: WrittenTable, files: Sequence[tuple[TableFile, str]]) -> WrittenTable:
    return replace(table, files=tuple(file for file, _ in files), digest=combine([digest for _, digest in files]))


def _parts(table: RowsToWrite) -> Iterator[_Part]:
    size = table.spec.segment_rows
    for number, start in enumerate(range(0, max(len(table.ids), len(table.tombstones)), size)):
        part = slice(start, start + size)
        yield _Part(table, number, table.ids[part], table.tombstones[part])


def _write_segment(store: Store, part: _Part, identity: SegmentIdentity, buffers: BufferPool) -> tuple[TableFile, str]:
    spec, kind = part.table.spec, part.table.kind
    whose = replace(identity, table=spec.name, kind=kind, part=part.number)
    folder = segment_folder(whose.ckpt_uuid, whose.writer)
    path = f"{folder}/{spec.table_id}.{kind}.w{whose.writer:05d}.{part.number}.seg"
    digest = TableDigest(spec.name, spec.groups)
    with ExitStack() as stack:
        columns = _columns(spec, len(part.ids), stack, buffers)
        with CORES:
            checksums = [_gather(part, block, columns, digest) for block in _blocks(spec, part.ids)]
        file = stack.enter_context(store.create_stream(path))
        writer = SegmentWriter(file, _header(part, whose))
        _write_ids(writer, 0, spec, part.ids)
        for number, column in enumerate(columns, start=1):
            writer.begin_section()
            for block, sums in zip(_blocks(spec, part.ids), checksums, strict=True):
                ids, payload = part.ids[block], column[block].reshape(-1).data
                writer.write_block(number, payload, num_rows=len(ids), id_range=_ends(ids), checksum=sums[number - 1])
        if len(part.tombstones):
            _write_ids(writer, len(columns) + 1, spec, part.tombstones)
        length, file_hash = writer.finish()
    low, high = part.id_range
    written = TableFile(
        stored=StoredFile(path=path, bytes=length, xxh3_128=file_hash),
        identity=whose,
        num_rows=len(part.ids),
        num_tombstones=len(part.tombstones),
        min_id=low,
        max_id=high,
    )
    return written, digest.hex


def _columns(spec: TableSpec, num_rows: int, stack: ExitStack, buffers: BufferPool) -> tuple[Bytes, ...]:
    """Return memory for the rows of a segment: uint8 [num_rows, row_bytes] a group, lent until the stack unwinds."""
    sizes = [num_rows * group.row_bytes for group in spec.groups]
    memory = stack.enter_context(buffers.taken(sum(size + padding_bytes(size) for size in sizes)))
    columns, start = [], 0
    for group, size in zip(spec.groups, sizes, strict=True):
        columns.append(memory[start : start + size].reshape(num_rows, group.row_bytes))
        start += size + padding_bytes(size)
    return tuple(columns)


def _gather(part: _Part, block: slice, columns: tuple[Bytes, ...], digest: TableDigest) -> list[int]:
    """Bring one block's rows into place; hash them at once, while they are in the processor's cache."""
    ids, rows = part.ids[block], tuple(column[block] for column in columns)
    part.table.gather(ids, rows)
    digest.add(ids, rows)
    return [xxhash.xxh3_64_intdigest(column.reshape(-1).data) for column in rows]


def _blocks(spec: TableSpec, ids: Ids) -> list[slice]:
    return [slice(start, min(len(ids), start + spec.block_rows)) for start in range(0, len(ids), spec.block_rows)]


def _write_ids(writer: SegmentWriter, section: int, spec: TableSpec, ids: Ids) -> None:
    writer.begin_section()
    for block in _blocks(spec, ids):
        codec, payload = pack_ids(ids[block])
        num_rows = block.stop - block.start
        writer.write_block(
            section, payload, codec=codec, num_rows=num_rows, raw_length=8 * num_rows, id_range=_ends(ids[block])
        )


def _header(part: _Part, identity: SegmentIdentity) -> dict[str, Any]:
    spec, (low, high) = part.table.spec, part.id_range
    return {
        **identity.as_json(),
        "format": "rckseg",
        "version": 1,
        "dim": spec.dim,
        "sections": spec.sections(has_tombstones=bool(len(part.tombstones))),
        "num_rows": len(part.ids),
        "num_tombstones": len(part.tombstones),
        "block_rows": spec.block_rows,
        "row_range": [low, high + 1],
        "col_range": [0, spec.dim],
    }


def _ends(ids: Ids) -> tuple[int, int]:
    return int(ids[0]), int(ids[-1])
