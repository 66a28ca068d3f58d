"""Memory for rows that are kept until they are written: bounded, of all tables of a rank, in blocks."""

from __future__ import annotations

import threading

from ett.checkpoint.buffer_pool import Bytes, mapped

BLOCK_BYTES = 256 << 10


class StagingPool:
    """Blocks that are lent; a block takes memory from its first use on, and the one given back last is lent next."""

    def __init__(self, limit_bytes: int) -> None:
        """Args: limit_bytes: at least BLOCK_BYTES."""
        self._num_blocks = limit_bytes // BLOCK_BYTES
        self.blocks: Bytes = mapped(self._num_blocks * BLOCK_BYTES)[: self._num_blocks * BLOCK_BYTES].reshape(
            self._num_blocks, BLOCK_BYTES
        )
        self._idle = list(range(self._num_blocks))[::-1]
        self._most_lent = 0
        self._changed = threading.Condition()

    @property
    def most_bytes(self) -> int:
        """Return how much was lent at once, at most."""
        return self._most_lent * BLOCK_BYTES

    @property
    def lent(self) -> int:
        return self._num_blocks - len(self._idle)

    def take(self) -> int | None:
        """Return the number of a block; None: all are lent."""
        with self._changed:
            if not self._idle:
                return None
            number = self._idle.pop()
            self._most_lent = max(self._most_lent, self.lent)
            return number

    def give_back(self, numbers: list[int]) -> None:
        with self._changed:
            self._idle += numbers
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when a block may be idle, or after a time."""
        with self._changed:
            if not self._idle:
                self._changed.wait(timeout_s)
