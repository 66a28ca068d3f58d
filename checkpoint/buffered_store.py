"""A remote folder together with its buffer on a local disk: what a restore reads, the local copy before the remote one.

Both have the same names. The buffer holds what is on its way, and the files of the newest commit, which a restart on
this host then reads from the disk.
"""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import read_commit
from ett.checkpoint.incarnation import life_of
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.store import Entry, ObjectReader, Store
from ett.errors import CorruptState

if TYPE_CHECKING:
    from ett.checkpoint.peers import Peers


class BufferedStore:
    """Reads from both; creates and deletes in the remote folder.

    has_local_commits: whether the buffer holds whole commits; one of several hosts has its own ranks' files only.
    """

    def __init__(self, local: LocalStore, remote: Store, *, has_local_commits: bool = True) -> None:
        self.local, self.remote = local, remote
        self.uri = remote.uri
        self.has_local_commits = has_local_commits
        self.peers: Peers | None = None  # while a commit is restored

    def create(self, name: str, data: bytes) -> None:
        self.remote.create(name, data)

    def create_stream(self, name: str) -> AbstractContextManager[BinaryIO]:
        return self.remote.create_stream(name)

    def put_file(self, name: str, path: Path, digest: str) -> None:
        self.remote.put_file(name, path, digest)

    def sync(self, names: list[str]) -> None:
        self.remote.sync(names)

    def read(self, name: str) -> bytes:
        return self._nearest(name).read(name)

    def open(self, name: str) -> AbstractContextManager[ObjectReader]:
        return self._nearest(name).open(name)

    def size(self, name: str) -> int:
        return self._holder(name).size(name)

    def list(self, prefix: str) -> list[str]:
        if prefix == "commits":
            return self._commits()
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

    def _commits(self) -> builtins.list[str]:
        """Return the remote records, and those of the buffer that continue them.

        What another host's life has gone past, and what was retired there, is not history any more.
        """
        remote = self.remote.list("commits")
        if not self.has_local_commits:
            return remote
        newest = next((found for name in reversed(remote) if (found := _record(self.remote, name))), None)
        local = [name for name in self.local.list("commits") if name > max(remote, default="")]
        return remote + [name for name in local if _continues(_record(self.local, name), newest)]

    def _nearest(self, name: str) -> Store:
        """Return what a file is read from: the buffer, which a peer's is brought into, before the remote folder."""
        holder = self._holder(name)
        return self.local if holder is self.remote and self.peers and self.peers.fetch(name) else holder

    def _holder(self, name: str) -> Store:
        # A commit that both hold under one number: the remote one counts, the other's writer was overtaken.
        if name.startswith("commits/"):
            return self.remote if not self.has_local_commits or has(self.remote, name) else self.local
        return self.local if has(self.local, name) else self.remote


def shared(store: Store) -> Store:
    """Return what every host sees of a store: what only this host's buffer holds is not in it."""
    return store.remote if isinstance(store, BufferedStore) else store


def has(store: Store, name: str) -> bool:
    try:
        store.size(name)
    except FileNotFoundError:
        return False
    return True


def _record(store: Store, name: str) -> Commit | None:
    try:
        return read_commit(store, name)
    except (FileNotFoundError, CorruptState):
        return None


def _continues(local: Commit | None, newest: Commit | None) -> bool:
    """Return whether a record of the buffer is of the life that owns the remote folder, or of one just before it."""
    if local is None or newest is None:
        return True  # a damaged one is shown as such
    return local.epoch > newest.epoch or (local.epoch == newest.epoch and life_of(local) == life_of(newest))
