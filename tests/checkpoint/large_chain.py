"""A commit of one large table without a job: a base and changes after it; and what its compaction takes in memory.

`python -P tests/checkpoint/large_chain.py FOLDER MIB` makes one; `… FOLDER` compacts it, prints MiB of growth and time.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ett.checkpoint import live_rows, segment_rows, table_segments
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.compaction import compact, plan_compaction
from ett.checkpoint.dense_entry import DenseEntry, DenseFile
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.segment_writer import SegmentWriter
from ett.checkpoint.table_segments import Bytes, Ids, TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables

SPEC = TableSpec(
    table_id="t0000",
    name="users",
    dim=64,
    groups=(ColumnGroup("weight", "float32", 64), ColumnGroup("state:sum", "float32", 1)),
)


def shrink() -> None:
    """Have segments of 4 MiB, so that a table of some hundred MiB is as large to them as one of TiB is else."""
    table_segments.BLOCK_BYTES, table_segments.SEGMENT_BYTES = 256 << 10, 4 << 20
    live_rows.RANGE_IDS, segment_rows.READ_BYTES = 1 << 16, 1 << 20


def make(folder: Path, num_mib: int) -> None:
    """Write a base of `num_mib` MiB and four commits that change 10 % of the rows each."""
    store, rng = LocalStore(folder), random.Random(1)
    num_rows = (num_mib << 20) // SPEC.row_bytes
    every = np.arange(num_rows, dtype=np.int64) * 7
    files: list[TableFile] = []
    for seq in range(1, 6):
        ids = every if seq == 1 else np.sort(np.array(rng.sample(every.tolist(), num_rows // 10), np.int64))
        kind = "base" if seq == 1 else "cold"
        identity = SegmentIdentity(
            ckpt_uuid=f"e000001-{seq:032x}", seq_parent=seq - 1, step=seq, table="", kind=kind, writer=0, part=0
        )
        rows = RowsToWrite(spec=SPEC, kind=kind, ids=ids, gather=_rows_of(seq))
        files += write_tables(store, [rows], identity, BufferPool(), [])[0].files
    dense = SegmentIdentity(
        ckpt_uuid=f"e000001-{5:032x}", seq_parent=4, step=5, table="", kind="dense", writer=0, part=0
    )
    CommitLog(store).append(
        Commit(
            seq=5,
            parent_seq=4,
            type="delta",
            ckpt_uuid=dense.ckpt_uuid,
            write_id="w" * 32,
            epoch=1,
            job="",
            world_size=1,
            step=5,
            cursor=50,
            created="",
            writer_version="",
            tables=(TableEntry(spec=SPEC, num_rows=num_rows, digest=None, files=tuple(files)),),
            dense=DenseEntry(
                identity=dense,
                files=(DenseFile(stored=_dense_file(store, dense), writer=0),),
                num_items=0,
                digest="0" * 32,
                dcp_version=None,
            ),
            fragments=(),
        )
    )


def _dense_file(store: LocalStore, identity: SegmentIdentity) -> StoredFile:
    path = f"dense/{identity.ckpt_uuid}/dense.w00000.seg"
    with store.create_stream(path) as file:
        writer = SegmentWriter(file, {**identity.as_json(), "sections": []})
        length, digest = writer.finish()
    return StoredFile(path=path, bytes=length, xxh3_128=digest)


def _rows_of(seq: int) -> Callable[[Ids, tuple[Bytes, ...]], None]:
    def gather(ids: Ids, out: tuple[Bytes, ...]) -> None:
        for column in out:
            column[:] = ((ids * 31 + seq) % 251).astype(np.uint8)[:, None]

    return gather


def peak_mib() -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    if "--small" in sys.argv:
        shrink()
    if len(sys.argv) > 2 and sys.argv[2].isdecimal():
        make(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        before, began = peak_mib(), time.monotonic()
        made = compact(LocalStore(Path(sys.argv[1])), plan_compaction(LocalStore(Path(sys.argv[1]))))
        print(f"{peak_mib() - before:.1f} {time.monotonic() - began:.2f} {made.tables[0].digest}")
