"""Rows of a table's segment, some blocks at a time: read in long requests first, verified and picked afterwards.

So that one thread can wait for the disk while another works on what has been read, and several for one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.id_codec import unpack_ids
from ett.checkpoint.quantised_rows import CODECS, restored, stored_row_bytes
from ett.checkpoint.read_plan import Blocks, Mask, Request, requests_for, wanted_runs
from ett.checkpoint.segment_reader import Segment
from ett.checkpoint.table_segments import IDS, Bytes, Ids, Rows, TableFile, TableSpec

READ_BYTES = 16 << 20  # of rows that are read at once (ADR 0003)
ROWS_OF_IDS = 1 << 20  # of which the ids are read at once: 8 MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Blocks of rows that are read at once, with at least one wanted row in the first and in the last.

    ids: verified, of all rows of the blocks. blocks: index records of each group of the spec.
    """

    spec: TableSpec
    weight_bits: int  # as in the file
    ids: Ids
    is_wanted: Mask
    blocks: list[Blocks]
    requests: list[Request]

    def read(self, segment: Segment, buffers: BufferPool) -> UncheckedRows:
        """Return what the segment, which is open, has of it."""
        lent = ExitStack()
        num_read = sum(request.room_bytes for request in self.requests)
        memory = lent.enter_context(buffers.taken(num_read + self._room_bytes()))
        found: list[Bytes] = []
        at = 0
        for request in self.requests:
            part = segment.load_range(request.offset, memory[at : at + request.length])
            found += [part[start - request.offset : end - request.offset] for start, end in request.groups]
            at += request.room_bytes
        return UncheckedRows(piece=self, segment=segment, found=found, room=memory[at:], lent=lent)

    def _room_bytes(self) -> int:
        """Return how many bytes the wanted rows need, where not all are."""
        num_wanted = int(np.count_nonzero(self.is_wanted))
        return 0 if num_wanted == len(self.ids) else num_wanted * self.spec.row_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class UncheckedRows:
    """A piece as it came from the store."""

    piece: Piece
    segment: Segment
    found: list[Bytes]  # what was read of each group
    room: Bytes  # for the wanted rows, where not all are
    lent: ExitStack  # to be closed when the rows are not needed any more

    def checked(self) -> Rows:
        """Return the wanted rows, verified. Raises: CorruptState."""
        piece = self.piece
        for group, blocks, found in zip(piece.spec.groups, piece.blocks, self.found, strict=True):
            self.segment.check(blocks, group.name, found)
        columns = [found.reshape(len(piece.ids), -1) for found in self.found]
        ids = piece.ids
        if not piece.is_wanted.all():
            ids, columns = ids[piece.is_wanted], list(self._picked(columns))
        if piece.weight_bits:
            columns[0] = restored(columns[0], piece.spec.groups[0].width, piece.weight_bits)
        return Rows(ids, tuple(columns))

    def _picked(self, columns: list[Bytes]) -> Iterator[Bytes]:
        is_wanted = self.piece.is_wanted
        count, start = int(is_wanted.sum()), 0
        for column in columns:
            end = start + count * column.shape[1]
            picked = self.room[start:end].reshape(count, column.shape[1])
            np.compress(is_wanted, column, axis=0, out=picked)
            yield picked
            start = end


def unchecked_rows(
    segment: Segment, spec: TableSpec, file: TableFile, wanted: Callable[[Ids], Mask], buffers: BufferPool
) -> Iterator[UncheckedRows]:
    """Yield the rows of a segment in order, but for blocks without a wanted one, in memory that is used again.

    Args: wanted: returns bool [N], which of ids (int64 [N]) are wanted; asked for all rows once, in order.
    Raises: CorruptState: ids or the index differ from what was committed.
    """
    for part in id_ranges(segment, spec, file):
        for piece in pieces_of(segment, spec, file, part, wanted):
            yield piece.read(segment, buffers)


