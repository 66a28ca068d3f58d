"""The fleet's counters: they never fall, they are the report's figures, and a restart continues where they were."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_accounting_properties import EPOCH_NS, NS, jobs

from ett import metric_names as names
from ett.accounting import JobAccount, account
from ett.attribution import attribute
from ett.collector.book_page import REVISED_BY, BookPage, Labels, read_page
from ett.collector.job_figures import job_figures
from ett.event_line import encode_line
from ett.event_reader import EventLog, merge, parse_file
from ett.event_schema import COMPONENTS
from ett.report import build_report
from ett.site import Site

CaseLog = Callable[[dict[str, Any]], Any]
Lines = list[tuple[str, bytes]]
LABELS = Labels(cluster="c", team="ads", model="ctr")
quick = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
JOB, RANK = names.COMPONENT_JOB_TIME.prometheus, names.COMPONENT_RANK_TIME.prometheus


def lines_of(case_log: CaseLog, case: dict[str, Any]) -> Lines:
    return [(name, encode_line(record)) for name, records in case_log(case).files().items() for record in records]


def log_of(lines: Lines) -> EventLog:
    by_file: dict[str, bytes] = {}
    for name, line in lines:
        by_file[name] = by_file.get(name, b"") + line
    return merge(parse_file(name, data) for name, data in sorted(by_file.items()))


def account_at(lines: Lines, as_of_s: int) -> JobAccount | None:
    return account(log_of(lines), as_of_ns=EPOCH_NS + as_of_s * NS, cut_at_as_of=False)


def net(page: BookPage, metric: str) -> dict[tuple[str, ...], int]:
    """Counter less its revisions, by the labels that are no job's."""
    found: Counter[tuple[str, ...]] = Counter()
    for series, value in page.booked.items():
        own = tuple(v for v in series[1:] if v not in (LABELS.cluster, LABELS.team, LABELS.model))
        if series[0] == metric:
            found[own] += value
        elif series[0] == REVISED_BY[metric]:
            found[own] -= value
    return {own: ns for own, ns in found.items() if ns}


def assert_is_the_report(page: BookPage, found: JobAccount) -> None:
    report = build_report(found)
    shown = {component: report.ns[component] for component in COMPONENTS if component != "effective"}
    shown["training"] = report.ns["effective"] + report.ns["wasted"]
    assert net(page, JOB) == {(name,): ns for name, ns in shown.items() if ns}
    ranks: Counter[str] = Counter()
    for row in attribute(found, Site()).as_spent:
        ranks[row.component] += row.rank_ns
    booked = net(page, RANK)
    assert booked.get(("training",), 0) - booked.get(("wasted",), 0) == ranks["effective"]
    for component in ("initialization", "compilation", "wasted", "shutdown"):
        assert booked.get((component,), 0) == ranks[component]
    wall = net(page, names.WALL_RANK_TIME.prometheus).get((), 0)
    assert wall == sum(ns for (component,), ns in booked.items() if component != "wasted")
    held = wall - booked.get(("scheduling",), 0)
    if report.capacity_ett is not None and not attempts_overlap(found):
        assert ranks["effective"] / held == pytest.approx(report.capacity_ett, rel=1e-12)


def attempts_overlap(found: JobAccount) -> bool:
    """Whether some time is held by two attempts: R18 counts it for both, a counter of wall time once."""
    attempts = [t.attempt for t in found.timelines]
    begins = [a.start_ns if a.allocated_ns is None else a.allocated_ns for a in attempts]
    held = sorted((begin, a.end_ns) for begin, a in zip(begins, attempts, strict=True) if begin is not None)
    return any(end > begin for (_, end), (begin, _) in pairwise(held))


