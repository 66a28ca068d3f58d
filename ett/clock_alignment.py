"""Records of many clocks -> one time line (rule R16): normalised time = mono_ns + one constant per (host, boot).

The supervisor is the reference, wall clocks are only anchors, and a negative duration is never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ett.event_schema import Record

Boot = tuple[str, str]


class Timed(NamedTuple):
    """A record and its normalised time."""

    time_ns: int
    record: Record


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockAlignment:
    """Constants per (host, boot). `uncertainty_ns` is the largest known error; None: a clock could not be tied."""

    constants: Mapping[Boot, int]
    unsynced: frozenset[Boot]
    uncertainty_ns: int | None

    def time_ns(self, record: Record, mono_ns: int | None = None) -> int:
        """Normalised time of `mono_ns` on the record's clock; of the record itself where it is not given."""
        return (record.mono_ns if mono_ns is None else mono_ns) + self.constants[record.host, record.boot]


def align(records: Iterable[Record]) -> ClockAlignment:
    by_boot: dict[Boot, list[Record]] = {}
    for record in records:
        by_boot.setdefault((record.host, record.boot), []).append(record)
    constants: dict[Boot, int] = {}
    unsynced: set[Boot] = set()
    errors: list[int] = []
    for boot, own in by_boot.items():
        constants[boot], error = _constant(own)
        if error is None:
            unsynced.add(boot)
        else:
            errors.append(error)
    uncertainty = None if unsynced else max(errors, default=0)
    return ClockAlignment(constants=constants, unsynced=frozenset(unsynced), uncertainty_ns=uncertainty)


def ordered(records: Sequence[Record], as_of_ns: int | None) -> tuple[list[Timed], ClockAlignment]:
    """Return the records up to `as_of_ns` by (normalised time, src, seq), and the clocks that gave the times.

    A clock_sync after `as_of_ns` is not there yet either, so clocks are aligned again without what was cut.
    """
    kept = records
    while True:
        clocks = align(kept)
        timed = [Timed(clocks.time_ns(record), record) for record in kept]
        if as_of_ns is None:
            break
        timed = [item for item in timed if item.time_ns <= as_of_ns]
        if len(timed) == len(kept):
            break
        kept = [item.record for item in timed]
    timed.sort(key=order)
    return timed, clocks


def order(item: Timed) -> tuple[object, ...]:
    """Sort key of records: by normalised time, never by arrival."""
    record = item.record
    return (item.time_ns, record.src, record.seq, record.host, record.boot, record.pid, record.att, record.ev)


def _constant(own: list[Record]) -> tuple[int, int | None]:
    """Return mono -> normalised for one boot, and its known error; None where nothing ties it to the supervisor."""
    supervisors = [r for r in own if r.is_supervisors]
    if supervisors:
        return _of_earliest(supervisors), 0
    syncs = [
        r for r in own if r.ev == "clock_sync" and r.data.get("peer") == "sup" and _int(r, "offset_ns") is not None
    ]
    if syncs:
        best = min(syncs, key=lambda r: (_int(r, "error_ns") or 0, r.mono_ns, r.src, r.seq))
        return best.wall_ns - int(best.data["offset_ns"]) - best.mono_ns, _int(best, "error_ns") or 0
    handshakes = [parent - r.mono_ns for r in own if r.ev == "proc_start" and (parent := _int(r, "parent_wall_ns"))]
    if handshakes:
        return max(handshakes), 0
    return _of_earliest(own), None


def _of_earliest(own: list[Record]) -> int:
    first = min(own, key=lambda r: (r.mono_ns, r.src, r.seq, r.pid))
    return first.wall_ns - first.mono_ns


def _int(record: Record, name: str) -> int | None:
    value = record.data.get(name)
    return value if type(value) is int else None
