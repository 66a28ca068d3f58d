"""A table's rows in segments: one id list, then weights and states in blocks of equal rows; needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ett.checkpoint.digest import ColumnGroup, TableDigest
from ett.checkpoint.id_codec import pack_ids, unpack_ids
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.segment_reader import Segment, open_segment
from ett.checkpoint.segment_writer import SegmentWriter
from ett.checkpoint.store import Store

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int64]
BLOCK_BYTES = 2 << 20  # of weights in a block: the unit of checksums and of what a restore may skip
SEGMENT_BYTES = 1 << 30  # of weights and states in a segment
READ_GROUP_BYTES = 64 << 20  # most bytes of rows that a restore holds besides the table itself


@dataclass(frozen=True, kw_only=True, slots=True)
class TableSpec:
    """What a table looks like in files: its canonical name, its number there, the weight and every state."""

    table_id: str  # "t0003": names may hold characters that a file name must not
    name: str
    dim: int
    groups: tuple[ColumnGroup, ...]  # the weight first

    @property
    def row_bytes(self) -> int:
        return sum(group.row_bytes for group in self.groups)

    @property
    def block_rows(self) -> int:
        return max(256, 1 << (BLOCK_BYTES // self.groups[0].row_bytes).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Rows:
    """ids: int64 [N], strictly ascending. columns: uint8 [N, row_bytes] for each group of the spec."""

    ids: Ids
    columns: tuple[Bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableFile:
    """One segment of a table, as the manifest lists it."""

    stored: StoredFile
    identity: SegmentIdentity
    num_rows: int
    min_id: int
    max_id: int

    def as_json(self, dim: int) -> dict[str, Any]:
        return {
            **self.stored.as_json(),
            "ckpt_uuid": self.identity.ckpt_uuid,
            "seq": self.identity.seq_parent + 1,
            "step": self.identity.step,
            "kind": self.identity.kind,
            "writer": self.identity.writer,
            "part": self.identity.part,
            "rows": [self.min_id, self.max_id + 1],
            "cols": [0, dim],
            "n_rows": self.num_rows,
            "n_tomb": 0,
            "min_id": self.min_id,
            "max_id": self.max_id,
        }

    @classmethod
    def from_json(cls, entry: dict[str, Any], table: str) -> TableFile:
        return cls(
            stored=StoredFile.from_json(entry),
            identity=SegmentIdentity.from_json(entry, table),
            num_rows=entry["n_rows"],
            min_id=entry["min_id"],
            max_id=entry["max_id"],
        )


def segment_folder(ckpt_uuid: str, writer: int) -> str:
    """Return the folder of a writer's segments; two digits of a hash spread the names of an object store."""
    spread = xxhash.xxh3_64_hexdigest(f"{ckpt_uuid}/{writer}".encode())[:2]
    return f"d/{spread}/{ckpt_uuid}"


