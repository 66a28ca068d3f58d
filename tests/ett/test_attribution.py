"""As spent and as caused: both hold every nanosecond once; an interruption pays what it made somebody pay again."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_accounting_properties import account_of as random_account
from test_accounting_properties import jobs

from ett.accounting import JobAccount
from ett.attribution import Attribution, attribute, charges
from ett.report import build_report
from ett.site import Site
from ett.stops import find_stops

NS = 1_000_000_000
EPOCH_NS = 1_900_000_000 * NS
CASES = Path(__file__).parent / "cases"
Case = dict[str, Any]
CaseLog = Callable[[Case], Any]
quick = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def account_of(case: Case, case_log: CaseLog) -> JobAccount:
    return random_account(case, case_log(case).files())


def handed(name: str) -> Case:
    cases = [c for file in ("handed.json", "ours.json") for c in json.loads((CASES / file).read_text())["cases"]]
    return next(case for case in cases if case["id"] == name)


def caused(found: Attribution) -> dict[str, float]:
    """Seconds by "class/reason" of an interruption or "component.reason"."""
    return {
        f"{r.cause_class}/{r.reason}" if r.cause == "interruption" else f"{r.component}.{r.reason}": r.ns / NS
        for r in found.as_caused
    }


def steps(att: int, t0: float, n: int, c0: int, dt: float = 10) -> Case:
    return {"ev": "steps", "att": att, "src": "r0", "t0": t0, "n": n, "dt": dt, "c0": c0}


def span(att: int, name: str, b: float, e: float) -> Case:
    return {"ev": "span", "att": att, "src": "r0", "name": name, "b": b, "e": e}


def start(att: int, t: float) -> Case:
    return {"ev": "attempt_started", "att": att, "t": t, "world": 1}


def end(att: int, t: float, reason: str, **more: Any) -> Case:
    return {"ev": "attempt_ended", "att": att, "t": t, "reason": reason} | more


def job(*events: Case, end_t: float, status: str = "succeeded") -> Case:
    ended = {"ev": "job_ended", "t": end_t, "status": status}
    return {"id": "j", "events": [{"ev": "job_submitted", "t": 0}, *events, ended]}


@pytest.mark.slow
@quick
@given(case=jobs(), cuts=st.tuples(st.integers(0, 90 * NS), st.integers(0, 90 * NS)))
def test_both_views_hold_every_nanosecond_once(case: Case, cuts: tuple[int, int], case_log: CaseLog) -> None:
    found = account_of(case, case_log)
    window = (EPOCH_NS + min(cuts), EPOCH_NS + max(cuts))
    for asked in (None, window):
        views, report = attribute(found, Site(), asked), build_report(found, asked)
        assert {f"{r.component}.{r.reason}": r.ns for r in views.as_spent} == report.detail_ns
        assert sum(r.ns for r in views.as_caused) == views.total_ns == report.total_ns
        assert sum(r.rank_ns for r in views.as_caused) == sum(r.rank_ns for r in views.as_spent)
        for row in views.as_caused:
            if row.cause == "interruption":
                assert row.lost_ns + row.teardown_ns + row.again_ns == row.ns


@pytest.mark.slow
@quick
@given(case=jobs())
def test_charges_are_the_partition_itself(case: Case, case_log: CaseLog) -> None:
    found = account_of(case, case_log)
    stops = find_stops(found)
    parts = sorted(charges(found, stops))
    assert all(begin < end for begin, end, *_ in parts)
    assert all(a.end_ns == b.begin_ns for a, b in pairwise(parts))
    assert all(part.payer is None or part.component != "effective" for part in parts)


@pytest.mark.slow
@quick
@given(case=jobs(), at=st.integers(1, 80 * NS))
def test_windows_of_causes_add_up(case: Case, at: int, case_log: CaseLog) -> None:
    found = account_of(case, case_log)
    cut = min(EPOCH_NS + at, found.window.end_ns)
    parts = [attribute(found, Site(), w) for w in ((found.window.start_ns, cut), (cut, found.window.end_ns))]
    whole = caused(attribute(found, Site()))
    for name, seconds in whole.items():
        assert sum(caused(part).get(name, 0) for part in parts) == pytest.approx(seconds)


@pytest.mark.slow
@quick
@given(case=jobs())
def test_time_that_never_waited_on_a_stop_stays_with_its_component(case: Case, case_log: CaseLog) -> None:
    found = account_of(case, case_log)
    stops = find_stops(found)
    first = stops[0].at_ns if stops else found.window.end_ns
    for part in charges(found, stops):
        if part.end_ns <= first and part.component in ("scheduling", "compilation", "effective"):
            assert part.payer is None or part.begin_ns >= stops[0].fatal_from_ns


def test_a_failure_pays_for_lost_work_and_the_start_that_is_paid_again(case_log: CaseLog) -> None:
    found = attribute(account_of(handed("C02"), case_log), Site())
    (row,) = [r for r in found.as_caused if r.cause == "interruption"]
    # 7 s in flight and 30 s of replay; 20 s until the restart and 30 s of restore.
    assert (row.lost_ns, row.teardown_ns, row.again_ns, row.count) == (37 * NS, 0, 50 * NS, 1)
    assert caused(found)["effective.new_data"] == 120
    assert sum(caused(found).values()) == 260


def test_a_preemption_pays_for_its_teardown_and_the_wait(case_log: CaseLog) -> None:
    found = caused(attribute(account_of(handed("C15"), case_log), Site()))
    # C15: 610 s, of which 200 s are effective and 60 s the first start; the last 10 s of shutdown were planned.
    assert found == {
        "effective.new_data": 200,
        "scheduling.queue": 30,
        "initialization.init": 30,
        "shutdown.untracked": 10,
        "preempted/preempted": 340,
    }


def test_each_attempt_pays_for_the_next_start_and_a_replay_is_paid_by_whoever_lost_the_work(case_log: CaseLog) -> None:
    """Attempt 1 loses three steps, attempt 2 dies while it starts, attempt 3 replays the three."""
    case = job(
        start(1, 10), span(1, "init", 10, 30), steps(1, 30, 8, 0), end(1, 110, "failed", **{"class": "infra"}),
        start(2, 115), span(2, "init", 115, 122), end(2, 122, "failed", **{"class": "user", "exit_code": 3}),
        start(3, 125), span(3, "init", 125, 145), steps(3, 145, 7, 5), end(3, 215, "completed"), end_t=215,
    )  # fmt: skip
    found = attribute(account_of(case, case_log), Site())
    rows = {r.reason: r for r in found.as_caused if r.cause == "interruption"}
    # The first failure: its own wait and start-up (5 + 7 s, in vain), and the 30 s of replay two attempts later.
    assert (rows["infra"].lost_ns, rows["infra"].again_ns) == (30 * NS, 12 * NS)
    assert (rows["exit_3"].lost_ns, rows["exit_3"].again_ns) == (0, 23 * NS)


def test_a_replay_that_two_failures_lost_is_split_between_them(case_log: CaseLog) -> None:
    """Attempt 2 replays 5 to 8 and dies; attempt 3 replays 5 to 8 because of it, and 8 to 10 because of the first."""
    case = job(
        start(1, 0), steps(1, 0, 10, 0), end(1, 100, "failed", signal=9),
        start(2, 100), steps(2, 100, 3, 5), end(2, 130, "failed", signal=11),
        start(3, 130), steps(3, 130, 6, 5), end(3, 190, "completed"), end_t=190,
    )  # fmt: skip
    rows = {r.reason: r.lost_ns / NS for r in attribute(account_of(case, case_log), Site()).as_caused}
    assert rows["sigkill"] == 30 + 20
    assert rows["sigsegv"] == 30


def test_a_step_that_straddles_two_payers_is_cut_in_proportion(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 10, 0), end(1, 100, "failed", signal=9),
        start(2, 100), steps(2, 100, 3, 5), end(2, 130, "failed", signal=11),
        start(3, 130), {"ev": "step", "att": 3, "src": "r0", "b": 130, "e": 190, "c0": 6, "c1": 12},
        end(3, 190, "completed"), end_t=190,
    )  # fmt: skip
    rows = {r.reason: r.lost_ns / NS for r in attribute(account_of(case, case_log), Site()).as_caused}
    assert (rows["sigsegv"], rows["sigkill"]) == (20, 30 + 20)


def test_a_replay_without_any_stop_is_nobodys_failure(case_log: CaseLog) -> None:
    case = job(start(1, 0), steps(1, 0, 5, 0), steps(1, 50, 5, 3), end(1, 100, "completed"), end_t=100)
    assert caused(attribute(account_of(case, case_log), Site())) == {"effective.new_data": 80, "wasted.replay": 20}


def test_the_tail_of_a_failed_job_is_paid_by_the_stop_that_lost_it(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 6, 0), {"ev": "ckpt_commit", "att": 1, "src": "r0", "t": 40, "cursor": 4},
        end(1, 60, "failed", signal=9), start(2, 70), end(2, 75, "failed", exit_code=1, **{"class": "user"}),
        end_t=77, status="failed",
    )  # fmt: skip
    found = attribute(account_of(case, case_log), Site())
    rows = {r.reason: r for r in found.as_caused if r.cause == "interruption"}
    assert (rows["sigkill"].lost_ns, rows["sigkill"].again_ns) == (20 * NS, 15 * NS)
    assert rows["exit_1"].again_ns == 2 * NS


def test_an_in_process_restart_pays_until_the_next_new_data(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 4, 0), {"ev": "fault", "att": 1, "src": "r0", "t": 44, "class": "infra"},
        span(1, "restore", 46, 50), steps(1, 50, 4, 2), end(1, 90, "completed"), end_t=90,
    )  # fmt: skip
    (row,) = [r for r in attribute(account_of(case, case_log), Site()).as_caused if r.cause == "interruption"]
    # 4 s of loop without a step before the fault, 20 s of replay; 2 s until the restore and 4 s of it.
    assert (row.cause_class, row.lost_ns, row.again_ns) == ("infra", 24 * NS, 6 * NS)


def test_a_fault_that_nobody_survives_belongs_to_the_attempts_end(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 4, 0), {"ev": "fault", "att": 1, "src": "r0", "t": 40, "class": "infra"},
        span(1, "restore", 42, 45), end(1, 50, "failed", signal=9),
        start(2, 52), steps(2, 55, 2, 4), end(2, 75, "completed"), end_t=75,
    )  # fmt: skip
    (row,) = [r for r in attribute(account_of(case, case_log), Site()).as_caused if r.cause == "interruption"]
    assert (row.count, row.teardown_ns, row.again_ns) == (1, 10 * NS, 5 * NS)


def test_an_unknown_cause_has_a_row_of_its_own(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 2, 0), end(1, 20, "failed"), start(2, 21), steps(2, 22, 2, 2),
        end(2, 42, "failed", cause="host_failure", **{"class": "infra"}), start(3, 44), steps(3, 45, 2, 4),
        end(3, 65, "completed"), end_t=65,
    )  # fmt: skip
    found = caused(attribute(account_of(case, case_log), Site()))
    assert {name: s for name, s in found.items() if "/" in name} == {"unknown/unknown": 2, "infra/host_failure": 3}


def test_a_suspension_is_planned_and_no_failure(case_log: CaseLog) -> None:
    case = job(
        start(1, 0), steps(1, 0, 2, 0), span(1, "final_save", 20, 23), end(1, 23, "suspended"),
        start(2, 50), steps(2, 55, 2, 2), end(2, 75, "completed"), end_t=75,
    )  # fmt: skip
    found = account_of(case, case_log)
    (row,) = [r for r in attribute(found, Site()).as_caused if r.cause == "interruption"]
    assert (row.cause_class, row.reason) == ("planned", "suspended")
    assert (row.teardown_ns, row.again_ns) == (3 * NS, 32 * NS)
    assert not find_stops(found)[0].is_failure


def test_owners_attach_to_the_second_level_before_the_first(case_log: CaseLog) -> None:
    case = handed("C02")
    events = [e | ({"owner": "lee"} if e["ev"] == "job_submitted" else {}) for e in case["events"]]
    site = Site(owners={"initialization": "runtime", "initialization.restore": "storage", "unknown": "oncall"})
    found = attribute(account_of(case | {"events": events}, case_log), site)
    spent = {f"{r.component}.{r.reason}": r.owner for r in found.as_spent}
    assert spent["initialization.untracked"] == "runtime"
    assert spent["initialization.restore"] == "storage"
    assert (spent["effective.new_data"], spent["scheduling.queue"]) == ("lee", "")
    (row,) = [r for r in found.as_caused if r.cause == "interruption"]
    assert (row.cause_class, row.owner) == ("unknown", "oncall")


def with_capacity() -> list[Case]:
    cases = [c for file in ("handed.json", "ours.json") for c in json.loads((CASES / file).read_text())["cases"]]
    return [case for case in cases if case["expected"].get("capacity_ett") is not None and "window" not in case]


@pytest.mark.parametrize("case", with_capacity(), ids=lambda case: case["id"])
def test_rank_seconds_are_those_of_the_capacity_figure(case: Case, case_log: CaseLog) -> None:
    views = attribute(account_of(case, case_log), Site())
    effective = sum(r.rank_ns for r in views.as_spent if r.component == "effective")
    assert effective / views.total_rank_ns == pytest.approx(case["expected"]["capacity_ett"])
