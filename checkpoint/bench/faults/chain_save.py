"""Saves of a chain: base, hot and cold files with tombstones, by the product's writers, in the order of its protocol.

Ids that 3 divides are hot: their file has all of them that changed since the base. The others, and every tombstone,
go into the cold file of the commit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ett.checkpoint.bench.faults.oracle import Ids, Oracle
from ett.checkpoint.canonical_json import seal
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.dense_save import DenseSave, StagedDense
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.incarnation import Epoch, check_not_fenced, new_write_id
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.retention import retire
from ett.checkpoint.rng_state import rng_state
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.table_segments import TableFile
from ett.checkpoint.table_writer import RowsToWrite, write_tables


def save_delta(checkpointer: Checkpointer, oracle: Oracle, step: int, cursor: int, keep_last: int) -> Commit:
    """Commit what changed since the newest commit of the job's epoch, which has all rows or continues a chain."""
    place, epoch = checkpointer._place, checkpointer._epoch
    assert epoch is not None
    store = place.store
    log = CommitLog(store)
    epoch = check_not_fenced(log, epoch)
    before = log.read(epoch.seq)
    uuid = f"e{epoch.epoch:06d}-{new_write_id()}"
    whose = SegmentIdentity(ckpt_uuid=uuid, seq_parent=epoch.seq, step=step, table="", kind="dense", writer=0, part=0)
    written: list[str] = []
    tables = []
    for table in before.tables:
        rows = _changes(checkpointer, oracle, table, step)
        files = [file for part in rows for file in _written(checkpointer, part, whose, written)]
        kept = [file for file in table.files if file.identity.kind != "hot"]
        count = len(oracle.state(step).tables[table.spec.name].ids)
        tables.append(replace(table, num_rows=count, digest=None, files=(*kept, *files)))
    tensors, tree = checkpointer._state.dense(keep_parts=False)
    staged = StagedDense(place.staging.stage(tensors), tree, is_sharded=False)
    with DenseSave(store, place.ranks, whose, staged, written) as dense_save:
        pass
    dense = dense_save.result()
    assert dense is not None
    store.sync(written)
    commit = replace(
        before,
        type="delta",
        seq=epoch.seq + 1,
        parent_seq=epoch.seq,
        ckpt_uuid=uuid,
        write_id=new_write_id(epoch.life),
        epoch=epoch.epoch,
        step=step,
        cursor=cursor,
        tables=tuple(tables),
        dense=dense,
        fragments=(_fragment(store, uuid, dense),),
        policy="campaign",
    )
    _commit(checkpointer, epoch, commit, keep_last)
    return commit


def _commit(checkpointer: Checkpointer, epoch: Epoch, commit: Commit, keep_last: int) -> None:
    log = CommitLog(checkpointer._place.store)
    check_not_fenced(log, epoch)
    check_files(log.store, commit)
    log.append(commit)
    checkpointer._epoch = epoch.after(commit.seq)
    retire(log.store, keep_last)


def _changes(checkpointer: Checkpointer, oracle: Oracle, table: TableEntry, step: int) -> list[RowsToWrite]:
    base_step = min(file.identity.step for file in table.files)
    last_step = max(file.identity.step for file in table.files)
    since_base, _ = oracle.ids_since(table.spec.name, base_step, step)
    since_last, gone = oracle.ids_since(table.spec.name, last_step, step)
    spec = next(spec for spec in checkpointer._state.specs if spec.name == table.spec.name)
    gather = checkpointer._state.all_rows(spec).gather
    none = np.empty(0, np.int64)
    parts: list[tuple[str, Ids, Ids]] = [
        ("hot", since_base[since_base % 3 == 0], none),
        ("cold", since_last[since_last % 3 != 0], gone),
    ]
    return [
        RowsToWrite(spec=spec, kind=kind, ids=ids, gather=gather, tombstones=tombstones)
        for kind, ids, tombstones in parts
    ]


def _written(
    checkpointer: Checkpointer, rows: RowsToWrite, whose: SegmentIdentity, written: list[str]
) -> tuple[TableFile, ...]:
    place = checkpointer._place
    (table,) = write_tables(place.store, [rows], whose, place.buffers, written)
    return table.files


def _fragment(store: Store, uuid: str, dense: DenseEntry) -> StoredFile:
    name = f"m/{uuid}/w00000.json"
    data = seal({"document": "fragment", "ckpt_uuid": uuid, "writer": 0, "rng": rng_state(), "dense": dense.as_json()})
    store.create(name, data)
    return stored_bytes(name, data)