def write_table(store: Store, spec: TableSpec, rows: Rows, identity: SegmentIdentity) -> tuple[list[TableFile], str]:
    """Write all rows of one writer; return the segments and the digest of the rows. No rows, no segment."""
    digest = TableDigest(spec.name, spec.groups)
    per_segment = max(spec.block_rows, SEGMENT_BYTES // spec.row_bytes // spec.block_rows * spec.block_rows)
    files = []
    for part, start in enumerate(range(0, len(rows.ids), per_segment)):
        piece = Rows(
            rows.ids[start : start + per_segment], tuple(column[start : start + per_segment] for column in rows.columns)
        )
        whose = replace(identity, table=spec.name, part=part)
        files.append(_write_segment(store, spec, piece, whose, digest))
    return files, digest.hex


def _write_segment(
    store: Store, spec: TableSpec, rows: Rows, identity: SegmentIdentity, digest: TableDigest
) -> TableFile:
    folder = segment_folder(identity.ckpt_uuid, identity.writer)
    path = f"{folder}/{spec.table_id}.{identity.kind}.w{identity.writer:05d}.{identity.part}.seg"
    blocks = [slice(start, start + spec.block_rows) for start in range(0, len(rows.ids), spec.block_rows)]
    with store.create_stream(path) as file:
        writer = SegmentWriter(file, _header(spec, rows, identity))
        writer.begin_section()
        for block in blocks:
            ids = rows.ids[block]
            codec, payload = pack_ids(ids)
            writer.write_block(0, payload, codec=codec, num_rows=len(ids), raw_length=8 * len(ids), id_range=_ends(ids))
        for number, column in enumerate(rows.columns, start=1):
            writer.begin_section()
            for block in blocks:
                ids, part = rows.ids[block], np.ascontiguousarray(column[block])
                writer.write_block(number, part.reshape(-1).data, num_rows=len(ids), id_range=_ends(ids))
        length, file_hash = writer.finish()
    digest.add(rows.ids, rows.columns)
    stored = StoredFile(path=path, bytes=length, xxh3_128=file_hash)
    return TableFile(
        stored=stored,
        identity=identity,
        num_rows=len(rows.ids),
        min_id=int(rows.ids[0]),
        max_id=int(rows.ids[-1]),
    )


def _header(spec: TableSpec, rows: Rows, identity: SegmentIdentity) -> dict[str, Any]:
    sections = [{"name": "ids", "dtype": "int64", "width": 1}]
    sections += [{"name": group.name, "dtype": group.dtype, "width": group.width} for group in spec.groups]
    low, high = _ends(rows.ids)
    return {
        **identity.as_json(),
        "format": "rckseg",
        "version": 1,
        "dim": spec.dim,
        "sections": sections,
        "num_rows": len(rows.ids),
        "block_rows": spec.block_rows,
        "row_range": [low, high + 1],
        "col_range": [0, spec.dim],
    }


def _ends(ids: Ids) -> tuple[int, int]:
    return int(ids[0]), int(ids[-1])


def read_rows(
    store: Store, spec: TableSpec, file: TableFile, owned: Callable[[Ids], NDArray[np.bool_]]
) -> Iterator[Rows]:
    """Yield the owned rows of a segment, in order, at most READ_GROUP_BYTES of rows at a time.

    Blocks without an owned row are skipped: what is not read here is read and verified by the rank that owns it.
    Raises: CorruptState: any byte that matters differs from what was committed.
    """
    with open_segment(store, file.stored, file.identity) as segment:
        per_section = _checked_blocks(segment, spec, file)
        group = max(1, READ_GROUP_BYTES // (spec.block_rows * spec.row_bytes))
        for start in range(0, len(per_section[0]), group):
            chunk = [blocks[start : start + group] for blocks in per_section]
            rows = _read_group(segment, spec, chunk, owned)
            if len(rows.ids):
                yield rows


def _read_group(
    segment: Segment,
    spec: TableSpec,
    chunk: list[NDArray[np.void]],
    owned: Callable[[Ids], NDArray[np.bool_]],
) -> Rows:
    ids = [_read_ids(segment, record) for record in chunk[0]]
    masks = [owned(part) for part in ids]
    counts = [int(mask.sum()) for mask in masks]
    total = sum(counts)
    columns = []
    scratch = np.empty(spec.block_rows * max(group.row_bytes for group in spec.groups), np.uint8)
    for blocks, group in zip(chunk[1:], spec.groups, strict=True):
        column, row = np.empty((total, group.row_bytes), np.uint8), 0
        for record, mask, count in zip(blocks, masks, counts, strict=True):
            if count == len(mask):
                segment.read_block(record, group.name, column[row : row + count].reshape(-1))
            elif count:
                block = segment.read_block(record, group.name, scratch)
                np.compress(mask, block.reshape(len(mask), -1), axis=0, out=column[row : row + count])
            row += count
        columns.append(column)
    mine = [part[mask] for part, mask in zip(ids, masks, strict=True)]
    return Rows(np.concatenate(mine) if mine else np.empty(0, np.int64), tuple(columns))


def _read_ids(segment: Segment, record: np.void) -> Ids:
    payload = segment.read_block(record, "ids")
    ids = unpack_ids(int(record["codec"]), payload.data, int(record["min_id"]), int(record["num_rows"]))
    if ids is None or ids[-1] != record["max_id"] or not (ids[1:] > ids[:-1]).all():
        raise segment.corrupt(f"has ids from {record['min_id']} that are not those of its index")
    return ids


def _checked_blocks(segment: Segment, spec: TableSpec, file: TableFile) -> list[NDArray[np.void]]:
    """Return the index records of each section after checking that they cover the same rows."""
    expected = [("ids", "int64", 1), *((group.name, group.dtype, group.width) for group in spec.groups)]
    found = [(section["name"], section["dtype"], section["width"]) for section in segment.header["sections"]]
    if found != expected or segment.header["block_rows"] != spec.block_rows:
        raise segment.corrupt(f"holds {found}, the manifest says {expected}")
    per_section = [segment.blocks(number) for number in range(len(expected))]
    ids = per_section[0]
    if int(ids["num_rows"].sum()) != file.num_rows or segment.header["num_rows"] != file.num_rows:
        raise segment.corrupt(f"holds {int(ids['num_rows'].sum())} rows, the manifest says {file.num_rows}")
    for blocks, group in zip(per_section[1:], spec.groups, strict=True):
        same = len(blocks) == len(ids) and all(
            (blocks[field] == ids[field]).all() for field in ("num_rows", "min_id", "max_id")
        )
        if not same or (blocks["length"] != blocks["num_rows"].astype(np.uint64) * group.row_bytes).any():
            raise segment.corrupt(f"has other rows in {group.name} than in its ids")
    return per_section
