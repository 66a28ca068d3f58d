"""Where packs lie: names that are written once, in a folder or at any fsspec URL that can create in one step."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ett.compile_cache.key import KEY_DIGITS
from ett.fsspec_system import open_system, store_failure, written_unix_s
from ett.os_failure import os_failure
from ett.store_uri import is_local, local_path

_PACK = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}/[0-9]{{4}}\.pack")  # all else that lies there is another's
_UNFINISHED = re.compile(rf"[0-9a-f]{{{KEY_DIGITS}}}/\.[0-9a-f]{{16}}\.tmp")
ABANDONED_S = 3600.0  # after that, an unfinished pack is one of a process that was killed


@dataclass(frozen=True, slots=True)
class Stored:
    name: str
    num_bytes: int
    used_unix_s: float  # in a folder: last fetched or written; elsewhere written, 0.0 where the store does not say


class PackStore(Protocol):
    """A name that is not there raises FileNotFoundError; other failures are AccessDenied or Unreachable."""

    uri: str

    def create(self, name: str, data: bytes) -> None:
        """Store `data` under a new name, all or nothing. Raises: FileExistsError: the name is taken."""

    def read(self, name: str) -> bytes: ...

    def stored(self, prefix: str = "") -> list[Stored]:
        """Return the packs, of all keys or of the one that is `prefix`, sorted by name."""

    def mark_used(self, name: str) -> None:
        """Note that a pack was fetched, where the store can: what was used longest ago goes first."""

    def delete(self, name: str) -> None:
        """Remove a name; one that is gone already is fine."""

    def sweep(self) -> None:
        """Remove what publishers that were killed have left, where a store has that."""


def open_pack_store(uri: str) -> PackStore:
    """Return the store that a checked uri names; touches nothing."""
    return FolderPacks(local_path(uri)) if is_local(uri) else RemotePacks(uri)


class FolderPacks:
    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, str(root)

    def create(self, name: str, data: bytes) -> None:
        final = self.root / name
        temporary = final.with_name(f".{secrets.token_hex(8)}.tmp")
        with self._translated(name):
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, final)  # refuses a taken name, where a rename would replace it
            finally:
                temporary.unlink(missing_ok=True)

    def read(self, name: str) -> bytes:
        with self._translated(name):
            return (self.root / name).read_bytes()

    def stored(self, prefix: str = "") -> list[Stored]:
        found = []
        for path in sorted(self.root.glob(f"{prefix or '*'}/*.pack")):
            name = path.relative_to(self.root).as_posix()
            with suppress(FileNotFoundError):  # it may go meanwhile
                facts = path.stat()
                if _PACK.fullmatch(name):
                    found.append(Stored(name, facts.st_size, facts.st_mtime))
        return found

    def mark_used(self, name: str) -> None:
        with suppress(OSError):  # a folder that this user may only read, or a pack that went
            os.utime(self.root / name)

    def delete(self, name: str) -> None:
        with self._translated(name):
            (self.root / name).unlink(missing_ok=True)
            with suppress(OSError):  # others of its key are left
                (self.root / name).parent.rmdir()

    def sweep(self) -> None:
        for path in self.root.glob("*/.*.tmp"):
            name = path.relative_to(self.root).as_posix()
            with suppress(FileNotFoundError):  # it is finished meanwhile
                if _UNFINISHED.fullmatch(name) and path.stat().st_mtime < time.time() - ABANDONED_S:
                    self.delete(name)

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as err:
            raise os_failure(err, self.root / name, elsewhere="$ETT_HOME, compile.uri") from err


class RemotePacks:
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def create(self, name: str, data: bytes) -> None:
        with self._translated(name) as path:
            system, _ = self._opened
            system.makedirs(os.path.dirname(path), exist_ok=True)
            system.pipe_file(path, data, mode="create")

    def read(self, name: str) -> bytes:
        with self._translated(name) as path:
            return bytes(self._opened[0].cat_file(path))

    def stored(self, prefix: str = "") -> list[Stored]:
        with self._translated(prefix) as path:
            system, root = self._opened
            try:
                found: dict[str, dict[str, Any]] = system.find(path.rstrip("/"), detail=True)
            except FileNotFoundError:
                return []
        names = {str(name).removeprefix(f"{root}/"): facts for name, facts in found.items()}
        return [
            Stored(name, int(facts["size"]), written_unix_s(facts) or 0.0)
            for name, facts in sorted(names.items())
            if _PACK.fullmatch(name)
        ]

    def mark_used(self, name: str) -> None:
        return

    def delete(self, name: str) -> None:
        with self._translated(name) as path, suppress(FileNotFoundError):
            self._opened[0].rm_file(path)

    def sweep(self) -> None:
        return

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """Return (file system, root)."""
        return open_system(self.uri, "compile.uri")

    @contextmanager
    def _translated(self, name: str) -> Iterator[str]:
        try:
            yield f"{self._opened[1]}/{name}"
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as err:
            raise store_failure(err, f"{self.uri}/{name}") from err
