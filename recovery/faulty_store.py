"""A checkpoint store with faults in it: no space, slow, failing, or with damaged files. The only seam for them."""

from __future__ import annotations

import builtins
import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ett.checkpoint.store import Entry, ObjectReader, Store
from ett.errors import Unreachable
from ett.os_failure import os_failure
from ett.recovery.fault import Fault

Operate = Callable[[str, str, str], None]  # tier, verb, name
WRITING = ("create", "write", "put_file")


class StoreStrike:
    """One fault of a store that is in force."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.is_told = fault, False
        self._until_s = time.monotonic() + fault.for_s if fault.for_s else None
        self._max_saves = fault.saves or (0 if fault.ops or fault.for_s else 1)
        self._saves: set[int] = set()
        self._num_ops = 0

    def begin_save(self, step: int) -> None:
        self._saves.add(step)

    def hits(self, verb: str, tier: str | None) -> bool:
        """Return whether an operation is one of the fault's, and count it. Args: tier: None: there is one only."""
        fault = self.fault
        if tier not in (None, fault.tier) or (fault.kind == "disk_full" and verb not in WRITING):
            return False
        is_over = (
            (self._until_s is not None and time.monotonic() >= self._until_s)
            or (fault.ops and self._num_ops >= fault.ops)
            or (self._max_saves and len(self._saves) > self._max_saves)
        )
        self._num_ops += not is_over
        return not is_over

    def act(self, place: str) -> None:
        """Raises: OSError, of kind "disk_full"; Unreachable."""
        match self.fault.kind:
            case "store_slow":
                time.sleep(self.fault.by_s)
            case "store_fails":
                raise Unreachable(f"{place} did not answer: injected by --chaos {self.fault}")
            case _:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)


class FaultyStore:
    """Does what `inner` does, once `operate` let it; what is no operation of a store is the inner one's."""

    def __init__(self, inner: Store, tier: str, operate: Operate) -> None:
        self.inner, self.tier, self.uri = inner, tier, inner.uri
        self._operate = operate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def damage_newest(self) -> str:
        """Flip a bit of the newest data file; return its name, "" where none lies on a disk of this host."""
        root: Path | None = getattr(self.inner, "root", None)
        if root is None:
            return ""
        names = [name for top in ("d", "dense") for name in self.inner.list(top)]
        if not names:
            return ""
        name = max(names, key=lambda name: ((root / name).stat().st_mtime_ns, name))
        with (root / name).open("r+b") as file:
            file.seek((root / name).stat().st_size // 2)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
            file.flush()
            os.fsync(file.fileno())
        return name

    def create(self, name: str, data: bytes) -> None:
        self._ask("create", name)
        self.inner.create(name, data)

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        with self.inner.create_stream(name) as file:
            yield cast(BinaryIO, _FaultyFile(file, lambda: self._operate(self.tier, "write", name)))

    def put_file(self, name: str, path: Path, digest: str) -> None:
        self._ask("put_file", name)
        self.inner.put_file(name, path, digest)

    def sync(self, names: list[str]) -> None:
        self.inner.sync(names)

    def read(self, name: str) -> bytes:
        self._ask("read", name)
        return self.inner.read(name)

    def open(self, name: str) -> AbstractContextManager[ObjectReader]:
        self._ask("open", name)
        return self.inner.open(name)

    def size(self, name: str) -> int:
        self._ask("size", name)
        return self.inner.size(name)

    def list(self, prefix: str) -> list[str]:
        self._ask("list", prefix)
        return self.inner.list(prefix)

    def entries(self, prefix: str) -> builtins.list[Entry]:
        self._ask("list", prefix)
        return self.inner.entries(prefix)

    def unfinished(self) -> dict[str, str]:
        return self.inner.unfinished()

    def delete(self, name: str) -> None:
        self.inner.delete(name)

    def _ask(self, verb: str, name: str) -> None:
        try:
            self._operate(self.tier, verb, name)
        except OSError as err:
            raise os_failure(err, f"{self.uri}/{name}", elsewhere="checkpoint.uri") from err


class _FaultyFile:
    """A file of which each write may fail as the system's would: its store says what that means."""

    def __init__(self, file: BinaryIO, before_write: Callable[[], None]) -> None:
        self._file, self._before_write = file, before_write

    def write(self, data: bytes | memoryview) -> int:
        self._before_write()
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
