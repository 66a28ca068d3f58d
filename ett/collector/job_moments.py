"""What happens once in a job and is then a point of a histogram: an attempt's end, a recovery, a save, a restore."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from ett import metric_names as names
from ett.accounting import JobAccount
from ett.attempt_timeline import AttemptTimeline
from ett.event_schema import NS, is_number
from ett.interruptions import Interruption
from ett.otel.checkpoint_saves import checkpoint_saves
from ett.step_credit import Cursor

_WINDOW_STEPS = 100
_OUTCOMES = frozenset({"completed", "failed", "preempted", "suspended"})


class Moment(NamedTuple):
    """A point of a histogram in billionths of its unit, or a count of a counter; labels but cluster, team and model."""

    metric: str
    labels: tuple[str, ...]
    value: int


def moments_of(account: JobAccount, until_ns: int) -> dict[str, list[Moment]]:
    """Return what is known to have happened before `until_ns`, by kind and attempt; a longer log makes lists longer."""
    found: dict[str, list[Moment]] = {}
    for timeline, spent in zip(account.timelines, _spent_in_attempts(account), strict=True):
        number, attempt = timeline.attempt.number, timeline.attempt
        if attempt.start_ns is not None and not attempt.is_alive and attempt.cut_ns <= until_ns:
            outcome = attempt.reason if attempt.reason in _OUTCOMES else "lost"
            found[f"end {number}"] = [Moment(names.ATTEMPTS_FINISHED.prometheus, (outcome,), 1)]
            idle_s = None if attempt.ended is None else attempt.ended.data.get("idle_s")
            if isinstance(idle_s, int | float) and is_number(idle_s) and idle_s >= 0:
                found[f"hang {number}"] = [Moment(names.HANG_DETECTION_DURATION.prometheus, (), round(idle_s * NS))]
            for component in names.LOSSES:
                moment = Moment(names.ATTEMPT_COMPONENT_DURATION.prometheus, (component,), spent[component])
                found[f"{component} {number}"] = [moment]
        for kind, moment in _saves(timeline, until_ns):
            found.setdefault(f"{kind} {number}", []).append(moment)
        if ratios := _straggler_ratios(timeline, until_ns):
            found[f"stragglers {number}"] = ratios
        if spent[_RESTORE]:
            source = _source_of_restore(account, timeline)
            moment = Moment(names.CHECKPOINT_RESTORE_DURATION.prometheus, (source,), spent[_RESTORE])
            if _has_stepped(timeline, until_ns):
                found[f"restore {number}"] = [moment]
    for number, moment in _recoveries(account, until_ns):
        found.setdefault(f"recovery {number}", []).append(moment)
    return found


_RESTORE = "restore"


def _spent_in_attempts(account: JobAccount) -> list[Counter[str]]:
    """Nanoseconds by component, and of restoring, of each attempt with the wait before it."""
    ends = [timeline.attempt.cut_ns for timeline in account.timelines]
    spent: list[Counter[str]] = [Counter() for _ in ends]
    for piece in account.pieces:
        index = bisect_right(ends, piece.begin_ns)
        if index < len(spent):
            spent[index][piece.component] += piece.end_ns - piece.begin_ns
            if (piece.component, piece.reason) == ("initialization", "restore"):
                spent[index][_RESTORE] += piece.end_ns - piece.begin_ns
    return spent


def _has_stepped(timeline: AttemptTimeline, until_ns: int) -> bool:
    """True where the start-up is over: restoring takes no more time."""
    return not timeline.attempt.is_alive or any(s.is_complete and s.stop_ns <= until_ns for s in timeline.steps)


def _saves(timeline: AttemptTimeline, until_ns: int) -> Iterator[tuple[str, Moment]]:
    metric = names.CHECKPOINT_SAVE_DURATION.prometheus
    for save in checkpoint_saves(timeline.records(), until_ns):
        if save.result != "committed":
            continue
        yield "saved", Moment(metric, ("background",), save.end_ns - save.start_ns)
        if save.waited_until_ns is not None:
            yield "stalled", Moment(metric, ("blocking",), save.blocking_ns)


def _straggler_ratios(timeline: AttemptTimeline, until_ns: int) -> list[Moment]:
    """One for each 100 steps that several ranks have done: a step whose ranks wait for each other tells the least."""
    by_number: dict[Cursor, list[int]] = {}
    for step in timeline.steps:
        if step.is_complete and step.stop_ns <= until_ns:
            by_number.setdefault(step.number, []).append(step.stop_ns - step.begin_ns)
    ratios = [
        Fraction(max(times)) / Fraction(middle)
        for _, times in sorted(by_number.items())
        if len(times) > 1 and (middle := median(times)) > 0
    ]
    whole = len(ratios) // _WINDOW_STEPS
    windows = (ratios[i * _WINDOW_STEPS : (i + 1) * _WINDOW_STEPS] for i in range(whole))
    return [Moment(names.STRAGGLER_RATIO.prometheus, (), round(median(window) * NS)) for window in windows]


def _source_of_restore(account: JobAccount, timeline: AttemptTimeline) -> str:
    """The tier of the commit that was restored, as far as the log knows it."""
    wanted = {r.data.get("id") for _, r in timeline.attempt.records if r.ev == "restore"}
    tiers = {
        r.data.get("tier")
        for t in account.timelines
        for _, r in t.attempt.records
        if r.ev == "ckpt_commit" and r.data.get("id") in wanted
    }
    return "remote" if tiers == {"remote"} else "local"


def _recoveries(account: JobAccount, until_ns: int) -> Iterator[tuple[int, Moment]]:
    """From each interruption to the next new data: how long the job was away."""
    learned = sorted(p.begin_ns for p in account.pieces if p.component == "effective" or p.reason == "unsaved_tail")
    for stop in account.interruptions:
        if stop.kind == "resize":
            continue
        number = _attempt_at(account.timelines, stop)
        following = bisect_left(learned, stop.time_ns)
        if following < len(learned) and learned[following] < until_ns:
            tier = "in_process" if stop.kind == "inprocess" else _tier(account.timelines, number)
            yield number, Moment(names.RECOVERY_DURATION.prometheus, (tier,), learned[following] - stop.time_ns)


def _attempt_at(timelines: Sequence[AttemptTimeline], stop: Interruption) -> int:
    numbers = [t.attempt.number for t in timelines if (t.attempt.start_ns or 0) <= stop.time_ns <= t.attempt.end_ns]
    return numbers[0] if numbers else 0


def _tier(timelines: Sequence[AttemptTimeline], number: int) -> str:
    """in_job: the same supervisor started the next attempt; reschedule: another one did."""
    starters = [
        (t.attempt.number, record.host, record.boot, record.pid)
        for t in timelines
        for _, record in t.attempt.records
        if record.ev == "attempt_started"
    ]
    own = next((s[1:] for s in starters if s[0] == number), None)
    after = next((s[1:] for s in starters if s[0] > number), None)
    return "in_job" if own is not None and own == after else "reschedule"
