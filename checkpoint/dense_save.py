"""The dense state of one step boundary on its way to a store: staged at once, written by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.dense_digest import combine_sums, dense_digest
from ett.checkpoint.dense_document import Chunk, DenseTensor, document_bytes
from ett.checkpoint.dense_entry import DOCUMENT_NAME, DenseEntry, DenseFile, dense_folder
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.ranks import Ranks, gather_or_raise
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.staging_area import StagedPart
from ett.checkpoint.store import Store
from ett.raised import raised_by


@dataclass(frozen=True, slots=True)
class StagedDense:
    """A rank's dense state at a step boundary, in memory of its own: the next `stage` of its area overwrites it."""

    parts: Mapping[str, StagedPart]
    tree: dict[str, Any]  # rank 0's counts
    _: KW_ONLY
    is_sharded: bool  # on any rank


class DenseSave:
    """Writes a staged dense state in a thread of its own, while within the context other things are written.

    Where tensors are sharded the threads of all ranks use the ranks' group: nobody else may before the context ends,
    which waits for the thread.
    """

    def __init__(
        self, store: Store, ranks: Ranks, identity: SegmentIdentity, dense: StagedDense, names: list[str]
    ) -> None:
        """Args: names: gets those that may have been stored, for whoever gives the save up."""
        self._store, self._ranks, self._identity, self._dense = store, ranks, identity, dense
        self._names = names
        self._entry: DenseEntry | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ckpt-dense", daemon=True)

    def __enter__(self) -> DenseSave:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._thread.join()

    def result(self) -> DenseEntry | None:
        """Return what the commit says of it; None on ranks other than 0.

        Raises: what the writing raised, on every rank that writes: what the store did, Unreachable, LostPeer.
        """
        if self._failure is not None:
            raise self._failure
        return self._entry

    def _run(self) -> None:
        if self._ranks.rank == 0 or self._dense.is_sharded:
            self._failure = raised_by(self._write)

    def _write(self) -> None:
        from ett.checkpoint.dense_writer import DCP_VERSION, write_parts

        group = self._ranks.group if self._dense.is_sharded else None
        parts, files = write_parts(self._store, dense_folder(self._identity), self._dense.parts, group, self._names)
        mine = {
            "files": [file.as_json() for file in files],
            "parts": [[p.name, p.dtype, list(p.shape), p.chunk.as_json(), p.digest_sum] for p in parts],
        }
        written = gather_or_raise(self._ranks, lambda: mine) if self._dense.is_sharded else [mine]
        if self._ranks.rank == 0:
            self._entry = self._described(written, DCP_VERSION)

    def _described(self, written: list[Json], dcp_version: str) -> DenseEntry:
        """Store the document that says where everything is."""
        tensors = _tensors([part for of_rank in written for part in of_rank["parts"]])
        name = f"{dense_folder(self._identity)}/{DOCUMENT_NAME}"
        data = document_bytes(self._identity, tensors, self._dense.tree)
        self._names.append(name)
        self._store.create(name, data)
        files = [
            DenseFile(stored=StoredFile.from_json(file), writer=writer)
            for writer, of_rank in enumerate(written)
            for file in of_rank["files"]
        ]
        return DenseEntry(
            identity=self._identity,
            files=(*files, DenseFile(stored=stored_bytes(name, data), writer=0)),
            num_items=len(tensors),
            digest=dense_digest(((t.name, t.dtype, t.shape, t.digest) for t in tensors), self._dense.tree),
            dcp_version=dcp_version,
        )


def import_ahead() -> None:
    """Import what a save needs beside what follows, so that the first save does not wait half a second for it."""
    threading.Thread(target=_import, name="ckpt-import").start()


def _import() -> None:
    with suppress(ImportError):  # the save says it
        import ett.checkpoint.dense_writer  # noqa: F401


def _tensors(parts: list[Json]) -> list[DenseTensor]:
    """Return the tensors that boxes of all ranks make up, by name."""
    whose: dict[str, list[Json]] = {}
    for part in parts:
        whose.setdefault(part[0], []).append(part)
    return [
        DenseTensor(
            name=name,
            dtype=boxes[0][1],
            shape=tuple(boxes[0][2]),
            digest=combine_sums(box[4] for box in boxes),
            chunks=tuple(sorted((Chunk.from_json(box[3]) for box in boxes), key=lambda chunk: chunk.offsets)),
        )
        for name, boxes in sorted(whose.items())
    ]
