"""Recompilations in a job's log: what a report, its JSON and the collector's counter say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ett import metric_names as names
from ett.accounting import JobAccount, account
from ett.attribution import attribute
from ett.collector.job_figures import job_figures
from ett.event_line import encode_line
from ett.event_reader import merge, parse_file
from ett.recompilations import Recompilations, recompilations_json
from ett.report import build_report, report_json
from ett.report_document import job_document
from ett.report_text import recompilation_line, render
from ett.site import Site

CaseLog = Callable[[dict[str, Any]], Any]
S = 1_000_000_000
SIZE = {"guard": "tensor 'x' size mismatch at index 0. expected 3, actual 5", "code": "forward (/src/model.py:12)"}
MODE = {"guard": "times == 2", "code": "scale (/src/model.py:40)"}


def job(case_log: CaseLog, *told: dict[str, Any]) -> JobAccount:
    """Return a job of two ranks, 100 s long, with one step each and these records at 20, 21, ... s."""
    ranks = [{"ev": "step", "att": 1, "src": src, "b": 5, "e": 15, "c0": 0, "c1": 8} for src in ("r0", "r1")]
    events = [
        {"ev": "job_submitted", "t": 0},
        {"ev": "attempt_started", "att": 1, "t": 1, "world": 2},
        *ranks,
        *({"ev": "recompile", "att": 1, "src": "r0", "t": 20 + at} | fields for at, fields in enumerate(told)),
        {"ev": "attempt_ended", "att": 1, "t": 99, "reason": "completed", "exit_code": 0},
        {"ev": "job_ended", "t": 100, "status": "succeeded"},
    ]
    files = case_log({"id": "r", "events": events}).files()
    log = merge([parse_file(name, b"".join(map(encode_line, records))) for name, records in files.items()])
    found = account(log, as_of_ns=0, cut_at_as_of=False)
    assert found is not None
    return found


def test_the_report_names_the_guard_that_failed_most_and_where(case_log: CaseLog) -> None:
    told = [SIZE | {"seconds": 1.5}, MODE | {"seconds": 4.0}, SIZE | {"seconds": 0.5}]
    report = build_report(job(case_log, *told))
    line = (
        "recompiled 3 times after the first step (6.0s): tensor 'x' size mismatch at index 0. expected 3, actual 5, "
        "in forward (/src/model.py:12), 2 of them"
    )
    assert line in render(report).splitlines()
    assert report_json(report)["data"]["recompilations"] == {
        "count": 3,
        "ranks": 1,
        "longest_s": 6.0,
        "guards": [SIZE | {"times": 2, "seconds": 2.0}, MODE | {"times": 1, "seconds": 4.0}],
    }


def test_the_seconds_are_those_of_the_rank_that_spent_most(case_log: CaseLog) -> None:
    told = [SIZE | {"seconds": 1.5}, SIZE | {"seconds": 2.0, "src": "r1"}, SIZE | {"seconds": 1.0, "src": "r1"}]
    shown = recompilation_line(build_report(job(case_log, *told)).recompilations)
    assert shown.startswith("recompiled 3 times after the first step on 2 ranks (3.0s on the slowest): tensor 'x'")


def test_a_job_without_any_says_nothing_of_them(case_log: CaseLog) -> None:
    report = build_report(job(case_log))
    assert "recompiled" not in render(report)
    assert report_json(report)["data"]["recompilations"]["count"] == 0


def test_where_torch_does_not_say_why_they_are_counted(case_log: CaseLog) -> None:
    shown = recompilation_line(build_report(job(case_log, {"seconds": 0.25})).recompilations)
    assert shown == "recompiled 1 time after the first step (250ms)"


def test_a_window_has_those_that_lie_in_it(case_log: CaseLog) -> None:
    found = job(case_log, SIZE | {"seconds": 1.0}, MODE | {"seconds": 1.0})
    begin = found.window.start_ns
    report = build_report(found, (begin + 21 * S, begin + 30 * S))
    assert [guard.guard for guard in report.recompilations.guards] == ["times == 2"]
    assert build_report(found, None, [(begin + 20 * S, begin + 21 * S)]).recompilations.count == 1


@pytest.mark.parametrize("seconds", [None, "long", -1, True])
def test_a_duration_that_is_none_counts_as_no_time(case_log: CaseLog, seconds: object) -> None:
    found = build_report(job(case_log, SIZE | {"seconds": seconds})).recompilations
    assert (found.count, found.longest_s) == (1, 0.0)


def test_markdown_and_html_have_the_line_too(case_log: CaseLog) -> None:
    found = job(case_log, SIZE | {"seconds": 1.5})
    document = job_document(build_report(found), attribute(found, Site()), Site(), "")
    assert recompilation_line(build_report(found).recompilations) in document.notes


def test_the_collector_counts_them(case_log: CaseLog) -> None:
    found = job(case_log, SIZE | {"seconds": 1.5}, MODE | {"seconds": 1.0})
    assert job_figures(found, Site()).amounts[(names.RECOMPILES.prometheus,)] == 2


def test_json_lists_the_first_guards_of_many() -> None:
    assert recompilations_json(Recompilations())["guards"] == []
