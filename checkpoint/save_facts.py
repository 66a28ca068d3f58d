"""What one save wrote and what it took: in its commit's `stats`, as event `ckpt_detail`, in `ett checkpoint show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.capture.capture_counts import CaptureCounts, sum_of
from ett.checkpoint.commit import TableEntry
from ett.checkpoint.table_segments import TABLE_KINDS

CAPTURES = ("prefetch", "sweep", "guard")  # ways of a row into a save that training does not wait for


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveFacts:
    """Rows and bytes are of all tables and ranks, and of this save's own files: what it saved, not what is live."""

    stall_s: float  # of training's time
    write_s: float  # from its beginning to its commit
    base_rows: int = 0
    hot_rows: int = 0
    cold_rows: int = 0
    tombstones: int = 0
    base_bytes: int = 0
    hot_bytes: int = 0
    cold_bytes: int = 0
    dense_bytes: int = 0
    threshold: float | None = None  # p* of the table with most rows; None: nothing was solved for it
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of each table for which it was, on rank 0
    # Rows that were captured while training went on, by their way; None: it waited, and none were.
    prefetch_rows: int | None = None
    sweep_rows: int | None = None
    guard_rows: int | None = None
    waited_s: float | None = None  # of stall_s: for staging memory
    staged_bytes: int | None = None  # of staging memory, lent at once at most since training began, of all ranks

    @property
    def num_bytes(self) -> int:
        return self.base_bytes + self.hot_bytes + self.cold_bytes + self.dense_bytes

    def with_captures(self, by_rank: Sequence[CaptureCounts]) -> SaveFacts:
        """Return them for a save beside training; what a rank waited for staging memory is stall, too."""
        counts, waited_s = sum_of(by_rank), max(each.waited_s for each in by_rank)
        return replace(
            self,
            stall_s=round(self.stall_s + waited_s, 6),
            prefetch_rows=counts.prefetch,
            sweep_rows=counts.sweep,
            guard_rows=counts.guard,
            waited_s=round(waited_s, 6),
            staged_bytes=counts.staged_bytes,
        )

    def as_json(self) -> dict[str, Json]:
        """Return the fields that say something."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    def flat(self) -> dict[str, Any]:
        """Return the fields of an event, which has one line for any number of tables."""
        return {name: value for name, value in self.as_json().items() if name != "thresholds"}

    @classmethod
    def of_stats(cls, stats: Mapping[str, Any]) -> SaveFacts | None:
        """Return what a commit's stats, or an event, say; None: of a version that did not, or of no save."""
        if "base_rows" not in stats:
            return None
        return cls(**{name: stats[name] for name in cls.__dataclass_fields__ if name in stats})


def written_facts(
    tables: Sequence[TableEntry],
    seq: int,
    thresholds: Mapping[str, float],
    *,
    dense_bytes: int,
    stall_s: float,
    write_s: float,
) -> SaveFacts:
    """Return what a save wrote. Args: tables: as commit `seq` lists them."""
    counts = dict.fromkeys([*(f"{kind}_{what}" for kind in TABLE_KINDS for what in ("rows", "bytes")), "tombstones"], 0)
    for file in (file for table in tables for file in table.files if file.seq == seq):
        counts[f"{file.identity.kind}_rows"] += file.num_rows
        counts[f"{file.identity.kind}_bytes"] += file.stored.bytes
        counts["tombstones"] += file.num_tombstones
    shown = {name: round(value, 6) for name, value in thresholds.items()}
    largest = max(tables, key=lambda table: table.num_rows, default=None)
    return SaveFacts(
        stall_s=stall_s,
        write_s=write_s,
        dense_bytes=dense_bytes,
        threshold=shown.get(largest.spec.name) if largest else None,
        thresholds=shown,
        **counts,
    )
