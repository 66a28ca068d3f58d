"""One file of a log of records of one size: appended to through a descriptor, read through a mapping."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.tiers.row_store import Bytes


class LogSegment:
    """Space is taken when the file is made, so that a full disk is an error of a call and no signal at a page.

    A sealed segment holds a mapping and no descriptor: the open files of a log do not grow with it.
    """

    def __init__(self, path: Path, *, number: int, capacity: int, record_bytes: int) -> None:
        """Make the file. Raises: OSError: no space, no rights."""
        self.path, self.number, self.capacity = path, number, capacity
        self.used = self.live = 0  # records
        self._record_bytes = record_bytes
        num_bytes = capacity * record_bytes
        self._fd: int | None = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, num_bytes)
            # torch keeps no descriptor for it, mmap.mmap does.
            mapped = torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
        except (OSError, RuntimeError) as err:  # torch says the latter
            self.drop()
            raise err if isinstance(err, OSError) else OSError(0, str(err)) from err
        self.records = mapped.view(capacity, record_bytes)

    @property
    def room(self) -> int:
        """Records that may still be appended."""
        return 0 if self._fd is None else self.capacity - self.used

    @property
    def num_bytes(self) -> int:
        return self.capacity * self._record_bytes

    def append(self, records: Bytes) -> int:
        """Write records (uint8 [n, record_bytes], n <= room) behind those that are there; return the first's position.

        Raises: OSError: and then the next append writes over whatever was begun.
        """
        assert self._fd is not None
        rest, offset = records.data.cast("B"), self.used * self._record_bytes
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            rest, offset = rest[written:], offset + written
        position, self.used = self.used, self.used + len(records)
        return position

    def read(self, positions: Ids, out: Bytes) -> None:
        """Copy records to out.

        Raises: OSError: the file is gone or has been cut; to touch its pages would be a signal.
        """
        if os.stat(self.path).st_size < self.num_bytes:
            raise OSError(0, "the file has been cut", str(self.path))
        torch.index_select(self.records, 0, torch.from_numpy(positions), out=torch.from_numpy(out))

    def seal(self) -> None:
        """Take no more records."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def drop(self) -> None:
        """Remove the file."""
        self.seal()
        self.path.unlink(missing_ok=True)
