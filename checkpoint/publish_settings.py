"""What of a commit is published, and how; with the state it gives the key of an artefact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import xxhash

from ett.checkpoint.canonical_json import Json, canonical_json
from ett.checkpoint.commit import Commit, TableEntry
from ett.checkpoint.quantised_rows import BITS
from ett.checkpoint.read_plan import Mask
from ett.checkpoint.table_segments import Bytes
from ett.errors import ConfigError, NotFound
from ett.section import nearest

LAYOUT = 1  # of an artefact's files: another one, another key
# The states that a table with rules for its rows saves with them (trainer/sparse/row_ledger.py).
LAST_UPDATE, NUM_UPDATES = "row_last_update", "row_updates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """Rows that are left out of the artefact; the commit keeps them. 0: none."""

    min_updates: int = 0  # a row that was updated less often goes
    max_age_updates: int = 0  # one whose last update is more than so many updates of the table before the newest goes

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 0:
                raise ConfigError(f"{name} is {value}", expected="at least 1, or 0 for none")

    def __bool__(self) -> bool:
        return bool(self.min_updates or self.max_age_updates)

    def check(self, table: TableEntry) -> None:
        """Raises: ConfigError: the table's rows do not say how often and when they were updated."""
        names = [group.name.removeprefix("state:") for group in table.spec.groups]
        wanted = [NUM_UPDATES] * bool(self.min_updates) + [LAST_UPDATE] * bool(self.max_age_updates)
        for name in wanted:
            if name not in names:
                raise ConfigError(
                    f"table {table.spec.name} cannot be pruned: its rows have no {name}",
                    expected=f"a table whose rules for rows save it; this one has {', '.join(names)}",
                    do="leave the pruning out, or name the tables that have it by --tables",
                )

    def kept(self, table: TableEntry, columns: Sequence[Bytes], newest: int) -> Mask:
        """Return bool [N], which of some rows stay. Args: columns: of the table's groups. newest: its last update."""
        mask: Mask = np.ones(len(columns[0]), np.bool_)
        if self.min_updates:
            mask &= _state(table, columns, NUM_UPDATES) >= self.min_updates
        if self.max_age_updates:
            mask &= _state(table, columns, LAST_UPDATE) >= newest - self.max_age_updates
        return mask


def last_updates(table: TableEntry, columns: Sequence[Bytes]) -> int:
    """Return the newest last update of some rows."""
    return int(_state(table, columns, LAST_UPDATE).max(initial=0))


def _state(table: TableEntry, columns: Sequence[Bytes], name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    number = next(n for n, group in enumerate(table.spec.groups) if group.name == f"state:{name}")
    return np.ascontiguousarray(columns[number]).view(np.int64)[:, 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishSettings:
    tables: tuple[str, ...] = ()  # by name; none: all
    bits: int = 0  # of an element of the weights, 8 or 4; 0: as they are
    pruning: Pruning = field(default_factory=Pruning)

    def __post_init__(self) -> None:
        if self.bits not in (0, *BITS):
            raise ConfigError(f"weights in {self.bits} bits", expected=f"one of {', '.join(map(str, BITS))}, or none")

    def chosen(self, commit: Commit) -> list[TableEntry]:
        """Return the tables to publish. Raises: NotFound: no table has a name. ConfigError: cannot be pruned."""
        names = [table.spec.name for table in commit.tables]
        for name in self.tables:
            if name not in names:
                raise NotFound(
                    f"commit {commit.seq} of step {commit.step} has no table {name!r}", expected=nearest(name, names)
                )
        tables = [table for table in commit.tables if not self.tables or table.spec.name in self.tables]
        for table in tables if self.pruning else ():
            self.pruning.check(table)
        return tables

    def as_json(self) -> Json:
        return {**asdict(self), "tables": sorted(set(self.tables))}

    def key(self, commit: Commit, base_key: str | None = None) -> str:
        """Return the key of what these settings make of a commit's state. Args: base_key: of what a delta follows."""
        names = sorted(table.spec.name for table in self.chosen(commit))
        what = {**self.as_json(), "tables": names, "layout": LAYOUT, "state": commit.ckpt_uuid}
        what |= {} if base_key is None else {"base": base_key}
        return xxhash.xxh3_128_hexdigest(canonical_json(what))
