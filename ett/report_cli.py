"""`ett report`: says where every second of a job went."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ett.attribution import attribute, attribution_json
from ett.errors import ThresholdMissed
from ett.job_source import store_option
from ett.job_window import AccountingPolicy
from ett.log_source import UnixSeconds, load_account, log_path
from ett.recipe_cli import site_file
from ett.report import Report, build_report, empty_report, report_json
from ett.report_text import render
from ett.site import load_site

_UNIX = UnixSeconds()


@click.command()
@click.argument("job", required=False)
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
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
@click.option("--fail-under", type=click.FloatRange(0, 1), metavar="RATIO", help="Exit 9 if ETT is below, e.g. 0.90.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, exact to the nanosecond.")
def command(
    *,
    job: str | None,
    events: Path | None,
    store: str | None,
    as_of: int | None,
    window: tuple[int, int] | None,
    exclude: tuple[tuple[int, int], ...],
    infer_compile: bool,
    config: Path | None,
    fail_under: float | None,
    as_json: bool,
) -> None:
    """Say where every second of JOB went: six components that sum to its wall time."""
    path, site = log_path(job, events, store), load_site(site_file(config))
    account = load_account(path, as_of, AccountingPolicy(infer_compile=infer_compile))
    report = empty_report() if account is None else build_report(account, window, exclude)
    if as_json:
        envelope = report_json(report)
        views = None if account is None else attribute(account, site, window, exclude)
        envelope["data"] |= {"as_spent": [], "as_caused": []} if views is None else attribution_json(views)
        click.echo(json.dumps(envelope))
    else:
        click.echo(render(report))
        click.echo(f"event log: {path}")
        for warning in report.warnings:
            click.echo(f"warning: {warning}", err=True)
    if fail_under is not None:
        _check(report, fail_under)


def _check(report: Report, fail_under: float) -> None:
    if report.ett is None or report.ett < fail_under:
        measured = "undefined: the window is empty" if report.ett is None else f"{report.ett:.2%}"
        raise ThresholdMissed(f"ETT of {report.job or 'this log'} is {measured}", expected=f"at least {fail_under:.2%}")
