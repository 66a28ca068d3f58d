"""A new file that is written front to back past the page cache, from aligned memory (ADR 0003)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np

from ett.checkpoint.buffer_pool import PAGE_BYTES, Bytes, is_page_aligned

SMALLEST_DIRECT_BYTES = 1 << 20  # that are written from where they lie, without a copy


class DirectFile:
    """`write` as often as wanted, then `flush`, then `close`; what fits the buffer is written as any file is."""

    def __init__(self, path: Path, buffer: Bytes) -> None:
        """Create the file. Args: buffer: uint8, aligned to a page and a multiple of one; in use until `close`."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._buffer, self._filled = buffer, 0
        self._is_direct, self._may_be_direct = False, True

    def fileno(self) -> int:
        return self._file

    def write(self, data: bytes | memoryview) -> int:
        """Take all of data, which may be changed afterwards."""
        view = memoryview(data)
        whole = len(view) // PAGE_BYTES * PAGE_BYTES
        if whole >= SMALLEST_DIRECT_BYTES and self._filled % PAGE_BYTES == 0 and is_page_aligned(view):
            self._go_direct()
            self._write_buffer()
            self._write_out(view[:whole])
        else:
            whole = 0
        self._copy(np.frombuffer(view[whole:], np.uint8))
        return len(view)

    def flush(self) -> None:
        """Hand what was written to the system; nothing can be written afterwards."""
        self._go_cached()
        self._write_buffer()

    def close(self) -> None:
        os.close(self._file)

    def _copy(self, left: Bytes) -> None:
        while len(left):
            count = min(len(left), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = left[:count]
            self._filled += count
            left = left[count:]
            if self._filled == len(self._buffer):
                self._go_direct()
                self._write_buffer()

    def _write_buffer(self) -> None:
        self._write_out(self._buffer[: self._filled].data)
        self._filled = 0

    def _write_out(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += self._write_some(data[done:])
            if self._is_direct and done % PAGE_BYTES:  # the system took less than it was given, and not whole pages
                self._go_cached()
                self._may_be_direct = False

    def _write_some(self, data: memoryview) -> int:
        return os.write(self._file, data)

    def _go_direct(self) -> None:
        if self._may_be_direct and not self._is_direct:
            self._is_direct = self._may_be_direct = self._set_flag(os.O_DIRECT)

    def _go_cached(self) -> None:
        if self._is_direct:
            self._set_flag(0)
            self._is_direct = False

    def _set_flag(self, flag: int) -> bool:
        others = fcntl.fcntl(self._file, fcntl.F_GETFL) & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, others | flag)
        except OSError:  # a file system without it, such as tmpfs: then by way of the page cache
            return False
        return True
