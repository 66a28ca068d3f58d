"""What torch compiled again after the first step (records `recompile`): how often, for how long, for which guard."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ett.accounting import JobAccount
from ett.event_schema import is_number
from ett.interval_set import Interval

_SHOWN = 10  # guards of a report's JSON


class FailedGuard(NamedTuple):
    """Both texts are "" where torch did not say."""

    guard: str
    code: str
    times: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompilations:
    """Of all ranks; `longest_s` is what the rank with the most seconds spent on them."""

    count: int = 0
    num_ranks: int = 0
    longest_s: float = 0.0
    guards: tuple[FailedGuard, ...] = ()  # by count, most first


def recompilations(account: JobAccount, kept: Sequence[Interval]) -> Recompilations:
    """Return what lies in these intervals of normalised time."""
    counts: Counter[tuple[str, str]] = Counter()
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    by_rank: defaultdict[int | None, float] = defaultdict(float)
    for timeline in account.timelines:
        for time_ns, record in timeline.attempt.records:
            if record.ev == "recompile" and any(begin <= time_ns < end for begin, end in kept):
                spent_s = _seconds(record.data.get("seconds"))
                cause = str(record.data.get("guard", "")), str(record.data.get("code", ""))
                counts[cause] += 1
                seconds[cause] += spent_s
                by_rank[record.rank] += spent_s
    return Recompilations(
        count=counts.total(),
        num_ranks=len(by_rank),
        longest_s=max(by_rank.values(), default=0.0),
        guards=tuple(FailedGuard(*cause, number, seconds[cause]) for cause, number in counts.most_common()),
    )


def recompilations_json(found: Recompilations) -> dict[str, Any]:
    return {
        "count": found.count,
        "ranks": found.num_ranks,
        "longest_s": round(found.longest_s, 6),
        "guards": [guard._asdict() | {"seconds": round(guard.seconds, 6)} for guard in found.guards[:_SHOWN]],
    }


def _seconds(value: object) -> float:
    """Return 0.0 for what is no duration: the log was written by somebody."""
    return float(value) if isinstance(value, int | float) and is_number(value) and value > 0 else 0.0
