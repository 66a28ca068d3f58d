"""Memory for rows that are kept until they are written: bounded, of all tables of a rank, in blocks."""

from __future__ import annotations

import threading

from ett.checkpoint.buffer_pool import Bytes, mapped

BLOCK_BYTES = 256 << 10


class StagingPool:
    """Blocks that are lent; a block takes memory from its first use on, and the one given back last is lent next."""

    def __init__(self, limit_bytes: int, urgent_bytes: int = 0, block_bytes: int = 0) -> None:
        """Args: limit_bytes: at least a block. urgent_bytes: beyond it, see `take`. block_bytes: 0: BLOCK_BYTES."""
        self.block_bytes = block_bytes or BLOCK_BYTES
        self._num_urgent = urgent_bytes // self.block_bytes
        self._num_blocks = limit_bytes // self.block_bytes + self._num_urgent
        size = self._num_blocks * self.block_bytes
        self.blocks: Bytes = mapped(size)[:size].reshape(self._num_blocks, self.block_bytes)
        self._idle = list(range(self._num_blocks))[::-1]
        self._most_lent = 0
        self._changed = threading.Condition()

    @property
    def most_bytes(self) -> int:
        """Return how much was lent at once, at most."""
        return self._most_lent * self.block_bytes

    @property
    def lent(self) -> int:
        return self._num_blocks - len(self._idle)

    @property
    def is_overdrawn(self) -> bool:
        """Return whether more than the limit is lent."""
        return len(self._idle) < self._num_urgent

    def take(self, *, is_urgent: bool = False) -> int | None:
        """Return the number of a block; None: all are lent.

        Args: is_urgent: a writer waits for what is to go there, so nobody would give blocks back before.
        """
        with self._changed:
            if len(self._idle) <= (0 if is_urgent else self._num_urgent):
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
            if len(self._idle) <= self._num_urgent:
                self._changed.wait(timeout_s)
