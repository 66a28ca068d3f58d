"""`ett report`: says where every second of a job went, or of all jobs of a team, a model, an owner, or the fleet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from ett.accounting import JobAccount
from ett.ago import Ago
from ett.attribution import attribute, attribution_json
from ett.errors import EttError, NotFound, ThresholdMissed, UsageError
from ett.event_schema import NS
from ett.job_source import accounts, store_option
from ett.job_window import AccountingPolicy
from ett.log_source import UnixSeconds, log_path
from ett.recipe_cli import site_file
from ett.report import build_report, empty_report, report_json
from ett.report_text import render
from ett.roll_up import By, JobPart, RollUp, View, Weight, job_part, roll_up, roll_up_json
from ett.scope import Scope
from ett.shown_text import say, shown
from ett.site import Site, load_site

if TYPE_CHECKING:
    from ett.report_document import Document

_UNIX = UnixSeconds()


class Ratio(click.FloatRange):
    """A number from 0 to 1. The range alone lets NaN through, below which nothing is: a gate that never closes."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        ratio: float = super().convert(value, param, ctx)
        if isnan(ratio):
            self.fail(f"{value!r} is not a number", param, ctx)
        return ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """At most one of the three; none: text."""

    as_json: bool
    as_markdown: bool
    html: Path | None

    def __post_init__(self) -> None:
        if self.as_json + self.as_markdown + (self.html is not None) > 1:
            raise UsageError("--json, --md and --html are three outputs", expected="one of them")

    @property
    def is_text(self) -> bool:
        return not (self.as_json or self.as_markdown or self.html)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What holds for every job of a report; `window` and `exclude` in normalised nanoseconds."""

    store: str | None
    site: Site
    policy: AccountingPolicy
    as_of_ns: int | None
    window: tuple[int, int] | None
    exclude: tuple[tuple[int, int], ...]
    output: Output

    def __post_init__(self) -> None:
        for option, spans in (("--window", (self.window,) if self.window else ()), ("--exclude", self.exclude)):
            for begin_ns, end_ns in spans:
                if begin_ns > end_ns:
                    raise UsageError(
                        f"{option} ends at {end_ns / NS:.15g}, before {begin_ns / NS:.15g}",
                        expected=f"{option} A B with A <= B, in Unix seconds",
                    )


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
@click.option("--team", metavar="NAME", help="Sum all jobs of this team.")
@click.option("--model", metavar="NAME", help="Sum all jobs of this model.")
@click.option("--owner", metavar="NAME", help="Sum all jobs of this owner.")
@click.option("--fleet", is_flag=True, help="Sum all jobs.")
@click.option("--since", type=Ago(), metavar="AGO", help="Count only the last 7d, 12h, 90m, …")
@click.option("--by", type=click.Choice(get_args(By)), help="What a row of the sum is; default: component.")
@click.option("--weight", type=click.Choice(get_args(Weight)), help="Sum rank-seconds (default) or seconds of jobs.")
@click.option("--view", type=click.Choice(get_args(View)), help="As spent (default), or charged to what caused it.")
@click.option("--as-of", type=_UNIX, metavar="UNIX_S", help="Report what was known at that time; default: now.")
@click.option("--window", type=(_UNIX, _UNIX), metavar="A B", help="Count only the time from A to B (Unix seconds).")
@click.option(
    "--exclude", type=(_UNIX, _UNIX), multiple=True, metavar="A B", help="Leave the time from A to B out; repeatable."
)
@click.option("--infer-compile", is_flag=True, help="Book the first step's excess over later ones as compilation.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The site file with owners and budgets; else $ETT_CONFIG or $ETT_HOME/ett.toml.",
)
@click.option("--startup", is_flag=True, help="Show how JOB started: what took how long, what waited for what.")
@click.option("--fail-under", type=Ratio(), metavar="RATIO", help="Exit 9 if ETT is below, e.g. 0.90.")
@click.option("--md", "as_markdown", is_flag=True, help="Print GitHub Markdown.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write one HTML file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, exact to the nanosecond.")
def command(
    *,
    jobs: tuple[str, ...],
    events: Path | None,
    store: str | None,
    team: str | None,
    model: str | None,
    owner: str | None,
    fleet: bool,
    since: float | None,
    by: By | None,
    weight: Weight | None,
    view: View | None,
    as_of: int | None,
    window: tuple[int, int] | None,
    exclude: tuple[tuple[int, int], ...],
    infer_compile: bool,
    config: Path | None,
    startup: bool,
    fail_under: float | None,
    as_markdown: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Say where every second of JOB went: six components that sum to its wall time; or of many jobs together."""
    if startup:
        _startup(jobs, events, store, as_json=as_json)
        return
    if since is not None:
        if window is not None:
            raise UsageError("--since and --window both say which time counts", expected="one of them")
        end_ns = time.time_ns() if as_of is None else as_of
        window = (min(round(since * NS), end_ns), end_ns)
    scope = Scope(jobs=jobs, events=events, team=team, model=model, owner=owner, fleet=fleet)
    asked = Asked(
        store=store,
        site=load_site(site_file(config)),
        policy=AccountingPolicy(infer_compile=infer_compile),
        as_of_ns=as_of,
        window=window,
        exclude=exclude,
        output=Output(as_json=as_json, as_markdown=as_markdown, html=html),
    )
    if scope.is_one_job and not (by or weight or view):
        _check(*_one_job(scope, asked), fail_under)
        return
    if exclude:
        raise UsageError("--exclude is for a report on one job", expected="--window or --since")
    parts, warnings = _parts(scope, asked, by_attempt=by == "attempt")
    found = roll_up(parts, by=by or "component", weight=weight or "rank", view=view or "as-spent")
    _many_jobs(found, parts, scope, asked, warnings)
    _check(found.ett, scope.title, fail_under)


