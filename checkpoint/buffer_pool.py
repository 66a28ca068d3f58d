"""Memory for rows on their way to and from files: page-aligned, taken and given back, never freed in between."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PAGE_BYTES = 4096
# Sizes are rounded up, so that what a save has used serves a restore: both ask for a segment and a little more.
_STEP_BYTES = 16 << 20


class BufferPool:
    """Buffers of one owner; a page takes memory from its first use on and stays, so that a save faults none in."""

    def __init__(self) -> None:
        self.num_lent = 0  # so far
        self._idle: list[Bytes] = []
        # What a failed save left behind is given back by the garbage collector, in any thread and at any instant, also
        # within the lock: so that takes none.
        self._given_back: deque[Bytes] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, num_bytes: int) -> Iterator[Bytes]:
        """Lend uint8 [num_bytes], aligned to a page, of any content."""
        with self._lock:
            self.num_lent += 1
            while self._given_back:
                self._idle.append(self._given_back.popleft())
            self._idle.sort(key=len)
            fits = next((number for number, idle in enumerate(self._idle) if len(idle) >= num_bytes), None)
            if fits is not None:
                buffer = self._idle.pop(fits)
            elif self._idle:
                self._idle.pop()  # replaced by a larger one: the pool holds as many as are in use at once
        if fits is None:
            buffer = mapped(max(1, num_bytes))
        try:
            yield buffer[:num_bytes]
        finally:
            self._given_back.append(buffer)


def is_page_aligned(memory: memoryview) -> bool:
    """Return whether memory begins at a page, as O_DIRECT needs it."""
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def mapped(num_bytes: int) -> Bytes:
    """Return new memory of its own, a little more than asked for, in huge pages where the system has them."""
    memory = mmap.mmap(-1, -(-num_bytes // _STEP_BYTES) * _STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