@pytest.mark.slow
@quick
@given(case=jobs(), seed=st.integers(0, 2**32))
def test_counters_never_fall_and_end_at_the_report_whatever_comes_late(
    case: dict[str, Any], seed: int, case_log: CaseLog
) -> None:
    rng = random.Random(seed)
    lines = lines_of(case_log, case)
    late = rng.sample(lines, len(lines))  # every order: a line may come after all others
    page, known, as_of_s = BookPage(), Lines(), 0
    while late or not known:
        known += [late.pop() for _ in range(min(len(late), rng.randint(1, 6)))]
        as_of_s += rng.randint(0, 60)
        found = account_at(known, as_of_s)
        before = page
        page = page.turned(job_figures(found, Site()), LABELS, page.generation + 1)
        for series, value in before.booked.items():
            assert page.booked[series] >= value, series
        for series, counts in before.points.items():
            assert all(new >= old for new, old in zip(page.points[series], counts, strict=True)), series
        assert min(page.booked.values(), default=1) > 0
    final = account_at(known, 10_000)
    assert final is not None
    page = page.turned(job_figures(final, Site()), LABELS, 99)
    assert_is_the_report(page, final)


TWO_LIVES: dict[str, Any] = {
    "id": "j",
    "events": [
        {"ev": "job_submitted", "t": 0},
        {"ev": "allocated", "att": 1, "t": 4},
        {"ev": "attempt_started", "att": 1, "t": 5, "world": 2},
        {"ev": "span", "att": 1, "src": "r0", "name": "compile", "b": 5, "e": 8},
        {"ev": "step", "att": 1, "src": "r0", "b": 8, "e": 12, "c0": 0, "c1": 10},
        {"ev": "ckpt_begin", "att": 1, "src": "r0", "t": 12, "id": "a"},
        {"ev": "span", "att": 1, "src": "r0", "name": "ckpt_save", "b": 12, "e": 14},
        {"ev": "ckpt_commit", "att": 1, "src": "r0", "t": 15, "cursor": 10, "id": "a", "bytes": 70},
        {"ev": "step", "att": 1, "src": "r0", "b": 14, "e": 20, "c0": 10, "c1": 20},
        {"ev": "attempt_ended", "att": 1, "t": 21, "reason": "failed", "class": "infra"},
        {"ev": "attempt_started", "att": 2, "t": 24, "world": 2},
        {"ev": "span", "att": 2, "src": "r0", "name": "restore", "b": 24, "e": 26},
        {"ev": "restore", "att": 2, "src": "r0", "t": 26, "cursor": 10, "id": "a"},
        {"ev": "step", "att": 2, "src": "r0", "b": 26, "e": 30, "c0": 10, "c1": 20},
        {"ev": "step", "att": 2, "src": "r0", "b": 30, "e": 40, "c0": 20, "c1": 30},
        {"ev": "attempt_ended", "att": 2, "t": 41, "reason": "failed", "class": "user"},
        {"ev": "job_ended", "t": 42, "status": "failed"},
    ],
}


def turned_at(case_log: CaseLog, *seconds: int) -> BookPage:
    """The page after the log was seen as it was written up to each of the times."""
    lines = lines_of(case_log, TWO_LIVES)
    page = BookPage()
    for as_of_s in seconds:
        end_ns = EPOCH_NS + as_of_s * NS
        known = [line for line in lines if parse_file("f", line[1]).records[0].wall_ns <= end_ns]
        page = page.turned(job_figures(account_at(known, as_of_s), Site()), LABELS, as_of_s)
    return page


def test_what_a_failure_takes_back_moves_to_wasted_without_a_revision(case_log: CaseLog) -> None:
    """At 40 s twenty samples are learned; the job fails, ten were never saved, and no counter falls or is revised."""
    page = turned_at(case_log, 3, 12, 21, 24, 30, 40, 50)
    found = account_at(lines_of(case_log, TWO_LIVES), 50)
    assert found is not None
    assert_is_the_report(page, found)
    assert build_report(found).detail_ns["wasted.unsaved_tail"] > 0
    assert not [key for key in page.booked if "revised" in key[0]]