def _one_job(scope: Scope, asked: Asked) -> tuple[float | None, str]:
    """Print the report and return its ETT and the job's name."""
    log = log_path(scope.jobs[0] if scope.jobs else None, scope.events, asked.store)
    account = log.account(asked.as_of_ns, asked.policy)
    site, output = asked.site, asked.output
    report = empty_report() if account is None else build_report(account, asked.window, asked.exclude)
    views = None if account is None else attribute(account, site, asked.window, asked.exclude)
    result = report.ett, report.job or "this log"
    if output.as_json:
        envelope = report_json(report)
        envelope["data"] |= {"as_spent": [], "as_caused": []} if views is None else attribution_json(views)
        say(json.dumps(envelope))
        return result
    from ett.fixes import fix_line
    from ett.report_document import beside_components, caused_lines, job_document

    # A fix is played on the whole job: beside the figures of a part of it, its gain would be that of another time.
    is_whole = asked.window is None and not asked.exclude
    fixes = fix_line(account) if account is not None and is_whole else ""
    if views is not None and not output.is_text:
        _write(job_document(report, views, site, fixes), output)
        return result
    from ett.report_terminal import show_text

    told = [*caused_lines(views), *([fixes] if fixes else [])] if views is not None else []
    beside = None if views is None else beside_components(report, views, site)
    show_text(render(report, beside, told, site.budget("ett")))
    say(f"event log: {log}")
    for warning in report.warnings:
        say(f"warning: {warning}", err=True)
    return result


def _startup(jobs: tuple[str, ...], events: Path | None, store: str | None, *, as_json: bool) -> None:
    """Print how a job started. Raises: UsageError: other options that would be ignored. NotFound: it never began to."""
    from ett.startup_cli import check_startup_options, starts_of
    from ett.startup_report import startup_json, startup_text

    usage = "ett report JOB --startup [--json]"
    check_startup_options(("jobs", "events", "store", "as_json"), usage)
    if len(jobs) > 1:
        raise UsageError("several jobs with --startup", expected=usage)
    starts = starts_of(log_path(jobs[0] if jobs else None, events, store))
    say(json.dumps(startup_json(starts)) if as_json else startup_text(starts))


def _parts(scope: Scope, asked: Asked, *, by_attempt: bool) -> tuple[list[JobPart], list[str]]:
    """The jobs of the scope that have any time in the window, and a warning for each that cannot be read."""
    found: list[JobPart] = []
    warnings: list[str] = []
    for name, account in _accounts(scope, asked):
        if isinstance(account, EttError):
            warnings.append(f"{name}: {account}")
        elif account is not None and scope.has(account):
            part = job_part(account, asked.site, asked.window, by_attempt=by_attempt)
            if part.views.total_ns:
                found.append(part)
    if not found:
        raise NotFound(f"no job of {scope.title} has any time to report", do="`ett ls` lists the jobs")
    return found, warnings


def _accounts(scope: Scope, asked: Asked) -> Iterator[tuple[str, JobAccount | EttError | None]]:
    if scope.is_fleet:
        yield from accounts(asked.store, asked.policy, asked.as_of_ns)
        return
    # By log, not by what was typed: a job that is named twice, once by its prefix, counts once.
    logs = dict.fromkeys(log_path(name, scope.events, asked.store) for name in scope.jobs or (None,))
    for log in logs:
        yield log.job, log.account(asked.as_of_ns, asked.policy)


def _many_jobs(found: RollUp, parts: Sequence[JobPart], scope: Scope, asked: Asked, warnings: list[str]) -> None:
    if asked.output.as_json:
        envelope = roll_up_json(found, {**scope.named(), "jobs": [part.job for part in parts]})
        say(json.dumps(envelope | {"warnings": warnings}))
        return
    from ett.report_document import Bar, roll_up_document

    bars = [Bar(label=part.job, ns=part.report.ns) for part in parts]
    title = scope.title if scope.is_fleet or len(parts) > 1 else parts[0].job
    _write(roll_up_document(found, title, asked.site, bars, warnings), asked.output)


def _write(document: Document, output: Output) -> None:
    if output.as_markdown:
        from ett.report_markdown import markdown

        say(markdown(document))
    elif output.html is not None:
        from ett.report_html import html
        from ett.store.export_cli import written

        with written(output.html) as file:
            file.write(shown(html(document)).encode())
        say(f"{output.html}: {document.title}")
    else:
        from ett.report_terminal import show

        show(document)


def _check(ett: float | None, name: str, fail_under: float | None) -> None:
    if fail_under is not None and (ett is None or ett < fail_under):
        measured = "undefined: the window is empty" if ett is None else f"{ett:.2%}"
        raise ThresholdMissed(f"ETT of {name} is {measured}", expected=f"at least {fail_under:.2%}")
