"""A ring: lines of one event-log file in memory that outlives the process which wrote them, until they are on the disk.

One page of header, then `capacity` bytes of data. Byte n of the stream of lines lies at data[n % capacity] and belongs
at offset n of the file: one ring, one file, and its position is all the state there is. The writer (the rank, under
its lock) copies a line and then raises `head`, in one store of 8 bytes; what a killed process half copied lies beyond
`head` and is never seen. The drain (the supervisor) copies [tail, head) to the file and then raises `tail`; a drain
that dies in between writes the same bytes to the same place again.

The writer holds a lock on the file (flock) while it lives. Pages are reserved when the ring is made: a full tmpfs
refuses the ring, and never a store into it.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.event_line import MAX_LINE_BYTES, NATIVE
from ett.own_descriptor import OwnDescriptor

MAGIC = b"ETTRING1"
HEADER_BYTES = 4096
# 4 MiB hold 12,000 step records of 340 bytes: 20 minutes of steps of 100 ms, 2 minutes of steps of 10 ms.
CAPACITY_BYTES = 4 << 20
_WORDS_BYTES = 128
_ABOUT = struct.Struct("<I")

# Words of 8 bytes in the header. The writer's and the drain's lie in lines of their own of the processor's cache.
CAPACITY = 1
HEAD, DROPPED, DROPPED_TOLD, SKIPPED, NEXT_SEQ, CLOSED = 2, 3, 4, 5, 6, 7  # stored by the writer
TAIL, SYNCED, LIFE = 8, 9, 10  # stored by the drain
SYNC_WANTED = 11  # stored by the writer, seldom


@dataclass(frozen=True, kw_only=True, slots=True)
class RingHeader:
    """What a ring is, said once when it is made."""

    job_dir: str
    file: str  # the stem of its file below events/: "1/r0-host-77-0123abcd"
    common: Mapping[str, Any]  # of every record
    start_ticks: int  # of the writer's process, beside common's pid and boot

    def encode(self) -> bytes:
        about = {"job_dir": self.job_dir, "file": self.file, "common": self.common, "start_ticks": self.start_ticks}
        return json.dumps(about).encode()

    @classmethod
    def decode(cls, text: bytes) -> RingHeader:
        """Raises: ValueError: it is none."""
        try:
            plain = json.loads(text)
            about = cls(
                job_dir=str(plain["job_dir"]),
                file=str(plain["file"]),
                common=dict(plain["common"]),
                start_ticks=int(plain["start_ticks"]),
            )
        except (KeyError, TypeError) as err:
            raise ValueError("not the header of a ring") from err
        return about


class Ring:
    """A mapped ring, opened by its writer or by its drain; `words` is the shared header."""

    def __init__(self, path: Path, fd: int) -> None:
        """Map what `fd` is open on; the ring owns it from now on. Raises: ValueError, OSError: it is no ring."""
        self.path, self.fd = path, fd
        self.descriptor = OwnDescriptor(fd)
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES:
            raise ValueError(f"{path} is no ring")
        # MAP_POPULATE: the first record of each page must not pay for a page fault.
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.words = memoryview(self._map)[:_WORDS_BYTES].cast("Q")
        self.capacity = size - HEADER_BYTES
        if self._map[:8] != MAGIC or self.words[CAPACITY] != self.capacity:
            raise ValueError(f"{path} is no ring")
        (length,) = _ABOUT.unpack_from(self._map, _WORDS_BYTES)
        begin = _WORDS_BYTES + _ABOUT.size
        self.header = RingHeader.decode(self._map[begin : begin + length])
        self._appender: Any = None

    def appender(self) -> Any:
        """Return what appends records of whole numbers natively (`_ring.Appender`); None where it is not built."""
        if self._appender is None and NATIVE is not None:
            self._appender = NATIVE.Appender(self._map, HEADER_BYTES)
        return self._appender

    @classmethod
    def create(cls, path: Path, header: RingHeader, capacity: int = CAPACITY_BYTES) -> Ring:
        """Make the ring and lock it. Raises: OSError: no room, no folder, or no right to."""
        about = header.encode()
        unfinished = path.with_name(f".{path.name}.new")
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(fd, 0, HEADER_BYTES + capacity)
            os.pwrite(fd, struct.pack("<8sQ", MAGIC, capacity), 0)
            os.pwrite(fd, _ABOUT.pack(len(about)) + about[: HEADER_BYTES - _WORDS_BYTES - _ABOUT.size], _WORDS_BYTES)
            ring = cls(path, fd)
            os.rename(unfinished, path)
        except (OSError, ValueError) as err:
            os.close(fd)
            os.unlink(unfinished)
            raise OSError(f"no ring at {path}: {err}") from err
        return ring

    @classmethod
    def open(cls, path: Path) -> Ring:
        """Raises: OSError, ValueError: it is gone, or no ring."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return cls(path, fd)
        except (OSError, ValueError):
            os.close(fd)
            raise

    def append(self, line: bytes, *, is_sync: bool = False) -> bool:
        """Add a line, or return False where there is no room. One caller at a time."""
        words, capacity = self.words, self.capacity
        head, length = words[HEAD], len(line)
        if head + length - words[TAIL] > capacity:
            return False
        begin = head % capacity
        room = capacity - begin
        if length <= room:
            begin += HEADER_BYTES
            self._map[begin : begin + length] = line
        else:
            self._map[HEADER_BYTES + begin : HEADER_BYTES + capacity] = line[:room]
            self._map[HEADER_BYTES : HEADER_BYTES + length - room] = line[room:]
        if is_sync:
            words[SYNC_WANTED] = head + length
        words[HEAD] = head + length
        return True

    def peek(self, begin: int, end: int) -> bytes:
        """Return the stream's bytes [begin, end), which must lie in [tail, head)."""
        at, length = begin % self.capacity, end - begin
        room = min(self.capacity - at, length)
        at += HEADER_BYTES
        return self._map[at : at + room] + self._map[HEADER_BYTES : HEADER_BYTES + length - room]

    def whole_end(self) -> int:
        """Return the position up to which whole lines have arrived.

        A processor with weak ordering (ARM) may show `head` before the last line's bytes; the writer's lock orders
        all earlier ones. So the last line's checksum decides whether it counts yet.
        """
        head, tail = self.words[HEAD], self.words[TAIL]
        begin = max(tail, head - MAX_LINE_BYTES)
        last = self.peek(begin, head)
        last_begin = last.rfind(b"\n", 0, -1) + 1
        body, _, checksum = last[last_begin:].rpartition(b"\t")
        return head if not last or checksum == b"%08x\n" % zlib.crc32(body) else begin + last_begin

    @property
    def is_sound(self) -> bool:
        """Return False where something else has written over the header."""
        return 0 <= self.words[HEAD] - self.words[TAIL] <= self.capacity

    def is_locked(self) -> bool:
        """Return whether somebody else holds the writer's lock."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Unmap it and let the lock go; the file stays."""
        if self._appender is not None:
            self._appender.release()
        self.words.release()
        self._map.close()
        self.descriptor.close()


