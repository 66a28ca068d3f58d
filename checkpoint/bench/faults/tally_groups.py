"""What became of all faults of one kind at one point of the protocol: a line each, in the table and in the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ett.checkpoint.bench.faults.protocol_points import Amount, protocol_point
from ett.checkpoint.bench.faults.verdict import OUTCOMES

COLUMNS = ["cells", "least of a cell", "faults", *OUTCOMES]
KILLS = "process"  # the family of SIGKILL
NEEDS_SERVER = "s3"


@dataclass(kw_only=True, slots=True)
class TallyGroup:
    """counts: of each cell. wrong: commands that inject what was lost again."""

    family: str
    kind: str
    point: str
    counts: list[int] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def row(self) -> list[int]:
        """Return the numbers of COLUMNS."""
        return [len(self.counts), min(self.counts), self.count, *self.outcomes.values()]


def groups_of(tallies: Iterable[dict[str, Any]]) -> list[TallyGroup]:
    """Return the groups in order. Args: tallies: of `CellTally.as_json`."""
    groups: dict[tuple[str, str, str], TallyGroup] = {}
    for tally in tallies:
        family, kind, point = tally["family"], tally["kind"], protocol_point(tally["point"])
        group = groups.setdefault((family, kind, point), TallyGroup(family=family, kind=kind, point=point))
        group.counts.append(tally["count"])
        group.wrong += tally.get("wrong", ())
        for outcome in OUTCOMES:
            group.outcomes[outcome] += tally[outcome]
    return [groups[key] for key in sorted(groups)]


def least_json(groups: Sequence[TallyGroup], amount: Amount) -> dict[str, Any]:
    """Return how many groups and cells there are, and how many faults that with the fewest has.

    too_few: groups with fewer faults than were asked for. sigkill: the same of the processes that the kernel killed.
    """
    kills = [group for group in groups if group.family == KILLS]
    too_few = [f"{g.family} {g.kind}, {g.point}: {g.count}" for g in groups if g.count < amount.per_point]
    return {**_least(groups), "sigkill": _least(kills), "asked_per_group": amount.per_point, "too_few": too_few}


def say_least(groups: Sequence[TallyGroup], amount: Amount) -> str:
    found = least_json(groups, amount)
    kills = found["sigkill"]
    too_few = f"; {len(found['too_few'])} of them have fewer than {amount.per_point}" if found["too_few"] else ""
    without = "" if any(group.family == NEEDS_SERVER for group in groups) else "; no S3 server here: make peers"
    return (
        f"{found['groups']} groups of a kind of fault at a point of the protocol, {found['least_per_group']} or more"
        f" each (SIGKILL: {kills['least_per_group']} or more in {kills['groups']}){too_few}; {found['cells']} cells,"
        f" {found['least_per_cell']} or more each{without}"
    )


def rows_json(groups: Iterable[TallyGroup]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the numbers of COLUMNS in one string by family, kind and point, so that each is one line of the JSON."""
    rows: dict[str, dict[str, dict[str, str]]] = {}
    for group in groups:
        of_kind = rows.setdefault(group.family, {}).setdefault(group.kind, {})
        of_kind[group.point] = " ".join(str(number) for number in group.row())
    return rows


def table_of(groups: Sequence[TallyGroup]) -> Iterator[str]:
    """Yield a line for each family and kind; then the commands that inject again what went wrong."""
    outcomes = " ".join(f"{name:>8}" for name in OUTCOMES)
    yield f"  {'family':<10} {'kind':<24} {'points':>6} {'least':>6} {'cells':>6} {'least':>6} {'faults':>7} {outcomes}"
    kinds: dict[tuple[str, str], list[TallyGroup]] = {}
    for group in groups:
        kinds.setdefault((group.family, group.kind), []).append(group)
    for (family, kind), of_kind in kinds.items():
        least = _least(of_kind)
        sums = " ".join(f"{sum(group.outcomes[name] for group in of_kind):>8}" for name in OUTCOMES)
        yield (
            f"  {family:<10} {kind:<24} {least['groups']:>6} {least['least_per_group']:>6} {least['cells']:>6}"
            f" {least['least_per_cell']:>6} {sum(group.count for group in of_kind):>7} {sums}"
        )
    for group in groups:
        yield from (f"  {line}" for line in group.wrong)


def _least(groups: Sequence[TallyGroup]) -> dict[str, int]:
    return {
        "groups": len(groups),
        "least_per_group": min((group.count for group in groups), default=0),
        "cells": sum(len(group.counts) for group in groups),
        "least_per_cell": min((count for group in groups for count in group.counts), default=0),
    }
