"""Which checkpoint commits count (rules R9 and R14): those that no later restore rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ett.clock_alignment import Timed
from ett.step_credit import Cursor
from ett.unknown_position import UnknownPosition, doubt_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Commits:
    """The highest cursor committed anywhere, and in the tier that survives the loss of a host; -inf: none."""

    highest: Cursor
    highest_remote: Cursor


def find_commits(timed: Sequence[Timed], unknown: Mapping[int, Sequence[UnknownPosition]]) -> Commits:
    """Return what a restore could rely on after the records of `timed`, which are in order.

    A commit made where its attempt's position was unknown keeps nothing that could be named: its cursor is none.
    """
    counting: dict[str, list[tuple[Cursor, bool]]] = {}
    for time_ns, record in timed:
        if record.ev == "ckpt_commit":
            if doubt_at(time_ns, unknown.get(record.att, ())):
                continue
            entry = (record.data["cursor"], record.data.get("tier") == "remote")
            counting.setdefault(str(record.data.get("id", f"cursor {entry[0]}")), []).append(entry)
        elif record.ev == "restore" and (rejected := record.data.get("fallback_from")) is not None:
            # Only commits written before the restore: the same id may be committed again, whole this time.
            for commit_id in rejected if isinstance(rejected, list) else [rejected]:
                counting.pop(str(commit_id), None)
    entries = [entry for commits in counting.values() for entry in commits]
    return Commits(
        highest=max((cursor for cursor, _ in entries), default=float("-inf")),
        highest_remote=max((cursor for cursor, is_remote in entries if is_remote), default=float("-inf")),
    )
