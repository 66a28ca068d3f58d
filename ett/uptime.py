"""When a job was up, and how each stretch of that ended: from this, how often it fails.

Reads the records of supervisors, and of the ranks' files whether a stretch that failed had trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ett.event_schema import NS, Record
from ett.job_history import has_trained, last_sign_of_life, read_supervisors


@dataclass(frozen=True, slots=True)
class Stretch:
    """From a start of a job's processes to their end, in seconds of one clock, the same for all that are compared."""

    began_s: float
    ended_s: float
    has_failed: bool  # in training; what dies before its first step has lost nothing that a checkpoint would keep


def read_stretches(events: Path) -> tuple[Stretch, ...]:
    """Return the stretches that have ended, in order, in Unix seconds; none where there is no log.

    Raises: CorruptState: a record of a newer schema version. OSError: a file cannot be read.
    """
    return build_stretches(
        read_supervisors(events), lambda att: has_trained(events, att), lambda att: last_sign_of_life(events, att)
    )


def build_stretches(
    supervisors: Iterable[Record], trained: Callable[[int], bool], last_sign_s: Callable[[int], float | None]
) -> tuple[Stretch, ...]:
    """Return the stretches of the supervisors' records, in order of time.

    A planned stop (completed, suspended) or one with notice (preempted) is no failure: the program can save before it.

    Args: trained: whether an attempt completed a step. last_sign_s: when an attempt whose end nobody saw wrote last.
    """
    stretches: list[Stretch] = []
    began_s: dict[int, float] = {}
    fault_s: dict[int, float] = {}
    for record in supervisors:
        now_s, att = record.wall_ns / NS, record.att
        if record.ev == "attempt_started":
            began_s.setdefault(att, now_s)
        elif record.ev == "fault":
            fault_s.setdefault(att, now_s)
        elif record.ev == "restart_decision" and record.data.get("scope") == "inprocess" and att in began_s:
            stretches.append(Stretch(began_s[att], fault_s.pop(att, now_s), trained(att)))
            began_s[att] = now_s
        elif record.ev == "attempt_ended" and att in began_s:
            begin_s = began_s.pop(att)
            # Written when somebody came to look, maybe a day later.
            sign_s = last_sign_s(att) if record.data.get("inferred") else None
            end_s = now_s if sign_s is None else min(now_s, max(begin_s, sign_s))
            stretches.append(Stretch(begin_s, end_s, record.data.get("reason") == "failed" and trained(att)))
    return tuple(stretches)
