"""What this job saved, recognised by content: a file that was renamed or copied is still known, a foreign one is not.

Each process of the job appends to a file of its own, `JOB/saves/<attempt>-r<rank>-<pid>.jsonl`, one line a save: the
digest of what was written, and the step and cursor that it stands for.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WHOLE_BYTES = 8 << 20  # a file up to this size is read whole
# Of a larger one: its head; its tail, where a zip archive keeps the crc32 of every member; and pieces in between.
HEAD_BYTES, TAIL_BYTES, NUM_PIECES, PIECE_BYTES = 64 << 10, 1 << 20, 64, 16 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedState:
    """One save: its content, and where in training it stands."""

    digest: str
    num_bytes: int
    step: int
    cursor: int  # samples of all ranks
    ckpt_id: str
    has_optimizer: bool
    is_position_known: bool  # False: saved by an attempt that did not know where it had started


class SavedFiles:
    """The saves of one job, of all its attempts and ranks."""

    def __init__(self, job_dir: Path, attempt: int, rank: int) -> None:
        self._folder = job_dir / "saves"
        self._own = self._folder / f"{attempt}-r{rank}-{os.getpid()}.jsonl"

    def add(self, saved: SavedState) -> None:
        self._folder.mkdir(exist_ok=True)
        line = json.dumps(asdict(saved), sort_keys=True).encode() + b"\n"
        fd = os.open(self._own, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def find(self, content: Content) -> SavedState | None:
        """Return the last save of that content, None where this job saved none."""
        same_size = [saved for saved in self._all() if saved.num_bytes == content.num_bytes]
        if not same_size:
            return None  # without a look into a foreign file, which may be large
        digest = content.digest()
        found = [saved for saved in same_size if saved.digest == digest]
        return max(found, key=lambda saved: (saved.step, saved.cursor), default=None)

    def _all(self) -> Iterator[SavedState]:
        if not self._folder.is_dir():
            return
        names = set(SavedState.__dataclass_fields__)
        for path in sorted(self._folder.glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    plain: dict[str, Any] = json.loads(line)
                except ValueError:
                    continue  # the writer was killed in it
                if isinstance(plain, dict) and plain.keys() == names:
                    yield SavedState(**plain)


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes that can be read at any place. `close` when done."""

    num_bytes: int
    read_at: Callable[[int, int], bytes]  # (how many, from where)
    close: Callable[[], None]

    def digest(self) -> str:
        """Return 32 hex digits of the size and of what is read: all of a small file, samples of a large one."""
        found = hashlib.sha256(str(self.num_bytes).encode())
        for offset, length in _places(self.num_bytes):
            found.update(self.read_at(length, offset))
        return found.hexdigest()[:32]


def content_of(target: object) -> Content | None:
    """Return the content of a path, an open file or a BytesIO, wherever it is read; None for anything else."""
    if isinstance(target, str | os.PathLike):
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        return Content(os.fstat(fd).st_size, lambda count, at: os.pread(fd, count, at), lambda: os.close(fd))
    if isinstance(target, io.BytesIO):
        buffer = target.getvalue()
        return Content(len(buffer), lambda count, at: buffer[at : at + count], lambda: None)
    own_fd = descriptor_of(target)
    if own_fd is None:
        return None
    return Content(os.fstat(own_fd).st_size, lambda count, at: os.pread(own_fd, count, at), lambda: None)


def folder_content(
    folder: str | os.PathLike[str], pattern: str = "**/*", without: str | None = None
) -> tuple[Content, int]:
    """Return a folder's content, and its bytes: the names in it, with the size and digest of each file.

    The folder's own name is no part of it. Raises: OSError.

    Args:
        pattern: of the files that count, "*" for those in the folder itself.
        without: pattern of file names that do not.
    """
    lines: list[str] = []
    total_bytes = 0
    files = (path for path in Path(folder).glob(pattern) if path.is_file())
    for path in sorted(path for path in files if without is None or not path.match(without)):
        content = content_of(path)
        assert content is not None
        lines.append(f"{path.relative_to(folder)} {content.num_bytes} {content.digest()}")
        total_bytes += content.num_bytes
        content.close()
    listing = "\n".join(lines).encode()
    return Content(len(listing), lambda count, at: listing[at : at + count], lambda: None), total_bytes


def descriptor_of(target: object) -> int | None:
    """Return the descriptor of an open file of the operating system, None where there is none."""
    fileno = getattr(target, "fileno", None)
    if fileno is None:
        return None
    try:
        return int(fileno())
    except (OSError, ValueError, TypeError):  # what has the method need not have a descriptor
        return None


def _places(num_bytes: int) -> list[tuple[int, int]]:
    if num_bytes <= WHOLE_BYTES:
        return [(at, min(TAIL_BYTES, num_bytes - at)) for at in range(0, num_bytes, TAIL_BYTES)]
    inner = num_bytes - TAIL_BYTES
    pieces = [(inner * index // NUM_PIECES, PIECE_BYTES) for index in range(1, NUM_PIECES)]
    return [(0, HEAD_BYTES), *pieces, (inner, TAIL_BYTES)]
