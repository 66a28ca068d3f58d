"""Is a commit whole? Four depths: its record, the sizes of its files, every byte, every row."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.dense_files import check_dense_files
from ett.checkpoint.restore_checks import check_size, read_fragment
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.segment_reader import open_segment
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.table_segments import Ids
from ett.checkpoint.worker_threads import in_threads, num_io_threads
from ett.errors import CorruptState, EttError

Level = Literal["manifest", "size", "hash", "load"]
LEVELS: tuple[Level, ...] = get_args(Level)


def verify_commit(store: Store, commit: Commit, level: Level) -> None:
    """Check a commit whose record has been read; "load" includes "hash", which includes "size".

    Raises: CorruptState: the first damage found; names table, file, block and the ids in it.
    """
    if level == "manifest":
        return
    for stored in commit.stored_files():
        check_size(store, stored)
    if level == "size":
        return
    segments = [(file.stored, file.identity) for table in commit.tables for file in table.files]
    if commit.dense is not None and commit.dense.dcp_version is None:
        segments.append((commit.dense.files[0].stored, commit.dense.identity))
    in_threads(segments, lambda segment: check_bytes(store, *segment), num_io_threads())
    if commit.dense is not None and commit.dense.dcp_version is not None:
        check_dense_files(store, commit.dense)
    for fragment in commit.fragments:
        read_fragment(store, fragment)
    if level == "load":
        with_digests(store, commit)


def check_bytes(store: Store, stored: StoredFile, identity: SegmentIdentity) -> None:
    """Read a whole segment. Raises: CorruptState: names the block where the damage is in one."""
    with open_segment(store, stored, identity) as segment:
        try:
            segment.check_whole_hash()
        except CorruptState:
            for number, section in enumerate(segment.header["sections"]):
                for record in segment.blocks(number):
                    segment.read_block(record, section["name"])
            raise


def with_digests(store: Store, commit: Commit) -> Commit:
    """Return a commit with the digest of every table, computed from its files.

    Raises: CorruptState: another one is stored, or a file is damaged.
    """
    buffers = BufferPool()
    tables = tuple(replace(table, digest=_load_table(store, table, buffers)) for table in commit.tables)
    if commit.dense is not None:
        _load_dense(store, commit.dense)
    return replace(commit, tables=tables)


def _load_table(store: Store, table: TableEntry, buffers: BufferPool) -> str:
    """Return the digest of a table's rows."""
    all_ids: list[Ids] = []
    (found,) = read_tables(
        store,
        [
            TableToRead(
                spec=table.spec,
                files=table.files,
                owned=lambda ids: np.ones(len(ids), np.bool_),
                take=lambda rows: all_ids.append(rows.ids),
            )
        ],
        buffers,
    )
    num_rows, digest = found.num_rows, found.digest
    num_distinct = len(np.unique(np.concatenate([np.empty(0, np.int64), *all_ids])))
    if num_distinct != num_rows:
        raise CorruptState(f"table {table.spec.name} holds {num_rows - num_distinct} ids more than once")
    if num_rows != table.num_rows or table.digest not in (None, digest):
        raise CorruptState(
            f"table {table.spec.name} holds {num_rows} rows with digest {digest}",
            expected=f"{table.num_rows} rows with digest {table.digest or 'unknown'}",
        )
    return digest


def _load_dense(store: Store, dense: DenseEntry) -> None:
    from ett.checkpoint.dense_digest import digest_of_whole
    from ett.checkpoint.dense_reader import read_dense
    from ett.checkpoint.dense_segment import segment_digest

    tensors, tree = read_dense(store, dense)
    found = (segment_digest if dense.dcp_version is None else digest_of_whole)(tensors, tree)
    if (len(tensors), found) != (dense.num_items, dense.digest):
        raise CorruptState(
            f"the dense state holds {len(tensors)} tensors with digest {found}",
            expected=f"{dense.num_items} with {dense.digest}",
        )


def damage(store: Store, commit: Commit, level: Level) -> EttError | None:
    """Return what is wrong with a commit, or None."""
    try:
        verify_commit(store, commit, level)
    except CorruptState as err:
        return err
    return None
