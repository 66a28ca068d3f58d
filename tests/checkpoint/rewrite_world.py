"""A job's folder whose newest commit is a chain: what ranks saved, then hot and cold files of random changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from checkpoint_world import Rank, restored_world, saved_world

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.incarnation import life_of, new_write_id
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.table_segments import Bytes, Ids, TableFile
from ett.checkpoint.table_writer import RowsToWrite, write_tables


def ids_of(store: Store, table: TableEntry) -> list[int]:
    """Return the ids of a table's live rows, sorted."""
    found: list[int] = []
    everything = TableToRead(
        spec=table.spec,
        files=table.files,
        owned=lambda ids: np.ones(len(ids), np.bool_),
        take=lambda rows: found.extend(rows.ids.tolist()),
    )
    read_tables(store, [everything], BufferPool())
    return sorted(found)


def append_delta(store: Store, seed: int, *, step: int | None = None) -> Commit:
    """Append a commit in which some rows of every table have changed, come and gone; the dense state is as before."""
    log, rng = CommitLog(store), random.Random(seed)
    before = log.read(max(log.seqs()))
    seq = before.seq + 1
    identity = SegmentIdentity(
        ckpt_uuid=f"e{before.epoch:06d}-{rng.getrandbits(128):032x}",
        seq_parent=before.seq,
        step=before.step + 1 if step is None else step,
        table="",
        kind="",
        writer=0,
        part=0,
    )
    tables = [_changed(store, table, identity, rng) for table in before.tables]
    commit = replace(
        before,
        type="delta",
        seq=seq,
        parent_seq=before.seq,
        ckpt_uuid=identity.ckpt_uuid,
        write_id=new_write_id(life_of(before)),
        step=identity.step,
        cursor=identity.step * 10,
        tables=tuple(tables),
        policy="hybrid",
    )
    log.append(commit)
    return commit


def _changed(store: Store, table: TableEntry, identity: SegmentIdentity, rng: random.Random) -> TableEntry:
    old = ids_of(store, table)
    gone = set(rng.sample(old, len(old) // 10))
    fresh = {rng.getrandbits(62) for _ in range(40)} - set(old)
    changed = {*rng.sample(sorted(set(old) - gone), len(old) // 4), *fresh}
    hot = set(rng.sample(sorted(changed), len(changed) // 3))
    files: list[TableFile] = []
    for kind, ids, tombstones in (("hot", hot, set[int]()), ("cold", changed - hot, gone)):
        rows = RowsToWrite(
            spec=table.spec, kind=kind, ids=_ids(ids), gather=_random_rows(rng), tombstones=_ids(tombstones)
        )
        (written,) = write_tables(store, [rows], replace(identity, kind=kind), BufferPool(), [])
        files += written.files
    num_rows = len(old) - len(gone) + len(fresh)
    return replace(table, num_rows=num_rows, digest=None, files=(*table.files, *files))


def _ids(ids: set[int]) -> Ids:
    return np.array(sorted(ids), np.int64)


def _random_rows(rng: random.Random) -> Callable[[Ids, tuple[Bytes, ...]], None]:
    def gather(ids: Ids, out: tuple[Bytes, ...]) -> None:
        for column in out:
            column[:] = np.frombuffer(rng.randbytes(column.size), np.uint8).reshape(column.shape)

    return gather


def saved_chain(folder: Path, store: Store, *, world_size: int = 2, deltas: int = 3, **config: int) -> None:
    """Save two commits of a job, then append deltas: the newest is of step 2 + deltas."""
    saved_world(folder, world_size, [1, 2], **config)
    for seed in range(deltas):
        append_delta(store, 100 + seed)


State = dict[object, bytes]


def state_of(folder: Path, world_size: int = 1, resume: str = "auto") -> tuple[int, State]:
    """Restore a copy's or the folder's own newest commit; return its step and every bit of it."""
    world: list[tuple[Rank, object]] = restored_world(folder, world_size, resume)
    state: State = dict(world[0][0].image())
    for rank, _ in world:
        state.update(rank.rows())
    return world[0][1].step, state  # type: ignore[attr-defined]
