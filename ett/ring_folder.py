"""Where a job's rings lie: `/dev/shm/ett-<job>-<hash of the job's folder>/`, for its owner alone.

The name follows from the job's folder, so that a new supervisor and `ett report` find the rings of one that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from pathlib import Path

BASE = Path("/dev/shm")
WAKE = "wake"  # a named pipe: a byte in it wakes the drain
JOB = "job"  # holds the path of the job's folder, and is locked (flock) while a drain runs
_KEPT_S = 86_400.0  # a job's folder may be on a disk that comes back
RING_SUFFIX = ".ring"


def ring_folder(job_dir: Path, base: Path = BASE) -> Path:
    """Return the folder of the job's rings, whether or not it exists."""
    real = os.path.realpath(job_dir)
    return base / f"ett-{job_dir.name[:40]}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"


def make_ring_folder(job_dir: Path, base: Path = BASE) -> Path:
    """Make the folder, or take the one that an earlier supervisor left.

    Raises: OSError: `base` is no tmpfs (a store into a mapped file of a disk waits for that disk), or the folder is
        somebody else's.
    """
    if not _is_tmpfs(base):
        raise OSError(f"{base} is no tmpfs")
    _sweep(base)
    folder = ring_folder(job_dir, base)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder):
        raise OSError(f"{folder} is not this user's own folder")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(folder / WAKE, 0o600)
    (folder / JOB).write_text(os.path.realpath(job_dir))
    return folder


def ring_paths(folder: Path) -> list[Path]:
    """Return the rings in a folder, by name; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(RING_SUFFIX)]


def remove_ring_folder(folder: Path) -> None:
    """Remove the folder where no ring is left in it; what a rank that was killed while making one left goes, too."""
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if not any(name.endswith(RING_SUFFIX) for name in names):
            for name in names:
                (folder / name).unlink()
            folder.rmdir()


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _sweep(base: Path) -> None:
    """Free the memory of jobs that nobody runs, whose folders are gone since a day: nobody else looks for it."""
    for folder in base.glob("ett-*"):
        with contextlib.suppress(OSError):
            if _is_own(folder) and not os.path.isdir((folder / JOB).read_text()) and not _is_in_use(folder):
                for name in os.listdir(folder):
                    (folder / name).unlink()
                folder.rmdir()


def _is_in_use(folder: Path) -> bool:
    """Return whether a drain or a rank holds a lock there, or did a day ago. Raises: OSError."""
    if time.time() - (folder / JOB).stat().st_mtime < _KEPT_S:
        return True
    for path in (folder / JOB, *ring_paths(folder)):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def _is_tmpfs(path: Path) -> bool:
    """Return whether the file system that holds `path` lives in memory, as this process's mounts say."""
    real = os.path.realpath(path)
    kinds: dict[str, str] = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                mount, _, source = line.partition(" - ")
                kinds[mount.split()[4]] = source.split()[0]  # a later mount hides an earlier one of the same place
    except (OSError, IndexError):
        return False
    while real not in kinds and real != "/":
        real = os.path.dirname(real)
    return kinds.get(real) in ("tmpfs", "ramfs") and os.path.isdir(path)
