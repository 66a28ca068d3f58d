"""The disk alone: what it writes, flushed, and reads, not from the page cache, with as many threads as a save has."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ett.checkpoint.bench.spent import Spent, spent
from ett.checkpoint.buffer_pool import BufferPool, Bytes
from ett.checkpoint.segment_rows import READ_BYTES
from ett.checkpoint.table_segments import SEGMENT_BYTES
from ett.checkpoint.table_writer import PIECE_BYTES
from ett.checkpoint.worker_threads import in_threads, num_io_threads

WAYS = ("direct", "cached")


class Disk:
    """Files of the size of segments, of `num_bytes` in all, in pieces as a save writes and a restore reads them."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self._folder, self.num_bytes = folder, num_bytes
        self._buffers = BufferPool()
        folder.mkdir()

    def write_s(self, way: str) -> float:
        """Return the seconds that writing takes, each file and the folder flushed; earlier files are gone before."""
        self.remove()
        os.sync()
        return self._timed(lambda job, buffer: self._write(job, buffer, way), PIECE_BYTES) + self._flush_folder_s()

    def read_s(self, way: str) -> float:
        """Return the seconds that reading what was written takes."""
        drop_from_cache(self._folder)
        return self._timed(lambda job, buffer: self._read(job, buffer, way), READ_BYTES)

    def write(self, way: str) -> Spent:
        """As `write_s`, with all that it took, what is done before included but for the seconds."""
        seconds: list[float] = []
        took = spent(lambda: seconds.append(self.write_s(way)))
        return replace(took, seconds=seconds[0])

    def read(self, way: str) -> Spent:
        seconds: list[float] = []
        took = spent(lambda: seconds.append(self.read_s(way)))
        return replace(took, seconds=seconds[0])

    def remove(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def _timed(self, work: Callable[[tuple[Path, int], Bytes], None], piece_bytes: int) -> float:
        starts = range(0, self.num_bytes, SEGMENT_BYTES)
        jobs = [(self._folder / f"{start}", min(SEGMENT_BYTES, self.num_bytes - start)) for start in starts]

        def with_buffer(job: tuple[Path, int]) -> None:
            with self._buffers.taken(piece_bytes) as buffer:
                work(job, buffer)

        began = time.perf_counter()
        in_threads(jobs, with_buffer, num_io_threads())
        return time.perf_counter() - began

    def _write(self, job: tuple[Path, int], buffer: Bytes, way: str) -> None:
        path, size = job
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | (os.O_DIRECT if way == "direct" else 0)
        file = os.open(path, flags)
        try:
            for start in range(0, size, len(buffer)):
                part = min(len(buffer), size - start)
                os.write(file, buffer[: part + -part % 4096].data)
            os.fsync(file)
        finally:
            os.close(file)

    def _read(self, job: tuple[Path, int], buffer: Bytes, way: str) -> None:
        path, _ = job
        file = os.open(path, os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0))
        try:
            start = 0
            while got := os.preadv(file, [buffer.data], start):
                start += got
                if got < len(buffer):
                    break
        finally:
            os.close(file)

    def _flush_folder_s(self) -> float:
        began = time.perf_counter()
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return time.perf_counter() - began


def drop_from_cache(folder: Path) -> None:
    """Have the page cache forget the files of a folder, which must be on the disk already."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