def test_what_happens_once_is_counted_once_however_often_the_log_is_seen(case_log: CaseLog) -> None:
    page = turned_at(case_log, 12, 21, 30, 40, 50, 50, 60)
    expected = {
        (names.RESTARTS.prometheus, "c", "ads", "ctr", "infrastructure_failure"): 1,
        (names.ATTEMPTS_FINISHED.prometheus, "c", "ads", "failed"): 2,
        (names.CHECKPOINT_OPERATIONS.prometheus, "c", "save", "ok"): 1,
        (names.CHECKPOINT_OPERATIONS.prometheus, "c", "restore", "ok"): 1,
        (names.CHECKPOINT_BYTES.prometheus, "c", "save"): 70,
        (names.EXAMPLES.prometheus, "c", "ads", "ctr"): 30,
        (names.EXAMPLES_REDONE.prometheus, "c", "ads", "ctr"): 10,
    }
    assert {key: page.booked.get(key) for key in expected} == expected
    sums = {key: (sum(counts[:-1]), counts[-1] / NS) for key, counts in page.points.items()}
    assert sums[names.RECOVERY_DURATION.prometheus, "c", "in_job"] == (1, 9.0)  # 21 -> 30, the first new sample
    assert sums[names.CHECKPOINT_SAVE_DURATION.prometheus, "c", "background"] == (1, 3.0)
    assert sums[names.CHECKPOINT_SAVE_DURATION.prometheus, "c", "blocking"] == (1, 2.0)
    assert sums[names.CHECKPOINT_RESTORE_DURATION.prometheus, "c", "local"] == (1, 2.0)
    assert sums[names.ATTEMPT_COMPONENT_DURATION.prometheus, "c", "compilation"] == (2, 3.0)
    assert sums[names.ATTEMPT_COMPONENT_DURATION.prometheus, "c", "scheduling"] == (2, 7.0)


def test_a_restart_costs_what_the_report_says_that_it_caused(case_log: CaseLog) -> None:
    page = turned_at(case_log, 50)
    found = account_at(lines_of(case_log, TWO_LIVES), 50)
    assert found is not None
    caused = {row.cause_class: row.rank_ns for row in attribute(found, Site()).as_caused if row.cause == "interruption"}
    booked = {key[2]: value for key, value in page.booked.items() if key[0] == names.RESTART_COST.prometheus}
    assert booked == {"infrastructure_failure": caused["infra"], "user_error": caused["user"]}


def test_a_running_step_is_published_when_it_ends(case_log: CaseLog) -> None:
    """At 35 s ten seconds of a step are under way: they are not yet wasted, nor anything else."""
    page = turned_at(case_log, 35)
    wall = net(page, names.WALL_RANK_TIME.prometheus)[()]
    assert wall == 2 * 30 * NS


def test_a_silent_rank_is_published_as_what_it_looks_like_after_a_while(case_log: CaseLog) -> None:
    lines = [
        line
        for line in lines_of(case_log, TWO_LIVES)
        if parse_file("f", line[1]).records[0].wall_ns <= EPOCH_NS + 30 * NS
    ]
    beat = {
        "v": 1,
        "job": "j",
        "att": 2,
        "gen": 0,
        "src": "sup",
        "host": "host-0",
        "boot": "boot0000",
        "pid": 100,
        "ev": "heartbeat",
    }
    beat |= {"seq": 99, "rank": 0, "wall_ns": EPOCH_NS + 2000 * NS, "mono_ns": 3000 * NS}
    found = account_at([*lines, ("0/late.jsonl", encode_line(beat))], 2000)
    assert found is not None
    assert found.window.state == "RUNNING"
    page = BookPage().turned(job_figures(found, Site()), LABELS, 1)
    assert net(page, names.WALL_RANK_TIME.prometheus)[()] == 2 * 1400 * NS


@pytest.mark.slow
@quick
@given(case=jobs())
def test_a_page_read_back_is_the_page(case: dict[str, Any], case_log: CaseLog) -> None:
    page = BookPage().turned(job_figures(account_at(lines_of(case_log, case), 500), Site()), LABELS, 3)
    assert read_page(page.text()) == page


def test_a_page_of_another_version_is_a_fresh_one() -> None:
    assert read_page('{"v": 0}') == read_page(None) == BookPage()
