"""What `ett whatif` prints: before and after by component, each fix's gain, what they share, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ett.event_schema import COMPONENTS, NS, Component
from ett.fleet_whatif import FleetGain, FleetRow, FleetWhatIf, Sides, ett_of
from ett.report_text import count, duration, points, share
from ett.roll_up import Weight
from ett.shown_text import one_line
from ett.whatif import Bracket, Gain, WhatIf

_MOST_ROWS = 30


def render(found: WhatIf) -> str:
    """Return one job's answer as text."""
    answer = _Answer(
        sides=Sides(before=found.before.ns, after=found.after.ns),
        gains=found.gains,
        overlap_ns=found.overlap_ns,
        bracket=found.bracket,
    )
    lines = [f"{found.job or '(no job)'}   played again with {count(len(found.gains), 'edit')}", *_lines(answer)]
    lines.append(advice_line(found))
    return "\n".join([*lines, *(f"taken: {text}" for text in found.assumptions)])


def render_fleet(found: FleetWhatIf, title: str, weight: Weight) -> str:
    """Return the answer of many jobs as text, by one weight; a row for each team, model or owner."""
    answer = found.weights[weight]
    jobs, edits = count(len(found.jobs), "job"), count(len(found.edits), "edit")
    by_what = "rank-seconds" if weight == "rank" else "seconds"
    lines = [f"{title}   {jobs} played again with {edits}   weighted by {by_what}"]
    lines += _lines(
        _Answer(sides=answer.sides, gains=answer.gains, overlap_ns=answer.overlap_ns, bracket=answer.bracket)
    )
    lines += _row_lines(found, weight)
    return "\n".join([*lines, *(f"taken: {text}" for text in found.assumptions)])


def advice_line(found: WhatIf) -> str:
    told = found.advice
    if told.interval_s is None or told.mtbf_s is None:
        return f"checkpoint interval: no advice, {told.refused}"
    every, save, mtbf = (duration(s * NS) for s in (told.interval_s, told.save_s, told.mtbf_s))
    return f"checkpoint interval by Young's rule: {every} (a save blocks {save}, a failure every {mtbf})"


def signed(ns: float) -> str:
    return f"-{duration(-ns)}" if ns < 0 else f"+{duration(ns)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    sides: Sides
    gains: Sequence[Gain | FleetGain]
    overlap_ns: int
    bracket: Bracket


def _lines(found: _Answer) -> Iterator[str]:
    sides = found.sides
    yield f"{'':<16}{'before':>10}{'':>9}  {'after':>10}{'':>9}  {'gain':>10}"
    for component in COMPONENTS:
        yield _row(component, sides, component)
    yield _row("total", sides, None)
    yield f"{'ETT':<16}{share(ett_of(sides.before)):>10}{'':>9}  {share(ett_of(sides.after)):>10}"
    for gain in found.gains:
        yield f"{gain.edit}: {_gain(gain.gain_ns, gain.delta_ett)}"
    if len(found.gains) > 1:
        yield f"together: {_gain(sides.gain_ns, sides.delta_ett)}; overlap {signed(found.overlap_ns)}"
        fair = ", ".join(f"{gain.edit} {signed(gain.shapley_ns)}" for gain in found.gains)
        yield f"shares of the whole (Shapley): {fair}"
    if found.gains and found.bracket.lower is not None and found.bracket.upper is not None:
        yield f"in all {points(found.bracket.lower)} to {points(found.bracket.upper)} of ETT"


def _row_lines(found: FleetWhatIf, weight: Weight) -> Iterator[str]:
    rows = found.rows[:_MOST_ROWS]
    names = [one_line(row.name) for row in rows]
    width = max([16, *map(len, names)])
    yield f"{'by ' + found.by:<{width}}{'jobs':>8}{'before':>12}{'ETT':>9}{'after':>12}{'ETT':>9}{'gain':>12}"
    for name, row in zip(names, rows, strict=True):
        yield f"{name:<{width}}{_fleet_row(row, weight)}"
    if len(found.rows) > len(rows):
        yield f"and {len(found.rows) - len(rows)} more, which gain less; --json has all"


def _fleet_row(row: FleetRow, weight: Weight) -> str:
    sides = row.weights[weight]
    cells = [f"{row.num_jobs:>8}"]
    for ns in (sides.before, sides.after):
        cells.append(f"{duration(sum(ns.values())):>12}{share(ett_of(ns)):>9}")
    return "".join(cells) + f"{signed(sides.gain_ns) if sides.gain_ns else '-':>12}"


def _gain(ns: int, delta: float | None) -> str:
    return signed(ns) + ("" if delta is None else f", {points(delta)}")


def _row(name: str, sides: Sides, component: Component | None) -> str:
    cells = [f"{name:<16}"]
    values = []
    for ns in (sides.before, sides.after):
        total = sum(ns.values())
        values.append(total if component is None else ns[component])
        cells.append(f"{duration(values[-1]):>10}{share(values[-1] / total if total else None):>9}  ")
    gain = values[0] - values[1]
    return "".join(cells) + f"{signed(gain) if gain else '-':>10}"
