"""What a serving process would load of a publication, by the format's own library, and what it should have loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_world import bits
from safetensors import safe_open
from safetensors.torch import load_file

from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publication import Publication
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.store import Store
from ett.checkpoint.table_reader import TableToRead, read_tables

ServedRows = dict[str, dict[int, bytes]]  # of each table, by id


def newest(folder: Path) -> Commit:
    return find_commit(LocalStore(folder), None)[0]


def committed_rows(store: Store, commit: Commit) -> ServedRows:
    """Return the weights of every live row, read as a restore reads them."""
    found: ServedRows = {table.spec.name: {} for table in commit.tables}

    def taker(name: str) -> Any:
        return lambda rows: found[name].update(
            (row_id, row.tobytes()) for row_id, row in zip(rows.ids.tolist(), rows.columns[0], strict=True)
        )

    everything = [
        TableToRead(
            spec=table.spec,
            files=table.files,
            owned=lambda ids: np.ones(len(ids), np.bool_),
            take=taker(table.spec.name),
        )
        for table in commit.tables
    ]
    read_tables(store, everything, BufferPool())
    return found


def served_rows(folder: Path, publication: Publication | None = None) -> ServedRows:
    """Return the rows of a publication, the newest if none is named, as they are in its files."""
    publication = publication or PublicationLog(LocalStore(folder)).read_all()[0][0]
    found: ServedRows = {}
    for table in publication.tables:
        rows = found.setdefault(table.name, {})
        tensor = f"{table.name}.q{table.weight_bits}" if table.weight_bits else table.name
        for file in table.files:
            read = load_file(folder / file.stored.path)
            ids = read[f"{table.name}.ids"].tolist()
            assert ids == sorted(ids)
            assert (ids[0], ids[-1], len(ids)) == (file.min_id, file.max_id, file.num_rows)
            assert not rows.keys() & set(ids)
            rows.update((row_id, bits(read[tensor][n])) for n, row_id in enumerate(ids))
    return found


def metadata_of(folder: Path, name: str) -> dict[str, str]:
    with safe_open(folder / name, "np") as file:
        found: dict[str, str] = file.metadata()
    return found