def id_ranges(segment: Segment, spec: TableSpec, file: TableFile) -> list[list[Blocks]]:
    """Return the index records of ids and groups, cut so that the ids of a part may be in memory at once."""
    per_section = checked_blocks(segment, spec, file)[: len(spec.groups) + 1]
    at_once = max(1, ROWS_OF_IDS // spec.block_rows)
    starts = range(0, len(per_section[0]), at_once)
    return [[blocks[start : start + at_once] for blocks in per_section] for start in starts]


def pieces_of(
    segment: Segment,
    spec: TableSpec,
    file: TableFile,
    part: list[Blocks],
    wanted: Callable[[Ids], Mask],
    *,
    read_bytes: int | None = None,
) -> list[Piece]:
    """Return what there is to read of a part of a segment, whose ids are read here.

    Args: part: of `id_ranges`. read_bytes: of a piece, about; None: READ_BYTES.
    """
    ids = np.concatenate(read_ids(segment, part[0], IDS))
    mask = wanted(ids)
    ends = np.concatenate([[0], np.cumsum(part[0]["num_rows"].astype(np.int64))])
    pieces = []
    for begin, end in wanted_runs(mask, ends, max(1, (read_bytes or READ_BYTES) // (spec.block_rows * spec.row_bytes))):
        rows, blocks = slice(ends[begin], ends[end]), [group[begin:end] for group in part[1:]]
        pieces.append(
            Piece(
                spec=spec,
                weight_bits=file.weight_bits,
                ids=ids[rows],
                is_wanted=mask[rows],
                blocks=blocks,
                requests=requests_for(blocks),
            )
        )
    return pieces


def read_ids(segment: Segment, records: Blocks, section_name: str) -> list[Ids]:
    """Return the verified ids of blocks that follow each other, int64 [rows] for each."""
    if not len(records):
        return []
    payload = segment.load(records, np.empty(int(records["length"].sum()), np.uint8))
    segment.check(records, section_name, payload)
    ends = np.cumsum(records["length"].astype(np.int64))
    parts = zip(records, np.split(payload, ends[:-1]), strict=True)
    return [_unpacked(segment, record, part, section_name) for record, part in parts]


def _unpacked(segment: Segment, record: np.void, payload: Bytes, section_name: str) -> Ids:
    ids = unpack_ids(int(record["codec"]), payload.data, int(record["min_id"]), int(record["num_rows"]))
    if ids is None or ids[-1] != record["max_id"]:
        raise segment.corrupt(f"has {section_name} from {record['min_id']} that are not those of its index")
    return ids


def checked_blocks(segment: Segment, spec: TableSpec, file: TableFile) -> list[NDArray[np.void]]:
    """Return the index records of each section after checking that they cover the same rows."""
    expected = spec.sections(has_tombstones=file.num_tombstones > 0, weight_bits=file.weight_bits)
    header = segment.header
    if header["sections"] != expected or header["block_rows"] != spec.block_rows:
        raise segment.corrupt(f"holds {header['sections']}, the manifest says {expected}")
    per_section = [segment.blocks(number) for number in range(len(expected))]
    ids, values = per_section[0], per_section[1 : len(spec.groups) + 1]
    _check_count(segment, ids, file.num_rows, header["num_rows"], "rows")
    for tombstones in per_section[len(spec.groups) + 1 :]:
        _check_count(segment, tombstones, file.num_tombstones, header["num_tombstones"], "tombstones")
    ends = [(int(b[0]["min_id"]), int(b[-1]["max_id"])) for b in (ids, *per_section[len(spec.groups) + 1 :]) if len(b)]
    if ends and (min(ends)[0], max(high for _, high in ends)) != (file.min_id, file.max_id):
        raise segment.corrupt(f"has other ids than {file.min_id} to {file.max_id}, as the manifest says")
    for number, (blocks, group) in enumerate(zip(values, spec.groups, strict=True)):
        bits = 0 if number else file.weight_bits
        same = len(blocks) == len(ids) and all(
            (blocks[field] == ids[field]).all() for field in ("num_rows", "min_id", "max_id")
        )
        size = np.uint64(stored_row_bytes(group, bits))
        same = same and bool((blocks["length"] == blocks["num_rows"].astype(np.uint64) * size).all())
        if not same or (blocks["codec"] != CODECS.get(bits, 0)).any():
            raise segment.corrupt(f"has other rows in {group.name} than in its ids")
    return per_section


def _check_count(segment: Segment, blocks: NDArray[np.void], committed: int, in_header: int, what: str) -> None:
    found = int(blocks["num_rows"].sum())
    if found != committed or in_header != committed:
        raise segment.corrupt(f"holds {found} {what}, the manifest says {committed}")
