"""Checkpoints at any other fsspec URL whose file system creates a name only where it is free, in one step."""

from __future__ import annotations

import builtins
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ett.checkpoint.store import Entry
from ett.fsspec_system import files_below, open_system, store_failure, written_unix_s
from ett.store_uri import CHECKPOINTS


class FsspecReader:
    def __init__(self, store: FsspecStore, name: str) -> None:
        self._store, self._name = store, name
        self.size = store.size(name)

    def read_into(self, offset: int, target: memoryview) -> int:
        end = min(self.size, offset + len(target))
        data = self._store.read_range(self._name, offset, end) if end > offset else b""
        target[: len(data)] = data
        return len(data)


class FsspecStore:
    def __init__(self, uri: str, setting: str = CHECKPOINTS) -> None:
        """Args: setting: that the uri is of, for messages."""
        self.uri, self._setting = uri, setting
        self._made: tuple[int, Any, str] | None = None

    def create(self, name: str, data: bytes) -> None:
        with self._translated(name) as path:
            self._system.makedirs(os.path.dirname(path), exist_ok=True)
            self._system.pipe_file(path, data, mode="create")

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        """Write a local file, then send it: many file systems complete an object when its writer crashes."""
        with tempfile.NamedTemporaryFile(prefix="ett-segment-", buffering=1 << 20) as file:
            yield file  # type: ignore[misc]
            file.flush()
            self.put_file(name, Path(file.name), "")

    def sync(self, names: list[str]) -> None:
        return

    def put_file(self, name: str, path: Path, digest: str) -> None:
        """Send a finished file under a new name; one of its size under that name already is success."""
        with self._translated(name) as target:
            size = path.stat().st_size
            if self._system.exists(target):
                if self._system.size(target) == size:
                    return
                # An earlier attempt broke off in the middle: no commit lists a file before it is whole.
                self._system.rm_file(target)
            self._system.makedirs(os.path.dirname(target), exist_ok=True)
            self._system.put_file(str(path), target)
            if (found := self._system.size(target)) != size:
                raise OSError(f"{found} bytes lie there after {size} were sent")

    def read(self, name: str) -> bytes:
        with self._translated(name) as path:
            return bytes(self._system.cat_file(path))

    @contextmanager
    def open(self, name: str) -> Iterator[FsspecReader]:
        yield FsspecReader(self, name)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        with self._translated(name) as path:
            return bytes(self._system.cat_file(path, start=start, end=end))

    def size(self, name: str) -> int:
        with self._translated(name) as path:
            return int(self._system.info(path)["size"])

    def list(self, prefix: str) -> list[str]:
        return [entry.name for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> builtins.list[Entry]:
        with self._translated(prefix) as path:
            found = files_below(self._system, path.rstrip("/"))
        top = f"{self._root}/"
        ours = {str(name).removeprefix(top): facts for name, facts in found.items() if str(name).startswith(top)}
        return [Entry(name, int(ours[name]["size"]), _modified(ours[name])) for name in sorted(ours)]

    def unfinished(self) -> dict[str, str]:
        return {}

    def delete(self, name: str) -> None:
        with self._translated(name) as path, suppress(FileNotFoundError):
            self._system.rm_file(path)

    @property
    def _system(self) -> Any:
        return self._opened()[1]

    @property
    def _root(self) -> str:
        return self._opened()[2]

    def _opened(self) -> tuple[int, Any, str]:
        """Return (process, file system, root), made in this process: fsspec does not survive a fork."""
        if self._made is None or self._made[0] != os.getpid():
            self._made = (os.getpid(), *open_system(self.uri, self._setting, skip_instance_cache=True))
        return self._made

    @contextmanager
    def _translated(self, name: str) -> Iterator[str]:
        path = f"{self._root}/{name}"
        try:
            yield path
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as err:
            raise store_failure(err, path) from err


def _modified(facts: Mapping[str, Any]) -> float:
    """Return when a file was written; now where the file system does not say: then nothing of it is ever old."""
    written = written_unix_s(facts)
    return time.time() if written is None else written
