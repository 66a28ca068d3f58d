"""The files of one artefact while it is made: each written once, and found again by a publisher that goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import xxhash

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.canonical_json import Json, seal, unseal, well_formed
from ett.checkpoint.dense_files import read_runs
from ett.checkpoint.publication import artefact_folder, published_file
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import Bytes
from ett.errors import Conflict, CorruptState

log = logging.getLogger(__name__)
Pieces = Callable[[], Iterator[Bytes]]
_TRIES = 4  # of a name that others make anew meanwhile


class ArtefactFolder:
    """num_reused, num_written: files, so far."""

    def __init__(self, store: Store, key: str) -> None:
        self.store, self._folder = store, artefact_folder(key)
        self._there = set(store.list(self._folder))
        self._buffers, self._counting = BufferPool(), threading.Lock()
        self.num_reused = self.num_written = 0

    def make(self, name: str, write: Callable[[], tuple[StoredFile, Json]]) -> tuple[StoredFile, Json]:
        """Return a file and the facts of it: those of an earlier attempt where it is whole, else what `write` returns.

        By several threads at a time, with other names each.
        """
        record = f"{self._folder}/{name}.json"
        done = self._finished(record) if record in self._there else None
        if done is not None:
            self._count(reused=True)
            return done
        stored, facts = write()
        self._record(record, seal({"document": "part", "stored": stored.as_json(), "facts": facts}))
        self._count(reused=False)
        return stored, facts

    def write(self, name: str, pieces: Pieces) -> StoredFile:
        """Store what `pieces` yields under a name. A file of that name which has other bytes is damaged, and goes."""
        path = f"{self._folder}/{name}"
        is_there = path in self._there  # not every store refuses a name that is taken
        for _ in range(_TRIES):
            if not is_there:
                with suppress(FileExistsError):
                    return _written(self.store, path, pieces)
            try:
                stored = _hash_of(path, pieces)
                check_whole(self.store, stored, self._buffers)  # another publisher's, or left by one that ended
                return stored
            except CorruptState as err:
                log.warning("%s is made anew: %s", path, err.fact)
                self.store.delete(path)
                is_there = False
        raise _contested(path)

    def _finished(self, record: str) -> tuple[StoredFile, Json] | None:
        try:
            fields = unseal(self.store.read(record))
            if fields is None:
                raise CorruptState(f"{record} does not match its checksum")
            with well_formed(record):
                stored, facts = published_file(fields["stored"]), dict(fields["facts"])
            check_whole(self.store, stored, self._buffers)
            return stored, facts
        except (CorruptState, FileNotFoundError) as err:
            log.warning("made anew: %s", err)
            return None

    def _record(self, name: str, data: bytes) -> None:
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                self.store.create(name, data)
                return
            with suppress(FileNotFoundError):  # another publisher makes it anew
                if self.store.read(name) == data:
                    return
            self.store.delete(name)
        raise _contested(name)

    def _count(self, *, reused: bool) -> None:
        with self._counting:
            self.num_reused += reused
            self.num_written += not reused


def _contested(name: str) -> Conflict:
    return Conflict(
        f"{name} has other bytes each time that it was made anew",
        expected="one version of ett that publishes there, on a store that keeps what it is given",
        do="end the other publisher, or look at the store",
    )


def check_whole(store: Store, stored: StoredFile, buffers: BufferPool) -> None:
    """Read a file. Raises: CorruptState: missing or altered."""
    read_runs(store, stored, [], buffers)


def _written(store: Store, path: str, pieces: Pieces) -> StoredFile:
    with store.create_stream(path) as file:
        stored = _hash_of(path, pieces, lambda piece: file.write(piece.data))
    store.sync([path])
    return stored


def _hash_of(path: str, pieces: Pieces, use: Callable[[Bytes], object] = lambda piece: None) -> StoredFile:
    hasher, size = xxhash.xxh3_128(), 0
    for piece in pieces():
        use(piece)
        hasher.update(piece.data)
        size += piece.nbytes
    return StoredFile(path=path, bytes=size, xxh3_128=hasher.hexdigest())
