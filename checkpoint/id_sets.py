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
        # Of each call of `add`: where its ids begin, and int64 [num_buckets + 1], at which of them each bucket does.
        self._added: dict[str, list[tuple[int, Ids]]] = {}

    def add(self, name: str, ids: Ids) -> None:
        """Args: ids: many at a time: of each call a number a bucket is kept in memory."""
        buckets = ((ids.view(np.uint64) * _SPREAD >> np.uint64(32)) % np.uint64(self.num_buckets)).astype(np.int64)
        starts = np.zeros(self.num_buckets + 1, np.int64)
        np.cumsum(np.bincount(buckets, minlength=self.num_buckets), out=starts[1:])
        self._added.setdefault(name, []).append((self._file.tell(), starts))
        self._file.write(ids[np.argsort(buckets, kind="stable")].data)

    def of(self, name: str, bucket: int) -> Ids:
        """Return the ids of a set in a bucket, ascending."""
        parts = [np.empty(0, np.int64)]
        for at, starts in self._added.get(name, []):
            self._file.seek(at + 8 * int(starts[bucket]))
            num_bytes = 8 * int(starts[bucket + 1] - starts[bucket])
            parts.append(np.frombuffer(self._file.read(num_bytes), np.int64))
        self._file.seek(0, 2)
        return np.sort(np.concatenate(parts))


@contextmanager
def id_sets(num_ids: int) -> Iterator[IdSets]:
    """Args: num_ids: of all sets together, about."""
    with tempfile.TemporaryFile(prefix="ett-id-sets-") as file:
        yield IdSets(file, num_ids)
