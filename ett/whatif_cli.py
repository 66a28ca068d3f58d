"""`ett whatif`: what a job would have been with a fix, from its own log."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ett.edits import Edit, parse_new_interval, parse_remove, parse_set
from ett.errors import NotFound
from ett.event_schema import COMPONENTS, NS
from ett.job_source import store_option
from ett.job_window import AccountingPolicy
from ett.lives import recorded_job
from ett.log_source import UnixSeconds, load_account, log_path
from ett.replay import Outcome, outcome
from ett.report_text import duration, points, share
from ett.shown_text import say
from ett.stops import find_stops
from ett.whatif import WhatIf, what_if, what_if_json


@click.command()
@click.argument("job", required=False)
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
@click.option("--as-of", type=UnixSeconds(), metavar="UNIX_S", help="Take what was known at that time; default: now.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=CHANGE",
    help="compilation=-80%, or initialization.restore=30s for each start; repeatable.",
)
@click.option(
    "--remove",
    "removed",
    multiple=True,
    metavar="CAUSE",
    help="reason=host_failure, failures or preemptions never happened; repeatable.",
)
@click.option("--checkpoint-interval", metavar="TEXT", help="Save every '6m' or '500 steps' instead.")
@click.option("--infer-compile", is_flag=True, help="Book the first step's excess over later ones as compilation.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, exact to the nanosecond.")
def command(
    *,
    job: str | None,
    events: Path | None,
    store: str | None,
    as_of: int | None,
    changes: tuple[str, ...],
    removed: tuple[str, ...],
    checkpoint_interval: str | None,
    infer_compile: bool,
    as_json: bool,
) -> None:
    """Say what JOB would have been with some fixes, by playing its recorded time again with them."""
    path = log_path(job, events, store)
    account = load_account(path, as_of, AccountingPolicy(infer_compile=infer_compile))
    if account is None:
        raise NotFound(f"{path} has no records yet", expected="a job that began", do="ask again when it has")
    recorded = recorded_job(account)
    edits: list[Edit] = [parse_set(text, outcome(recorded.lives).detail_ns) for text in changes]
    edits += [parse_remove(text, find_stops(account)) for text in removed]
    if checkpoint_interval is not None:
        edits.append(parse_new_interval(checkpoint_interval))
    found = what_if(recorded, edits)
    say(json.dumps(what_if_json(found)) if as_json else render(found))


def render(found: WhatIf) -> str:
    """Return before and after by component, each edit's gain, what they share, and what was assumed."""
    lines = [f"{found.job or '(no job)'}   played again with {len(found.gains)} edit(s)"]
    lines.append(f"{'':<16}{'before':>10}{'':>9}  {'after':>10}{'':>9}  {'gain':>10}")
    for component in COMPONENTS:
        lines.append(_row(component, found.before, found.after, component))
    lines.append(_row("total", found.before, found.after, None))
    lines.append(f"{'ETT':<16}{share(found.before.ett):>10}{'':>9}  {share(found.after.ett):>10}")
    lines += [f"{gain.edit}: {_gain(gain.gain_ns, gain.delta_ett)}" for gain in found.gains]
    if len(found.gains) > 1:
        lines.append(f"together: {_gain(found.gain_ns, found.bracket.lower)}; overlap {signed(found.overlap_ns)}")
        fair = ", ".join(f"{gain.edit} {signed(gain.shapley_ns)}" for gain in found.gains)
        lines.append(f"shares of the whole (Shapley): {fair}")
    if found.gains and found.bracket.lower is not None and found.bracket.upper is not None:
        lines.append(f"in all {points(found.bracket.lower)} to {points(found.bracket.upper)} of ETT")
    lines.append(advice_line(found))
    return "\n".join([*lines, *(f"taken: {text}" for text in found.assumptions)])


def advice_line(found: WhatIf) -> str:
    told = found.advice
    if told.interval_s is None or told.mtbf_s is None:
        return f"checkpoint interval: no advice, {told.refused}"
    every, save, mtbf = (duration(s * NS) for s in (told.interval_s, told.save_s, told.mtbf_s))
    return f"checkpoint interval by Young's rule: {every} (a save blocks {save}, a failure every {mtbf})"


def signed(ns: float) -> str:
    return f"-{duration(-ns)}" if ns < 0 else f"+{duration(ns)}"


def _gain(ns: int, delta: float | None) -> str:
    return signed(ns) + ("" if delta is None else f", {points(delta)}")


def _row(name: str, before: Outcome, after: Outcome, component: str | None) -> str:
    cells = []
    for found in (before, after):
        ns = found.total_ns if component is None else _of(found, component)
        cells += [ns, ns / found.total_ns if found.total_ns else None]
    gain = (cells[0] or 0) - (cells[2] or 0)
    return (
        f"{name:<16}{duration(cells[0] or 0):>10}{share(cells[1]):>9}  {duration(cells[2] or 0):>10}"
        f"{share(cells[3]):>9}  {signed(gain) if gain else '-':>10}"
    )


def _of(found: Outcome, component: str) -> int:
    return sum(ns for name, ns in found.detail_ns.items() if name.startswith(f"{component}."))
