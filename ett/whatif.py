"""What a fix would have given: replays of a job with each edit, with all of them, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import combinations
from math import comb, sqrt
from typing import Any

from ett.edits import Edit
from ett.errors import UsageError
from ett.event_schema import NS
from ett.interval_replay import SaveCost
from ett.lives import RecordedJob
from ett.replay import Outcome, replay

MAX_EDITS = 6  # 2 ** 6 replays
FEWEST_FAILURES = 3
Subset = tuple[int, ...]  # of edits, by their places


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """`gain_ns`: the edit alone; `shapley_ns`: its fair share of all edits together, over every order of them."""

    edit: str
    gain_ns: int
    delta_ett: float | None
    shapley_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket:
    """Gained ETT, from 0 to 1. Lower: failures strike where they did. Upper: a job that is done sooner meets fewer."""

    lower: float | None
    upper: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """Young's interval, sqrt(2 * blocking time of a save * mean time between failures); or why it is `refused`."""

    interval_s: float | None
    save_s: float
    mtbf_s: float | None
    refused: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """`overlap_ns`: the single gains less the gain of all edits together; negative where they help each other."""

    job: str
    before: Outcome
    after: Outcome
    gains: tuple[Gain, ...]
    overlap_ns: int
    bracket: Bracket
    advice: Advice
    assumptions: tuple[str, ...]

    @property
    def gain_ns(self) -> int:
        return self.before.total_ns - self.after.total_ns


def what_if(job: RecordedJob, edits: Sequence[Edit]) -> WhatIf:
    """Play the job again for every subset of the edits.

    Raises: UsageError: more than 6 edits.
    """
    every = subsets(len(edits))
    outcomes = {subset: played(job, edits, subset) for subset in every}
    before, after = outcomes[()], outcomes[every[-1]]
    saved = {subset: before.total_ns - found.total_ns for subset, found in outcomes.items()}
    gains = tuple(
        Gain(
            edit=edit.text,
            gain_ns=saved[i,],
            delta_ett=_difference(outcomes[i,].ett, before.ett),
            shapley_ns=float(shapley_share(saved, i, len(edits))),
        )
        for i, edit in enumerate(edits)
    )
    return WhatIf(
        job=job.job,
        before=before,
        after=after,
        gains=gains,
        overlap_ns=sum(gain.gain_ns for gain in gains) - saved[every[-1]],
        bracket=_bracket(before, after),
        advice=advice(job, before),
        assumptions=_assumptions(job, edits),
    )


def what_if_json(found: WhatIf) -> dict[str, Any]:
    """Return the `ett.whatif/v1` object."""
    data = {
        "job": found.job,
        "before": _outcome_json(found.before),
        "after": _outcome_json(found.after),
        "gain_ns": found.gain_ns,
        "delta_ett": _difference(found.after.ett, found.before.ett),
        "bracket": asdict(found.bracket),
        "edits": [asdict(gain) for gain in found.gains],
        "overlap_ns": found.overlap_ns,
        "interval_advice": asdict(found.advice),
        "assumptions": list(found.assumptions),
    }
    return {"schema": "ett.whatif/v1", "data": data, "warnings": []}


def advice(job: RecordedJob, recorded: Outcome) -> Advice:
    """Young's interval for this job's own failures and saves; refused where they are too few to tell."""
    saves = SaveCost.of(job)
    mtbf_s = recorded.total_ns / NS / recorded.num_failures if recorded.num_failures else None
    interval_s, refused = None, ""
    if recorded.num_failures < FEWEST_FAILURES or mtbf_s is None:
        refused = f"not enough failures: {recorded.num_failures} of {FEWEST_FAILURES}"
    elif not saves.blocking_ns:
        refused = "no save that blocked training was recorded"
    else:
        interval_s = sqrt(2 * saves.blocking_ns / NS * mtbf_s)
    return Advice(interval_s=interval_s, save_s=saves.blocking_ns / NS, mtbf_s=mtbf_s, refused=refused)


def subsets(num_edits: int) -> list[Subset]:
    """Return every subset of the edits, by their places: none first, all last.

    Raises: UsageError: more than 6 edits.
    """
    if num_edits > MAX_EDITS:
        raise UsageError(f"{num_edits} edits", expected=f"at most {MAX_EDITS}: every subset of them is replayed")
    return [subset for size in range(num_edits + 1) for subset in combinations(range(num_edits), size)]


def played(job: RecordedJob, edits: Sequence[Edit], subset: Subset) -> Outcome:
    return replay(job, [edits[i] for i in subset])


def shapley_share(saved: dict[Subset, int], index: int, count: int) -> Fraction:
    """The edit's gain on top of each subset of the others, weighted by how many orders of all edits begin so."""
    total = Fraction(0)
    for subset, gain in saved.items():
        if index not in subset:
            with_it = tuple(sorted((*subset, index)))
            total += Fraction(saved[with_it] - gain, count * comb(count - 1, len(subset)))
    return total


def total_ns_at_best(before: Outcome, after: Outcome) -> float:
    """Section 4.5: the edited total where the gain is G over 1 - failures per second * their mean cost.

    The failures are those that remain, at what they cost then: a fix of all of them leaves nothing to meet less often.
    """
    if not after.total_ns:
        return 0.0
    exposure = after.failure_ns / after.total_ns
    gain_ns = (before.total_ns - after.total_ns) / (1 - exposure) if exposure < 1 else 0.0
    return max(before.total_ns - gain_ns, after.effective_ns)


def _bracket(before: Outcome, after: Outcome) -> Bracket:
    """Gained ETT, from E / (W - G) - E / W to the same with the total at best."""
    lower = _difference(after.ett, before.ett)
    if lower is None or before.ett is None or not after.total_ns:
        return Bracket(lower=None, upper=None)
    total_ns = total_ns_at_best(before, after)
    upper = after.effective_ns / total_ns - before.ett if total_ns else lower
    return Bracket(lower=min(lower, upper), upper=max(lower, upper))


def assumed() -> str:
    return "failures keep their place in the work; the merged timeline of all ranks is what is played again"


def _assumptions(job: RecordedJob, edits: Sequence[Edit]) -> tuple[str, ...]:
    texts = [assumed()]
    if any(edit.text.startswith("checkpoint interval") for edit in edits):
        saves = SaveCost.of(job)
        if saves.num_recorded:
            seen = f"the mean of {saves.num_recorded} recorded" if saves.num_recorded > 1 else "the one recorded"
            texts.append(f"a save blocks training for {saves.blocking_ns / NS:.3g} s, {seen}")
        else:
            texts.append("no save that blocked training was recorded: a save is taken to cost nothing")
        if job.commit_lag_ns is None:
            texts.append("no commit was recorded: a save is taken to be whole when it ends")
    return tuple(texts)


def _outcome_json(found: Outcome) -> dict[str, Any]:
    return {"total_ns": found.total_ns, "ns": found.ns, "detail_ns": found.detail_ns, "ett": found.ett}


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
