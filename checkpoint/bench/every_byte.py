"""Every byte of every file of a checkpoint, flipped once: which of these flips does nobody see?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import FORMAT_NAME, CommitLog, check_format
from ett.checkpoint.dense_files import read_runs
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.restore_checks import check_size, read_fragment
from ett.checkpoint.store import ObjectReader
from ett.checkpoint.verify import Level, check_bytes
from ett.errors import ConfigError, CorruptState


@dataclass(frozen=True, slots=True)
class Flips:
    injected: int
    silent: list[tuple[str, int]]  # name and offset of those that were not seen


def flip_every_byte(folder: Path, level: Level) -> Flips:
    """Flip one bit of each byte of the newest commit's files, of its record and of FORMAT.json; change no file.

    Args: level: how deep each file is checked; "size" shows that the flips are there to be seen.
    """
    store = _Flipped(folder)
    log = CommitLog(store)
    commit = log.read(max(log.seqs()))
    injected, silent = 0, []
    for name, check in _checks(store, commit, level).items():
        data = bytearray((folder / name).read_bytes())
        store.name, store.data = name, data
        check()
        for offset in range(len(data)):
            data[offset] ^= 1 << offset % 8
            injected += 1
            if not _is_seen(check):
                silent.append((name, offset))
            data[offset] ^= 1 << offset % 8
    return Flips(injected, silent)


def _checks(store: LocalStore, commit: Commit, level: Level) -> dict[str, Callable[[], object]]:
    """Return for each file what a restore or a verification does with it."""
    if level == "size":
        return {file.path: lambda file=file: check_size(store, file) for file in commit.stored_files()}  # type: ignore[misc]
    segments = [(file.stored, file.identity) for table in commit.tables for file in table.files]
    checks: dict[str, Callable[[], object]] = {
        FORMAT_NAME: lambda: _whole_format(store),
        commit_name(commit.seq): lambda: CommitLog(store).read(commit.seq),
    }
    for stored, identity in segments:
        checks[stored.path] = lambda stored=stored, identity=identity: check_bytes(store, stored, identity)  # type: ignore[misc]
    buffers = BufferPool()
    for file in commit.dense.files if commit.dense is not None else ():
        checks[file.stored.path] = lambda stored=file.stored: read_runs(store, stored, [], buffers)  # type: ignore[misc]
    for fragment in commit.fragments:
        checks[fragment.path] = lambda fragment=fragment: read_fragment(store, fragment)  # type: ignore[misc]
    return checks


def _whole_format(store: LocalStore) -> None:
    if not check_format(store):
        raise CorruptState(f"{FORMAT_NAME} is damaged")


def _is_seen(check: Callable[[], object]) -> bool:
    try:
        check()
    except (CorruptState, ConfigError):
        return True
    return False


class _Flipped(LocalStore):
    """The folder, with `data` in place of the file `name`."""

    name = ""
    data = bytearray()

    def read(self, name: str) -> bytes:
        return bytes(self.data) if name == self.name else super().read(name)

    def size(self, name: str) -> int:
        return len(self.data) if name == self.name else super().size(name)

    @contextmanager
    def open(self, name: str) -> Iterator[ObjectReader]:  # type: ignore[override]
        if name == self.name:
            yield _BytesReader(self.data)
            return
        with super().open(name) as reader:
            yield reader


class _BytesReader:
    def __init__(self, data: bytearray) -> None:
        self._data, self.size = data, len(data)

    def read_into(self, offset: int, target: memoryview) -> int:
        part = self._data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)
