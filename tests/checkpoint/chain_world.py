"""A table that trains, and saves as hot and cold files: what a policy decides is decided here at random.

`python -P tests/checkpoint/chain_world.py docs/chain-example` writes the record that docs/img/chain.svg shows.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit, TableEntry, commit_name
from ett.checkpoint.digest import ColumnGroup, TableDigest
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.segment import SegmentIdentity
from ett.checkpoint.table_reader import TableToRead, read_tables
from ett.checkpoint.table_segments import Bytes, Ids, Rows, TableFile, TableSpec
from ett.checkpoint.table_writer import RowsToWrite, write_tables

GROUPS = (
    ColumnGroup("weight", "float32", 3),
    ColumnGroup("state:sum", "bfloat16", 1),
    ColumnGroup("state:n", "int64", 1),
)
SPEC = TableSpec(table_id="t0000", name="users", dim=3, groups=GROUPS)
Values = dict[int, tuple[bytes, ...]]


@dataclass
class ChainWorld:
    """rows: the oracle. live: the files that a manifest would list."""

    folder: Path
    rng: random.Random
    num_writers: int = 1
    hands_off: bool = True  # a row that is hot no more is written once into the cold file
    rows: Values = field(default_factory=dict)
    live: list[TableFile] = field(default_factory=list)
    seq: int = 0
    hot: set[int] = field(default_factory=set)
    dirty: set[int] = field(default_factory=set)  # since the last commit
    since_base: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)  # since the last commit
    demoted: set[int] = field(default_factory=set)

    def train(self) -> None:
        """Update rows, new ones among them, and evict some."""
        for row_id in self.rng.sample(range(-2000, 2000), self.rng.randrange(0, 300)):
            spread = row_id << self.rng.choice([0, 33]) if row_id > 1000 else row_id
            self.rows[spread] = tuple(self.rng.randbytes(group.row_bytes) for group in GROUPS)
            self.dirty.add(spread)
            self.gone.discard(spread)
        for row_id in self.rng.sample(sorted(self.rows), len(self.rows) // 10):
            del self.rows[row_id]
            self.gone.add(row_id)
            self.dirty.discard(row_id)
        self.since_base = (self.since_base | self.dirty) - self.gone
        self._move_classes()

    def _move_classes(self) -> None:
        rising = set(self.rng.sample(sorted(self.rows), min(len(self.rows), self.rng.randrange(0, 40))))
        falling = {row_id for row_id in self.hot if self.rng.random() < 0.1}
        self.hot = (self.hot | rising) - falling
        self.demoted = (self.demoted | falling) - self.hot

    def save_base(self) -> None:
        self.seq += 1
        self.live = self._write("base", set(self.rows), set())
        self._committed()
        self.since_base = set()

    def save_delta(self, *, fails: bool = False) -> None:
        """Write hot and cold files; a save that fails changes nothing but the number, and gives its rows back."""
        self.seq += 1
        hot = self.since_base & self.hot & set(self.rows)
        cold = (self.dirty - self.hot) & set(self.rows)
        if self.hands_off:
            cold |= self.since_base & self.demoted & set(self.rows)
        # A hot file has all that is hot and changed since the base, so that it takes the place of the one before.
        kept = [file for file in self.live if file.identity.kind != "hot"]
        files = [*self._write("hot", hot, set()), *self._write("cold", cold, self.gone)]
        if not fails:
            self.live = [*kept, *files]
            self._committed()

    def _committed(self) -> None:
        self.dirty, self.gone, self.demoted = set(), set(), set()

    def _write(self, kind: str, ids: set[int], tombstones: set[int]) -> list[TableFile]:
        files: list[TableFile] = []
        for writer in range(self.num_writers):
            mine, gone = (
                np.array(sorted(row_id for row_id in some if row_id % self.num_writers == writer), np.int64)
                for some in (ids, tombstones)
            )
            rows = RowsToWrite(spec=SPEC, kind=kind, ids=mine, gather=self._gather, tombstones=gone)
            identity = SegmentIdentity(
                ckpt_uuid=f"e000001-{self.seq:032x}",
                seq_parent=self.seq - 1,
                step=self.seq,
                table="",
                kind=kind,
                writer=writer,
                part=0,
            )
            (written,) = write_tables(LocalStore(self.folder), [rows], identity, BufferPool(), [])
            files += written.files
        return files

    def _gather(self, ids: Ids, columns: tuple[Bytes, ...]) -> None:
        for n, row_id in enumerate(ids.tolist()):
            for column, value in zip(columns, self.rows[row_id], strict=True):
                column[n] = np.frombuffer(value, np.uint8)

    def digest(self) -> str:
        ids = np.array(sorted(self.rows), np.int64)
        columns = tuple(np.empty((len(ids), group.row_bytes), np.uint8) for group in GROUPS)
        self._gather(ids, columns)
        digest = TableDigest(SPEC.name, GROUPS)
        digest.add(ids, columns)
        return digest.hex


def read_chain(folder: Path, files: list[TableFile], rank: int = 0, world_size: int = 1) -> tuple[Values, int, str]:
    """Return what one rank of a world reads, how many rows it was told, and their digest."""
    found: Values = {}

    def take(rows: Rows) -> None:
        for n, row_id in enumerate(rows.ids.tolist()):
            assert row_id not in found, f"{row_id} came twice"
            found[row_id] = tuple(column[n].tobytes() for column in rows.columns)

    table = TableToRead(spec=SPEC, files=tuple(files), owned=lambda ids: ids % world_size == rank, take=take)
    (read,) = read_tables(LocalStore(folder), [table], BufferPool())
    return found, read.num_rows, read.digest


def commit_of(world: ChainWorld) -> Commit:
    """Return the commit of a world's live files, which nobody has written."""
    table = TableEntry(spec=SPEC, num_rows=len(world.rows), digest=None, files=tuple(world.live))
    return Commit(
        seq=world.seq,
        parent_seq=world.seq - 1,
        type="delta",
        ckpt_uuid=f"e000001-{world.seq:032x}",
        write_id="w",
        epoch=1,
        job="j",
        world_size=world.num_writers,
        step=world.seq,
        cursor=0,
        created="",
        writer_version="",
        tables=(table,),
        dense=None,
        fragments=(),
        policy="hybrid",
    )


def example() -> Commit:
    """Return the commit of a base and four deltas."""
    with tempfile.TemporaryDirectory() as folder:
        world = ChainWorld(Path(folder), random.Random(11), num_writers=2)
        for _ in range(12):
            world.train()
        world.save_base()
        for _ in range(4):
            world.train()
            world.save_delta()
        return commit_of(world)


if __name__ == "__main__":
    shown = example()
    Path(sys.argv[1], "commits").mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1], commit_name(shown.seq)).write_bytes(shown.to_bytes())
