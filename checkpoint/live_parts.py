"""A table's live rows brought together from the files of its chain, a bounded part at a time.

Every file is read once, front to back; a part has the live rows of some files that follow each other, by ascending id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.digest import TableDigest
from ett.checkpoint.live_rows import LiveRows
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import read_rows
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec


@dataclass(frozen=True, slots=True)
class LivePart:
    """files: numbers of those whose live rows, num_rows of them, become one part."""

    number: int
    files: list[int]
    num_rows: int


@dataclass(frozen=True, slots=True)
class PartRows:
    """ids: int64 [N], ascending; row n of them is row order[n] of columns, uint8 [N, row_bytes] a group.

    digest: of the rows, as they were read.
    """

    ids: Ids
    order: Ids
    columns: list[Bytes]
    digest: str

    def take(self, group: int, start: int, out: Bytes) -> None:
        """Copy the rows of ids[start:] to `out`, as many as it has."""
        np.take(self.columns[group], self.order[start : start + len(out)], axis=0, out=out)


@dataclass(frozen=True, slots=True)
class LiveTable:
    """Files in the order that their live rows were found in."""

    store: Store
    spec: TableSpec
    files: Sequence[TableFile]
    live: LiveRows
    buffers: BufferPool

    @contextmanager
    def read(self, part: LivePart) -> Iterator[PartRows]:
        """Give the rows of a part, in memory that is used for others afterwards.

        Raises: CorruptState: any byte that matters differs from what was committed.
        """
        spec, ids = self.spec, np.empty(part.num_rows, np.int64)
        digest = TableDigest(spec.name, spec.groups)
        with self.buffers.taken(part.num_rows * spec.row_bytes) as memory:
            columns = _columns(spec, part.num_rows, memory)
            end = 0
            for number in part.files:
                wanted = self.live.wanted(number)
                for rows in read_rows(self.store, spec, self.files[number], wanted, self.buffers):
                    digest.add(rows.ids, rows.columns)
                    start, end = end, end + len(rows.ids)
                    ids[start:end] = rows.ids
                    for column, found in zip(columns, rows.columns, strict=True):
                        column[start:end] = found
            order = np.argsort(ids, kind="stable")
            yield PartRows(ids[order], order, columns, digest.hex)


def by_id(file: TableFile) -> tuple[int, str]:
    """Return what files are sorted by, so that a part has ids near each other."""
    return file.min_id, file.stored.path


def live_parts(counts: Sequence[int], part_rows: int, number: int = 0) -> Iterator[LivePart]:
    """Yield which files become which part: in order, part_rows rows at most where no file has more by itself.

    Args: counts: live rows of each file. number: of the first part.
    """
    files: list[int] = []
    num_rows = 0
    for file, count in enumerate(counts):
        if files and num_rows + count > part_rows:
            yield LivePart(number, files, num_rows)
            files, num_rows, number = [], 0, number + 1
        if count:
            files.append(file)
            num_rows += count
    if files:
        yield LivePart(number, files, num_rows)


def _columns(spec: TableSpec, num_rows: int, memory: Bytes) -> list[Bytes]:
    ends = np.cumsum([num_rows * group.row_bytes for group in spec.groups])
    return [part.reshape(num_rows, -1) for part in np.split(memory, ends[:-1])]