def read_waiting(path: Path) -> tuple[RingHeader, int, int, bytes] | None:
    """Return a ring's header, its file's life, and the position and bytes of what may not be in its file yet.

    Changes nothing and locks nothing; None where the ring is gone, is none, or moved on too fast to be read. Read the
    file afterwards: it then holds all before the position, and perhaps some of the bytes.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        header = os.pread(fd, HEADER_BYTES, 0)
        words = struct.unpack_from("<16Q", header)
        tail, num_waiting, capacity = words[TAIL], words[HEAD] - words[TAIL], words[CAPACITY]
        if header[:8] != MAGIC or not 0 <= num_waiting <= capacity:
            return None
        (length,) = _ABOUT.unpack_from(header, _WORDS_BYTES)
        about = RingHeader.decode(header[_WORDS_BYTES + _ABOUT.size :][:length])
        at = tail % capacity
        waiting = os.pread(fd, min(num_waiting, capacity - at), HEADER_BYTES + at)
        waiting += os.pread(fd, num_waiting - len(waiting), HEADER_BYTES)
        (head,) = struct.unpack_from("<Q", os.pread(fd, 8, 8 * HEAD))
    except (OSError, ValueError, struct.error):
        return None
    finally:
        os.close(fd)
    # The writer may have gone round the ring meanwhile, over what was being read.
    return (about, words[LIFE], tail, waiting) if head <= tail + capacity and len(waiting) == num_waiting else None
