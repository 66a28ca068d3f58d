"""`checkpoint.interval = "auto"`: from what a save costs and how often the job fails to the time between two saves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ett.checkpoint.failure_history import FailureHistory

# Below, a failure in four hours loses under a thousandth, and nothing is left to win. Above, people wait for results.
SHORTEST_S, LONGEST_S = 30.0, 1800.0
DRIFT = 1.25  # a change of the interval by less is not worth a line
_LATEST = 0.3  # what the latest save counts of the average


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveTimes:
    """What a save takes, as of late: of training's time, until it is committed, and until it is uploaded after that."""

    stall_s: float = 0.0
    write_s: float = 0.0
    upload_s: float = 0.0
    source: Literal["assumed", "last life", "measured"] = "assumed"

    def after_stall(self, stall_s: float) -> SaveTimes:
        if self.source != "measured":  # of another process, maybe on another machine: any measurement is better
            return replace(self, stall_s=stall_s, source="measured")
        return replace(self, stall_s=_LATEST * stall_s + (1 - _LATEST) * self.stall_s)

    def after_write(self, write_s: float) -> SaveTimes:
        return replace(self, write_s=_at_least(write_s, self.write_s))

    def after_upload(self, upload_s: float) -> SaveTimes:
        return replace(self, upload_s=_at_least(upload_s, self.upload_s))

    @classmethod
    def of_stats(cls, stats: Mapping[str, Any]) -> SaveTimes:
        """Return what the restored commit took: what there is to go by until this process has saved."""
        write_s = stats.get("write_s")
        if write_s is None:
            return cls()
        return cls(stall_s=stats.get("stall_s", write_s), write_s=write_s, source="last life")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An interval, and everything that it was chosen from."""

    interval_s: float  # from the end of a save's stall to the next save
    bound: Literal["", "shortest", "longest", "write"]  # what it was held to, if it is not the formula's
    stall_s: float
    write_s: float
    upload_s: float
    source: str  # of these three
    mtbf_s: float
    num_failures: int
    up_s: float  # for how long the job was watched

    def differs(self, other: Choice | None) -> bool:
        """Return whether it is worth saying after `other`."""
        if other is None:
            return True
        return max(self.interval_s, other.interval_s) > DRIFT * min(self.interval_s, other.interval_s)

    def fields(self) -> dict[str, Any]:
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        why = {"": "", "shortest": " (the shortest)", "longest": " (the longest)", "write": " (the next waits for it)"}
        if self.source == "assumed":
            cost = "no save has been measured yet"
        else:
            of = "" if self.source == "measured" else ", as the commit that was restored says"
            upload = f" and {self.upload_s:.3g} s to upload" if self.upload_s else ""
            cost = f"a save holds training for {self.stall_s:.3g} s and takes {self.write_s:.3g} s to write{upload}{of}"
        failures = f"{self.num_failures} seen in {self.up_s / 3600:.3g} h up, with a prior of one in 4 h"
        return (
            f"a checkpoint every {self.interval_s:.3g} s{why[self.bound]}: {cost}; "
            f"a failure every {self.mtbf_s / 3600:.3g} h ({failures})"
        )


def choose(times: SaveTimes, failures: FailureHistory, now_s: float) -> Choice:
    """Return the interval that loses least, within bounds, but never less than a save takes until it is all there.

    Args: now_s: on the clock of failures.
    """
    mtbf_s = failures.mtbf_s(now_s)
    best_s = daly_s(times.stall_s, mtbf_s)
    bounded_s, floor_s = min(LONGEST_S, max(SHORTEST_S, best_s)), times.write_s + times.upload_s
    interval_s = max(bounded_s, floor_s)
    bound: Literal["", "shortest", "longest", "write"] = ""
    if interval_s != best_s:
        bound = "write" if interval_s == floor_s else "shortest" if interval_s == SHORTEST_S else "longest"
    return Choice(
        interval_s=interval_s,
        bound=bound,
        stall_s=times.stall_s,
        write_s=times.write_s,
        upload_s=times.upload_s,
        source=times.source,
        mtbf_s=mtbf_s,
        num_failures=failures.num_failures,
        up_s=failures.up_s(now_s),
    )


def daly_s(stall_s: float, mtbf_s: float) -> float:
    """Return how long to train between two saves for the least expected time to the end.

    For a stall that is short against mtbf_s it is Young's sqrt(2 stall_s mtbf_s), less the stall.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006),
    equation 37. tests/checkpoint/test_auto_interval.py compares it with the minimum of his model of the whole run.
    """
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    x = stall_s / (2 * mtbf_s)
    return math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - stall_s


def _at_least(latest_s: float, before_s: float) -> float:
    """Return what to leave room for: a longer one is believed at once, a shorter one by and by."""
    return max(latest_s, _LATEST * latest_s + (1 - _LATEST) * before_s)
