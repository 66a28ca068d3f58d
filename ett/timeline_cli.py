"""`ett timeline`: a job's attempts on one time axis, as text or as an SVG."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from ett.accounting import JobAccount
from ett.column_pieces import Reason
from ett.event_schema import NS
from ett.interval_set import Interval
from ett.job_source import store_option
from ett.job_window import AccountingPolicy
from ett.log_source import UnixSeconds, load_account, log_path
from ett.piece_sums import measure_each
from ett.report_text import GLYPHS, duration
from ett.shown_text import say

_CELLS = 96


@click.command()
@click.argument("job", required=False)
@click.option("--events", type=click.Path(path_type=Path), metavar="DIR", help="A folder with an event log, not a job.")
@store_option
@click.option("--as-of", type=UnixSeconds(), metavar="UNIX_S", help="Draw what was known at that time; default: now.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a picture instead.")
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a trace for Perfetto; .gz."
)
@click.option(
    "--otlp",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="Send the job's spans to an OTLP/HTTP receiver; without a URL to $OTEL_EXPORTER_OTLP_ENDPOINT.",
)
@click.option("--metrics", is_flag=True, help="With --otlp: send the job's metrics too.")
@click.option("--startup", is_flag=True, help="With --svg: draw how JOB started last, node by node.")
def command(
    *,
    job: str | None,
    events: Path | None,
    store: str | None,
    as_of: int | None,
    svg: Path | None,
    trace: Path | None,
    otlp: str | None,
    metrics: bool,
    startup: bool,
) -> None:
    """Draw JOB's attempts on one time axis: what each was doing, when, and where it failed.

    With --otlp, send them as OpenTelemetry spans instead; sent again, they are the same spans.
    """
    if metrics and otlp is None:
        raise click.UsageError("--metrics says what --otlp sends: give both")
    if startup:
        _draw_startup(job, events, store, svg)
        return
    account = load_account(log_path(job, events, store), as_of, AccountingPolicy())
    if account is None:
        say("no records yet")
        return
    if otlp is not None:
        from ett.otel.export_job import export_job

        for line in export_job(account, otlp, os.environ, with_metrics=metrics):
            say(line)
        return
    if trace is not None:
        from ett.store.export_cli import MAX_TRACE_BYTES, write_trace

        say(f"{trace}: {write_trace(trace, [account], MAX_TRACE_BYTES)} events")
        return
    if svg is None:
        say(timeline_text(account))
        return
    from ett.timeline_svg import timeline_svg

    _write(svg, timeline_svg(account))
    say(f"{svg}: {account.job}, {len(account.timelines)} attempts")


def _draw_startup(job: str | None, events: Path | None, store: str | None, svg: Path | None) -> None:
    if svg is None:
        raise click.UsageError("--startup says what --svg draws: give both; `ett report JOB --startup` is its text")
    from ett.startup_cli import check_startup_options, starts_of
    from ett.startup_report import slowest
    from ett.startup_svg import startup_svg

    check_startup_options(("job", "events", "store", "svg"), "ett timeline JOB --startup --svg FILE")
    start = slowest(starts_of(log_path(job, events, store)))
    _write(svg, startup_svg(start))
    say(f"{svg}: start of {start.job}, attempt {start.attempt}, rank {start.rank}")


def _write(svg: Path, picture: str) -> None:
    """Args: picture: made before there is a file that an interrupt could leave half made."""
    from ett.store.export_cli import written

    with written(svg) as file:
        file.write(picture.encode())


def timeline_text(account: JobAccount) -> str:
    """Return one bar of 96 cells for each attempt; a cell shows the component that took most of its time."""
    start_ns, end_ns = account.window.start_ns, account.window.end_ns
    width_ns = max(1, end_ns - start_ns)
    lines = [f"{account.job}   {duration(width_ns)} from submit to {account.window.state.lower()}"]
    for timeline in account.timelines:
        if not timeline.pieces:
            continue
        begin_ns, stop_ns = timeline.pieces[0].begin_ns, timeline.pieces[-1].end_ns
        cells = "".join(map(_glyph, measure_each(account.pieces, _cells(start_ns, width_ns, begin_ns, stop_ns))))
        reason = (timeline.attempt.ended.data.get("reason") if timeline.attempt.ended else None) or "running"
        at = f"+{(begin_ns - start_ns) / NS:.1f}s"
        lines.append(f"{timeline.attempt.number:>3} |{cells}| {at} for {duration(stop_ns - begin_ns)}, {reason}")
    lines.append("    " + "  ".join(f"{glyph} {component}" for component, glyph in GLYPHS.items()))
    return "\n".join(lines)


def _cells(start_ns: int, width_ns: int, begin_ns: int, stop_ns: int) -> list[Interval]:
    """Return what of [begin_ns, stop_ns) lies in each cell; empty where it is elsewhere."""
    cell_ns = [start_ns + i * width_ns // _CELLS for i in range(_CELLS)]
    edges = [(max(at_ns, begin_ns), min(at_ns + max(1, width_ns // _CELLS), stop_ns)) for at_ns in cell_ns]
    return [(begin, max(begin, end)) for begin, end in edges]


def _glyph(spent: Mapping[Reason, int]) -> str:
    by_component: Counter[str] = Counter()
    for (component, _), ns in spent.items():
        by_component[component] += ns
    most = max(GLYPHS, key=lambda component: by_component[component])
    return GLYPHS[most] if by_component[most] else " "
