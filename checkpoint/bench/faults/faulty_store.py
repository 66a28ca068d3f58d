"""A local store in which each operation can fail, lie, or be the last of its process.

An operation has a point: the number of the protocol's step (0 open an epoch, 1 look, 2 write, 3 upload, 4 fragment,
5 commit, 6 what follows), what kind of file it is about, and a verb.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ett.checkpoint.bench.faults.power_loss import UnsyncedChanges
from ett.checkpoint.buffer_pool import Bytes
from ett.checkpoint.direct_file import DirectFile
from ett.checkpoint.local_store import LocalReader, LocalStore

LocalKind = Literal["kill", "power", "EIO", "ENOSPC", "EACCES", "short write", "lost write", "flip", "zeros"]
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EACCES": errno.EACCES}
ROLES = {"FORMAT.json": "format", "commits": "record", "m": "fragment", "dense": "dense", "d": "segment"}


class Killed(BaseException):
    """The process dies here: nothing of it runs any more, not even what would tidy up."""


def role_of(name: str) -> str:
    top = name.partition("/")[0]
    return ROLES.get(top, top or "folder")


def any_of(times: int, point: str, chance: random.Random) -> int:
    """Return one of the times, from 0, that a run comes to a point which another run has come to `times` times.

    A folder of two digits that is there already is not made: that is one sync less.
    """
    return chance.randrange(max(1, times - 1) if point.endswith("folder sync") else times)


@dataclass(frozen=True, slots=True)
class Aim:
    """The fault: at which operation of a point, and for how long. chance: decides what is left open."""

    kind: str
    point: str
    occurrence: int  # from 0
    stays: bool  # an error that does not go away
    chance: random.Random


class FaultyStore(LocalStore):
    """`begin` names the step that the next operations belong to; later steps are known by what is written."""

    def __init__(self, root: Path, aim: Aim | None = None, *, on_kill: Callable[[], object] | None = None) -> None:
        super().__init__(root)
        self.aim = aim
        self.seen: dict[str, int] = {}  # point -> how often
        self.has_struck = False
        self.is_dead = False
        self.step = "0"
        self.hook: Callable[[str, int], None] = lambda point, occurrence: None
        self._on_kill = on_kill
        self._unsynced = UnsyncedChanges(root)
        self._about = threading.local()
        self._lock = threading.Lock()

    def operate(self, verb: str, name: str | None = None) -> str | None:
        """Come to a point. Returns: the kind of a fault that is more than an error. Raises: the error; Killed."""
        if self.is_dead:
            raise Killed
        point = f"{self.step} {self._role(name)} {verb}"
        with self._lock:
            occurrence = self.seen.get(point, 0)
            self.seen[point] = occurrence + 1
        self.hook(point, occurrence)
        aim = self.aim
        if aim is None or not self._is_hit(aim, point, occurrence):
            return None
        self.has_struck = True
        if aim.kind in ERRORS:
            raise OSError(ERRORS[aim.kind], os.strerror(ERRORS[aim.kind]))
        if aim.kind in ("kill", "power"):
            self.die(torn=verb == "write")
            return "torn"
        return aim.kind

    def die(self, *, torn: bool = False) -> None:
        """End the process here; torn: after one more write, of which a part arrives."""
        self.is_dead = True
        if self.aim is not None and self.aim.kind == "power" and not torn:
            self._unsynced.lose(self.aim.chance)
        if not torn:
            if self._on_kill is not None:
                self._on_kill()
            raise Killed

    def end_torn(self) -> None:
        self.die()

    def _is_hit(self, aim: Aim, point: str, occurrence: int) -> bool:
        if aim.stays and self.has_struck:
            return aim.kind in ERRORS and point.rpartition(" ")[2] in _WRITING
        return point == aim.point and occurrence == aim.occurrence

    def _role(self, name: str | None) -> str:
        return role_of(getattr(self._about, "name", "") if name is None else name)

    @contextmanager
    def _about_name(self, name: str) -> Iterator[None]:
        self._about.name = name
        try:
            yield
        finally:
            self._about.name = ""

    def create(self, name: str, data: bytes) -> None:
        with self._about_name(name):
            if role_of(name) == "fragment" and self.step in "12":
                self.step = "4"
            if role_of(name) == "record" and self.step == "3":
                self.step = "5"
            super().create(name, data)
            if role_of(name) == "record" and self.step in "45":
                self.step = "6"

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        if self.step == "1":
            self.step = "2"
        with self._about_name(name), super().create_stream(name) as file:
            yield file

    def read(self, name: str) -> bytes:
        with self._translated(self.root / name):
            kind = self.operate("read", name)
        data = bytearray(super().read(name))
        if kind == "flip" and data and self.aim is not None:
            data[self.aim.chance.randrange(len(data))] ^= 1 << self.aim.chance.randrange(8)
        return bytes(data)

    @contextmanager
    def open(self, name: str) -> Iterator[LocalReader]:
        with self._translated(self.root / name):
            with open(self.root / name, "rb", buffering=0) as file, closing(_FaultyReader(file, self, name)) as reader:
                yield reader

    def size(self, name: str) -> int:
        if self.step == "4":
            self.step = "5"
        with self._translated(self.root / name):
            self.operate("stat", name)
        return super().size(name)

    def list(self, prefix: str) -> list[str]:
        if self.step == "4":
            self.step = "5"
        with self._translated(self.root / prefix):
            self.operate("list", prefix)
        return super().list(prefix)

    def delete(self, name: str) -> None:
        with self._about_name(name):
            super().delete(name)

    def _new_file(self, path: Path, buffer: Bytes) -> DirectFile:
        self.operate("create")
        file = _FaultyFile(path, buffer, self)
        self._unsynced.added(path)
        self._unsynced.written(path)
        return file

    def _make_folder(self, folder: Path) -> None:
        missing = folder
        while not missing.is_dir():
            self._unsynced.added(missing)
            missing = missing.parent
        super()._make_folder(folder)

    def _fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.operate("folder sync", str(path.relative_to(self.root)).strip("."))
        else:
            self.operate("fsync")
        super()._fsync(descriptor)
        self._unsynced.synced(path)

    def _link(self, temporary: Path, final: Path) -> None:
        self.operate("link")
        super()._link(temporary, final)
        self._unsynced.added(final)

    def _unlink(self, path: Path) -> None:
        self.operate("unlink" if path.name.startswith(".tmp-") else "delete")
        self._unsynced.removed(path)
        super()._unlink(path)


_WRITING = {"create", "write", "fsync", "link", "sync"}


class _FaultyFile(DirectFile):
    def __init__(self, path: Path, buffer: Bytes, store: FaultyStore) -> None:
        super().__init__(path, buffer)
        self._store = store

    def _write_some(self, data: memoryview) -> int:
        kind = self._store.operate("write")
        aim = self._store.aim
        if kind is None or aim is None:
            return super()._write_some(data)
        chance, size = aim.chance, len(data)
        match kind:
            case "torn":
                super()._write_some(data[: chance.randrange(size)])
                self._store.end_torn()
            case "short write":  # as the system may: it says so
                return super()._write_some(data[: chance.randrange(1, size)] if size > 1 else data)
            case "lost write":  # a disk that says it has what it has not
                super()._write_some(data[: chance.randrange(size)])
            case "flip":
                changed = bytearray(data)
                changed[chance.randrange(size)] ^= 1 << chance.randrange(8)
                super()._write_some(memoryview(changed))
            case "zeros":
                changed = bytearray(data)
                start = chance.choice([at for at, byte in enumerate(changed) if byte])
                length = min(size - start, chance.choice([1, 16, 512, 4096]))
                changed[start : start + length] = bytes(length)
                super()._write_some(memoryview(changed))
        return size


class _FaultyReader(LocalReader):
    def __init__(self, file: Any, store: FaultyStore, name: str) -> None:
        super().__init__(file)
        self._store, self._name = store, name

    def read_into(self, offset: int, target: memoryview) -> int:
        kind = self._store.operate("read", self._name)
        got = super().read_into(offset, target)
        aim = self._store.aim
        if kind == "flip" and got and aim is not None:
            target[aim.chance.randrange(got)] ^= 1 << aim.chance.randrange(8)
        return got
