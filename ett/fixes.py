"""The "if you …" lines of a report: a few fixes that fit the job's own losses, each played on its recorded time."""

from __future__ import annotations

from fractions import Fraction

from ett.accounting import JobAccount
from ett.edits import Edit, NewInterval, Removal, Scale
from ett.event_schema import NS
from ett.lives import RecordedJob, recorded_job
from ett.report_text import duration, points
from ett.whatif import WhatIf, advice, what_if

WORTH_A_LINE = 0.001  # of ETT
# A report must answer at once: its replays of a log of this many pieces take about a second.
MOST_PIECES = 50_000
_SHOWN = 3


def fix_line(account: JobAccount) -> str:
    """Return the line, "" where no fix is worth one or the log is too long to be played again within a report."""
    if not account.timelines or len(account.pieces) > MOST_PIECES:
        return ""
    job = recorded_job(account)
    singles = [what_if(job, [edit]) for edit in _candidates(job)]
    gains = [(found.gains[0].delta_ett or 0.0, index) for index, found in enumerate(singles)]
    best = [index for gain, index in sorted(gains, key=lambda g: -g[0]) if gain >= WORTH_A_LINE][:_SHOWN]
    if not best:
        return ""
    edits = [_candidates(job)[index] for index in sorted(best)]
    together = what_if(job, edits)
    told = [f"{gain.edit}: {points(gain.delta_ett or 0.0)}" for gain in together.gains]
    if len(edits) > 1:
        overlap = sum(gain.delta_ett or 0.0 for gain in together.gains) - _delta(together)
        which = "both" if len(edits) == 2 else "all"
        shared = f" ({overlap * 100:.1f} overlap)" if overlap >= WORTH_A_LINE else ""
        told.append(f"{which}: {points(_delta(together))}{shared}")
    return "if you … " + " · ".join(told)


def _candidates(job: RecordedJob) -> list[Edit]:
    found: list[Edit] = []
    names = {f"{item.component}.{item.reason}" for life in job.lives for item in life.items() if item.ns}
    stops = [life.stop for life in job.lives if life.stop is not None]
    if any(name.startswith("compilation.") for name in names):
        cached = Fraction(1, 5)
        found.append(Scale(text="compile 80 % less", component="compilation", reason=None, ratio=cached))
    if any(name.startswith("initialization.") for name in names):
        found.append(
            Scale(text="start up in half the time", component="initialization", reason=None, ratio=Fraction(1, 2))
        )
    if any(stop.is_failure for stop in stops):
        found.append(Removal(text="had no failure", cause="failures"))
    told = advice(job, what_if(job, []).before)
    if told.interval_s is not None:
        ns = round(told.interval_s * NS)
        found.append(NewInterval(text=f"save every {duration(ns)}", kind="time", ns=ns))
    return found


def _delta(found: WhatIf) -> float:
    return 0.0 if found.bracket.lower is None else (found.after.ett or 0.0) - (found.before.ett or 0.0)
