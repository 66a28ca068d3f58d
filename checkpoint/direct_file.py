"""A new file that is written front to back past the page cache, from one aligned buffer (ADR 0003)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np

from ett.checkpoint.buffer_pool import PAGE_BYTES, Bytes


class DirectFile:
    """`write` as often as wanted, then `finish`, then `close`; what fits the buffer is written as any file is."""

    def __init__(self, path: Path, buffer: Bytes) -> None:
        """Create the file. Args: buffer: uint8, aligned to a page and a multiple of one; in use until `close`."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._buffer, self._filled = buffer, 0
        self._is_direct = False

    def fileno(self) -> int:
        return self._file

    def write(self, data: bytes | memoryview) -> int:
        """Take all of data, which may be changed afterwards."""
        left = np.frombuffer(data, np.uint8)
        while len(left):
            count = min(len(left), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = left[:count]
            self._filled += count
            left = left[count:]
            if self._filled == len(self._buffer):
                self._go_direct()
                self._write_out()
        return len(data)

    def flush(self) -> None:
        """Hand what was written to the system; nothing can be written afterwards."""
        self._go_cached()
        self._write_out()

    def close(self) -> None:
        os.close(self._file)

    def _write_out(self) -> None:
        done = 0
        while done < self._filled:
            done += os.write(self._file, self._buffer[done : self._filled].data)
            if done % PAGE_BYTES:
                self._go_cached()  # the system took less than it was given; what is left is not aligned
        self._filled = 0

    def _go_direct(self) -> None:
        if not self._is_direct:
            self._is_direct = self._set_flag(os.O_DIRECT)

    def _go_cached(self) -> None:
        if self._is_direct:
            self._is_direct = not self._set_flag(0)

    def _set_flag(self, flag: int) -> bool:
        others = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, others | flag)
        except OSError:  # a file system without it, such as tmpfs: then by way of the page cache
            return False
        return True
