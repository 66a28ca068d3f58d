"""`ett whatif`: what a job, or all of a team, a model, an owner or the fleet, would have been with a fix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import click

from ett.accounting import JobAccount
from ett.edits import Edit, parse_new_interval, parse_remove, parse_set
from ett.errors import EttError, NotFound, UsageError
from ett.fleet_whatif import FleetJob, GroupBy, fleet_what_if, fleet_what_if_json
from ett.job_source import accounts, store_option
from ett.job_window import AccountingPolicy
from ett.lives import RecordedJob, recorded_job
from ett.log_source import UnixSeconds, load_account, log_path
from ett.replay import outcome
from ett.roll_up import Weight
from ett.scope import Scope
from ett.shown_text import say
from ett.stops import Stop, find_stops
from ett.whatif import subsets, what_if, what_if_json
from ett.whatif_text import render, render_fleet


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixes:
    """The edits as they were typed."""

    changes: tuple[str, ...]
    removed: tuple[str, ...]
    interval: str | None

    def parsed(self, recorded: set[str] | None, stops: list[Stop] | None) -> list[Edit]:
        """Raises: UsageError: no such form, or nothing of these was ever paid or met. None: not known yet."""
        edits: list[Edit] = [parse_set(text, recorded) for text in self.changes]
        edits += [parse_remove(text, stops) for text in self.removed]
        if self.interval is not None:
            edits.append(parse_new_interval(self.interval))
        subsets(len(edits))
        return edits


@click.command()
@click.argument("job", required=False)
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
@click.option("--team", metavar="NAME", help="All jobs of this team.")
@click.option("--model", metavar="NAME", help="All jobs of this model.")
@click.option("--owner", metavar="NAME", help="All jobs of this owner.")
@click.option("--fleet", is_flag=True, help="All jobs.")
@click.option("--by", type=click.Choice(get_args(GroupBy)), help="Of many jobs, a row for each; default: team.")
@click.option("--weight", type=click.Choice(get_args(Weight)), help="Print rank-seconds (default) or seconds of jobs.")
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
    team: str | None,
    model: str | None,
    owner: str | None,
    fleet: bool,
    by: GroupBy | None,
    weight: Weight | None,
    as_of: int | None,
    changes: tuple[str, ...],
    removed: tuple[str, ...],
    checkpoint_interval: str | None,
    infer_compile: bool,
    as_json: bool,
) -> None:
    """Say what JOB, or the fleet, would have been with some fixes, by playing recorded time again with them."""
    scope = Scope(jobs=(job,) if job else (), events=events, team=team, model=model, owner=owner, fleet=fleet)
    fixes = Fixes(changes=changes, removed=removed, interval=checkpoint_interval)
    policy = AccountingPolicy(infer_compile=infer_compile)
    if scope.is_fleet:
        _many_jobs(_FleetJobs(scope=scope, store=store, policy=policy, as_of_ns=as_of), fixes, by, weight, as_json)
        return
    if by or weight:
        raise UsageError("--by and --weight are for many jobs", expected="--fleet, --team, --model or --owner")
    if team or model or owner:
        raise UsageError("a job's name and --team, --model or --owner", expected="one of them")
    path = log_path(job, events, store)
    account = load_account(path, as_of, policy)
    if account is None:
        raise NotFound(f"{path} has no records yet", expected="a job that began", do="ask again when it has")
    recorded = recorded_job(account)
    found = what_if(recorded, fixes.parsed(_paid(recorded), find_stops(account)))
    say(json.dumps(what_if_json(found)) if as_json else render(found))


@dataclass(kw_only=True, slots=True)
class _FleetJobs:
    """Reads the scope's jobs once, one at a time, and keeps what was paid and what stopped any of them."""

    scope: Scope
    store: str | None
    policy: AccountingPolicy
    as_of_ns: int | None
    warnings: list[str] = field(default_factory=list)
    paid: set[str] = field(default_factory=set)
    stops: dict[tuple[str, str, str], Stop] = field(default_factory=dict)

    def __iter__(self) -> Iterator[FleetJob]:
        for name, account in accounts(self.store, self.policy, self.as_of_ns):
            if isinstance(account, EttError):
                self.warnings.append(f"{name}: {account}")
            elif account is not None and self.scope.has(account) and account.pieces:
                yield self._job(name, account)

    def _job(self, name: str, account: JobAccount) -> FleetJob:
        recorded = recorded_job(account)
        self.paid |= _paid(recorded)
        for stop in find_stops(account):
            self.stops.setdefault((stop.kind, stop.cause_class, stop.reason), stop)
        said = account.window.submitted.data if account.window.submitted else {}
        return FleetJob(
            name=name,
            recorded=recorded,
            team=str(said.get("team", "")),
            model=str(said.get("model", "")),
            owner=str(said.get("owner", "")),
        )


def _many_jobs(jobs: _FleetJobs, fixes: Fixes, by: GroupBy | None, weight: Weight | None, as_json: bool) -> None:
    found = fleet_what_if(jobs, fixes.parsed(None, None), by or "team")
    if not found.jobs:
        raise NotFound(f"no job of {jobs.scope.title} has any time to play again", do="`ett ls` lists the jobs")
    fixes.parsed(jobs.paid, list(jobs.stops.values()))  # only now it is known what was met
    if as_json:
        say(json.dumps(fleet_what_if_json(found, jobs.scope.named(), jobs.warnings)))
        return
    say(render_fleet(found, jobs.scope.title, weight or "rank"))
    for warning in jobs.warnings:
        say(f"warning: {warning}", err=True)


def _paid(job: RecordedJob) -> set[str]:
    return set(outcome(job.lives).detail_ns)
