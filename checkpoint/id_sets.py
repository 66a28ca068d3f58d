"""Sets of ids that are larger than memory: spread over buckets in a temporary file, and compared a bucket at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from ett.checkpoint.table_segments import Ids

BUCKET_IDS = 1 << 20  # of all sets together, about: 8 MiB, and as much again while they are sorted
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: ids that follow each other go apart


class IdSets:
    """Some sets, by name, whose ids are added in any order, each at most once a set."""

    def __init__(self, file: BinaryIO, num_ids: int) -> None:
        self.num_buckets = max(1, -(-num_ids // BUCKET_IDS))
        self._file = file
        self._places: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def add(self, name: str, ids: Ids) -> None:
        buckets = (ids.view(np.uint64) * _SPREAD >> np.uint64(32)) % np.uint64(self.num_buckets)
        order = np.argsort(buckets, kind="stable")
        found, starts = np.unique(buckets[order], return_index=True)
        for bucket, part in zip(found.tolist(), np.split(ids[order], starts[1:]), strict=True):
            self._places.setdefault((name, bucket), []).append((self._file.tell(), len(part)))
            self._file.write(part.data)

    def of(self, name: str, bucket: int) -> Ids:
        """Return the ids of a set in a bucket, ascending."""
        parts = [np.empty(0, np.int64)]
        for start, count in self._places.get((name, bucket), []):
            self._file.seek(start)
            parts.append(np.frombuffer(self._file.read(8 * count), np.int64))
        self._file.seek(0, 2)
        return np.sort(np.concatenate(parts))


@contextmanager
def id_sets(num_ids: int) -> Iterator[IdSets]:
    """Args: num_ids: of all sets together, about."""
    with tempfile.TemporaryFile(prefix="ett-id-sets-") as file:
        yield IdSets(file, num_ids)
