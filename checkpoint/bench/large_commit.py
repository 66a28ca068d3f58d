"""A commit of one table that nobody has trained, as large as is asked for: a base, and later files of changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog, prepare_folder
from ett.checkpoint.dense_document import Chunk, DenseTensor, document_bytes
from ett.checkpoint.dense_entry import DOCUMENT_NAME, METADATA_NAME, DenseEntry, DenseFile, dense_folder
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables

DIM = 64
SPEC = TableSpec(
    table_id="t0000",
    name="users",
    dim=DIM,
    groups=(ColumnGroup("weight", "float32", DIM), ColumnGroup("state:sum", "float32", 1)),
)
_CHANGED = 0.05  # of the rows, in each later commit
_DATA = "__0_0.distcp"


def write_large_commit(store: Store, table_bytes: int, num_deltas: int = 3, dense_bytes: int = 16 << 20) -> Commit:
    """Write a base of about `table_bytes` of rows and states, later commits' cold files, and one record that lists all.

    Takes 8 bytes of memory a row beside a few segments.
    """
    prepare_folder(store)
    num_rows = max(100, table_bytes // SPEC.row_bytes)
    every = np.arange(num_rows, dtype=np.int64) * 7
    rng, files = np.random.default_rng(1), list[TableFile]()
    for seq in range(1, num_deltas + 2):
        ids = every if seq == 1 else every[rng.random(num_rows) < _CHANGED]
        kind = "base" if seq == 1 else "cold"
        rows = RowsToWrite(spec=SPEC, kind=kind, ids=ids, gather=_rows_of(seq))
        files += write_tables(store, [rows], _identity(seq, kind), BufferPool(), [])[0].files
    seq = num_deltas + 1
    commit = Commit(
        seq=seq,
        parent_seq=seq - 1,
        type="delta",
        ckpt_uuid=_identity(seq, "").ckpt_uuid,
        write_id="w" * 32,
        epoch=1,
        job="large",
        world_size=1,
        step=seq,
        cursor=10 * seq,
        created="",
        writer_version="",
        tables=(TableEntry(spec=SPEC, num_rows=num_rows, digest=None, files=tuple(files)),),
        dense=write_dense_weight(store, _identity(seq, "dense"), np.zeros(dense_bytes // 4, np.float32)),
        fragments=(),
    )
    return CommitLog(store).append(commit)


def write_dense_weight(store: Store, identity: SegmentIdentity, weight: NDArray[np.float32]) -> DenseEntry:
    """Write the dense state of a model that has one tensor, `weight`."""
    from torch import from_numpy

    from ett.checkpoint.dense_digest import digest_of_whole

    name, folder = "model.weight", dense_folder(identity)
    tree = {"model": {"weight": {"$tensor": name}}, "optimizer": None, "extra": None, "loader": None}
    chunk = Chunk(offsets=(0,), sizes=weight.shape, file=_DATA, at=0, num_bytes=weight.nbytes)
    tensor = DenseTensor(name=name, dtype="float32", shape=weight.shape, digest="", chunks=(chunk,))
    contents = {
        METADATA_NAME: b"none",
        DOCUMENT_NAME: document_bytes(identity, [tensor], tree),
        _DATA: weight.tobytes(),
    }
    for file, data in contents.items():
        store.create(f"{folder}/{file}", data)
    files = tuple(DenseFile(stored=stored_bytes(f"{folder}/{n}", data), writer=0) for n, data in contents.items())
    digest = digest_of_whole({name: from_numpy(weight)}, tree)
    return DenseEntry(identity=identity, files=files, num_items=1, digest=digest, dcp_version="1.0.0")


def _identity(seq: int, kind: str) -> SegmentIdentity:
    return SegmentIdentity(
        ckpt_uuid=f"e000001-{seq:032x}", seq_parent=seq - 1, step=seq, table="", kind=kind, writer=0, part=0
    )


def are_rows(ids: Ids, weights: Bytes) -> bool:
    """Return whether each row is that of its id, as some commit had it. Args: weights: uint8 [N, 4 * DIM]."""
    versions = (weights[:, 0] - ids * 31) % 251
    return bool((weights == weights[:, :1]).all() and len(ids) and versions.min() >= 1 and versions.max() < 100)


def _rows_of(seq: int) -> Callable[[Ids, tuple[Bytes, ...]], None]:
    def gather(ids: Ids, out: tuple[Bytes, ...]) -> None:
        for column in out:
            column[:] = ((ids * 31 + seq) % 251).astype(np.uint8)[:, None]

    return gather
