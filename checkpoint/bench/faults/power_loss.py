"""What a loss of power may take: names that came or went since their folder was synced, bytes since their file was.

Each name is lost or kept by itself, as POSIX allows; a journal would keep more.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path


class UnsyncedChanges:
    """Changes below one folder that no sync has made durable yet."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before: dict[Path, bytes | None] = {}  # changed name -> what a disk has under it, None: nothing
        self._unsynced_files: set[int] = set()  # inodes
        self._lock = threading.Lock()

    def added(self, path: Path) -> None:
        with self._lock:
            self._before.setdefault(path, None)

    def written(self, path: Path) -> None:
        with self._lock:
            self._unsynced_files.add(path.stat().st_ino)

    def removed(self, path: Path) -> None:
        """Called before `path` goes."""
        with self._lock:
            if path.is_file():
                if path.stat().st_nlink == 1:
                    self._unsynced_files.discard(path.stat().st_ino)
                self._before.setdefault(path, path.read_bytes())

    def synced(self, path: Path) -> None:
        with self._lock:
            if path.is_dir():
                self._before = {name: before for name, before in self._before.items() if name.parent != path}
            else:
                self._unsynced_files.discard(path.stat().st_ino)

    def lose(self, chance: random.Random) -> None:
        """Take the folder back to a state that a disk may show after the power has failed."""
        for path in sorted(path for path in self._root.rglob("*") if path.is_file()):
            if path.stat().st_ino in self._unsynced_files:
                _tear(path, chance)
        for path, before in sorted(self._before.items()):
            if chance.random() < 0.5:
                _undo(path, before)


def _tear(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    if chance.random() < 0.5:
        os.truncate(path, chance.randrange(size + 1))
    else:
        path.write_bytes(bytes(size))


def _undo(path: Path, before: bytes | None) -> None:
    if before is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(before)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
