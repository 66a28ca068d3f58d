"""Where the bytes of checkpoints lie: a small protocol of names that are written once."""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from ett.errors import ConfigError
from ett.store_uri import CHECKPOINTS, S3_SCHEMES, check_uri, is_local, local_path, scheme_of


class ObjectReader(Protocol):
    """An open stored object."""

    @property
    def size(self) -> int:
        """Return the bytes that there are."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; return the number of bytes read, fewer only at the end of the object."""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    num_bytes: int
    modified_unix_s: float  # by the store's clock


class Store(Protocol):
    """Names are relative, with slashes. A name that is not there raises FileNotFoundError; other failures of the
    system are AccessDenied (no rights) or Unreachable (all else), naming the place."""

    uri: str

    def create(self, name: str, data: bytes) -> None:
        """Store `data` durably under a new name, all or nothing.

        Raises: FileExistsError: the name is taken; where answers can be lost, by other bytes than these.
        """

    def create_stream(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a new object for writing; it appears, whole, only when the context ends without an exception."""

    def put_file(self, name: str, path: Path, digest: str) -> None:
        """Copy a finished local file to a new name, durably, all or nothing; safe to repeat.

        Args: digest: tells these bytes from others under the name; kept beside them where the store can.
        Raises: FileExistsError: other bytes have the name.
        """

    def sync(self, names: list[str]) -> None:
        """Make these new names survive a loss of power; their content does already."""

    def read(self, name: str) -> bytes: ...

    def open(self, name: str) -> AbstractContextManager[ObjectReader]:
        """Open an object for reading. Raises: FileNotFoundError: now, or when it is first looked into."""

    def size(self, name: str) -> int: ...

    def list(self, prefix: str) -> list[str]:
        """Return all names under the folder `prefix`, sorted; [] where there is none."""

    def entries(self, prefix: str) -> builtins.list[Entry]:
        """Return what `list` returns, with sizes and times."""

    def unfinished(self) -> dict[str, str]:
        """Return what creations that never ended have left, living ones included: a name for `delete` -> the name
        that was meant."""

    def delete(self, name: str) -> None:
        """Remove a name; one that is gone already is fine."""


def open_store(uri: str, setting: str = CHECKPOINTS) -> Store:
    """Return the store that a uri names; touches nothing. Raises: ConfigError: a uri of a kind without a store.

    Args: setting: that the uri is of; messages name it.
    """
    check_uri(uri, setting)
    if not uri and setting != CHECKPOINTS:
        raise ConfigError(f"{setting} is empty", expected="a folder, or the URL of one", code="F004")
    if not uri:
        raise ConfigError(
            "checkpoint.uri is empty and this process belongs to no job",
            expected="a folder for the checkpoints; empty is the job's own",
            do='name one, such as CheckpointConfig(uri="checkpoints"), or start the program by `ett launch`',
            code="F004",
        )
    if is_local(uri):
        from ett.checkpoint.local_store import LocalStore

        return LocalStore(local_path(uri), setting)
    if scheme_of(uri) in S3_SCHEMES:
        from ett.checkpoint.s3_store import S3Store

        return S3Store(uri, setting=setting)
    from ett.checkpoint.fsspec_store import FsspecStore

    return FsspecStore(uri, setting)
