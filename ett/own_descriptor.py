"""A file descriptor that a program may close behind our back, and open a file of its own under the same number."""

from __future__ import annotations

import os


class OwnDescriptor:
    """Owns `fd` from now on."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._file = _file_of(fd)

    @property
    def is_ours(self) -> bool:
        """Whether the number still stands for what it stood for: daemons close all that they do not know."""
        return self._file is not None and _file_of(self.fd) == self._file

    def close(self) -> None:
        """Close it, if it is ours; once."""
        if self.is_ours:
            os.close(self.fd)
        self._file = None


def _file_of(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
