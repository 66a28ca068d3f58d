"""The files of a `policy_world`, written and read by the product."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from chain_world import GROUPS, SPEC, read_chain
from policy_world import Table, identity_of

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.table_segments import Bytes, Ids, TableFile
from ett.checkpoint.table_writer import RowsToWrite, write_tables


@dataclass
class RealFiles:
    folder: Path

    def write(self, kind: str, seq: int, writer: int, rows: Table, tombstones: list[int]) -> list[TableFile]:
        def gather(ids: Ids, columns: tuple[Bytes, ...]) -> None:
            for n, row_id in enumerate(ids.tolist()):
                for column, value in zip(columns, values_of(rows[row_id]), strict=True):
                    column[n] = np.frombuffer(value, np.uint8)

        what = RowsToWrite(
            spec=SPEC,
            kind=kind,
            ids=np.array(list(rows), np.int64),
            gather=gather,
            tombstones=np.array(tombstones, np.int64),
        )
        store = LocalStore(self.folder)
        (written,) = write_tables(store, [what], identity_of(kind, seq, writer), BufferPool(), [])
        return list(written.files)

    def read(self, files: Iterable[TableFile]) -> Table:
        found, num_rows, _ = read_chain(self.folder, list(files))
        assert num_rows == len(found)
        rows = {row_id: int.from_bytes(values[-1], "little") for row_id, values in found.items()}
        assert all(found[row_id] == values_of(value) for row_id, value in rows.items())
        return rows


def values_of(value: int) -> tuple[bytes, ...]:
    """Return a row: its last column is the value, the others follow from it."""
    rng = random.Random(value)
    return (*(rng.randbytes(group.row_bytes) for group in GROUPS[:-1]), value.to_bytes(GROUPS[-1].row_bytes, "little"))
