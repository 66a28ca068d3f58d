"""A remote folder together with its buffer on a local disk: what a restore reads, the local copy before the remote one.

Both have the same names. The buffer holds what is on its way, and the files of the newest commit, which a restart on
this host then reads from the disk.
"""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.store import Entry, ObjectReader, Store


class BufferedStore:
    """Reads from both; creates and deletes in the remote folder.

    has_local_commits: whether the buffer holds whole commits; one of several hosts has its own ranks' files only.
    """

    def __init__(self, local: LocalStore, remote: Store, *, has_local_commits: bool = True) -> None:
        self.local, self.remote = local, remote
        self.uri = remote.uri
        self.has_local_commits = has_local_commits

    def create(self, name: str, data: bytes) -> None:
        self.remote.create(name, data)

    def create_stream(self, name: str) -> AbstractContextManager[BinaryIO]:
        return self.remote.create_stream(name)

    def put_file(self, name: str, path: Path, digest: str) -> None:
        self.remote.put_file(name, path, digest)

    def sync(self, names: list[str]) -> None:
        self.remote.sync(names)

    def read(self, name: str) -> bytes:
        return self._holder(name).read(name)

    def open(self, name: str) -> AbstractContextManager[ObjectReader]:
        return self._holder(name).open(name)

    def size(self, name: str) -> int:
        return self._holder(name).size(name)

    def list(self, prefix: str) -> list[str]:
        if not self.has_local_commits:
            return self.remote.list(prefix)
        return sorted({*self.local.list(prefix), *self.remote.list(prefix)})

    def entries(self, prefix: str) -> builtins.list[Entry]:
        return self.remote.entries(prefix)

    def unfinished(self) -> dict[str, str]:
        return self.remote.unfinished()

    def delete(self, name: str) -> None:
        self.remote.delete(name)

    def tiers(self, name: str) -> builtins.list[str]:
        """Return where a name is: "local", "remote", both or neither."""
        return [tier for tier, store in (("local", self.local), ("remote", self.remote)) if has(store, name)]

    def _holder(self, name: str) -> Store:
        # A commit that both hold under one number: the remote one counts, the other's writer was overtaken.
        if name.startswith("commits/"):
            return self.remote if not self.has_local_commits or has(self.remote, name) else self.local
        return self.local if has(self.local, name) else self.remote


def has(store: Store, name: str) -> bool:
    try:
        store.size(name)
    except FileNotFoundError:
        return False
    return True
