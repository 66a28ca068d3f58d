"""Whatif is a replay: its answer on one log is the account of the job that would have been."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_job import Failure, Plan, simulated
from test_accounting_properties import account_of, jobs

from ett.attribution import attribute
from ett.cli import run
from ett.edits import Edit, parse_new_interval, parse_remove, parse_set
from ett.errors import UsageError
from ett.event_schema import COMPONENTS
from ett.lives import recorded_job
from ett.replay import outcome, replay
from ett.report import build_report
from ett.site import Site
from ett.stops import find_stops
from ett.whatif import what_if

NS = 1_000_000_000
Case = dict[str, Any]
CaseLog = Callable[[Case], Any]
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
thorough = settings(quick, max_examples=25)


class Simulated:
    """A simulated job's account and its recorded lives."""

    def __init__(self, plan: Plan, case_log: CaseLog) -> None:
        case, self.struck_at_once = simulated(plan)
        self.account = account_of(case, case_log(case).files())
        self.job = recorded_job(self.account)
        self.detail_ns = build_report(self.account).detail_ns

    def edits(self, *texts: str) -> list[Edit]:
        """ "set …", "remove …" and "every …"."""
        found: list[Edit] = []
        for text in texts:
            kind, _, rest = text.partition(" ")
            if kind == "set":
                found.append(parse_set(rest, outcome(self.job.lives).detail_ns))
            elif kind == "remove":
                found.append(parse_remove(rest, find_stops(self.account)))
            else:
                found.append(parse_new_interval(rest))
        return found

    def played(self, *texts: str) -> dict[str, int]:
        return replay(self.job, self.edits(*texts)).detail_ns


@st.composite
def plans(draw: st.DrawFn, hows: Sequence[str] = ("failed", "failed", "preempted", "inprocess")) -> Plan:
    """Failures at growing or falling places, some while an attempt starts up; sometimes the job itself fails."""
    num_steps = draw(st.integers(12, 30))
    failures = []
    for index in range(draw(st.integers(0, 4))):
        how: Any = draw(st.sampled_from(hows))
        failures.append(
            Failure(
                after_step=draw(st.integers(1, num_steps - 1)),
                into_s=draw(st.integers(1, 19)) / 10,
                cause=f"cause{index}",
                how=how,
                in_start_up=how == "failed" and draw(st.integers(0, 4)) == 0,
            )
        )
    for before, after in pairwise(failures):
        # An in-process restart has no start-up of its own to die in.
        if before.how == "inprocess" and after.in_start_up:
            failures[failures.index(after)] = replace(after, in_start_up=False)
    ends_failed = bool(failures) and failures[-1].how == "failed" and draw(st.booleans())
    return Plan(
        num_steps=num_steps,
        interval_steps=draw(st.integers(1, 12)),
        save_s=draw(st.sampled_from([1, 2.5])),
        commit_lag_s=draw(st.sampled_from([0, 0.5, 3])),
        failures=tuple(failures),
        status="failed" if ends_failed else "succeeded",
    )


@pytest.mark.slow
@quick
@given(case=jobs())
def test_without_edits_it_is_the_jobs_own_account(case: Case, case_log: CaseLog) -> None:
    found = account_of(case, case_log(case).files())
    assert replay(recorded_job(found), []).detail_ns == build_report(found).detail_ns


@pytest.mark.slow
@quick
@given(case=jobs())
def test_without_edits_each_second_holds_the_ranks_that_the_report_says(case: Case, case_log: CaseLog) -> None:
    found = account_of(case, case_log(case).files())
    spent = attribute(found, Site()).as_spent
    held = replay(recorded_job(found), []).rank_ns
    assert held == {c: sum(row.rank_ns for row in spent if row.component == c) for c in COMPONENTS}


@pytest.mark.slow
@quick
@given(plan=plans())
def test_without_edits_a_simulated_job_is_itself(plan: Plan, case_log: CaseLog) -> None:
    job = Simulated(plan, case_log)
    assert job.played() == job.detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans())
def test_a_cheaper_compilation_is_the_job_that_compiled_faster(plan: Plan, case_log: CaseLog) -> None:
    job = Simulated(plan, case_log)
    if "compilation.compile" in job.detail_ns:
        assert job.played("set compilation=-75%") == Simulated(replace(plan, compile_s=5), case_log).detail_ns
        assert job.played("set compilation=30s") == Simulated(replace(plan, compile_s=30), case_log).detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans(hows=("preempted", "failed")))
def test_cheaper_start_up_spans_are_the_job_that_started_faster(plan: Plan, case_log: CaseLog) -> None:
    plan = replace(plan, failures=tuple(replace(f, in_start_up=False) for f in plan.failures))
    job = Simulated(plan, case_log)
    edits = ["set initialization.imports=-50%", "set initialization.model_build=1s", "set scheduling.restart=-20%"]
    if "initialization.restore" in job.detail_ns:
        edits.append("set initialization.restore=-50%")
    if "scheduling.restart" not in job.detail_ns:
        edits.remove("set scheduling.restart=-20%")
    faster = Simulated(replace(plan, imports_s=4, model_s=1, restore_s=3), case_log).detail_ns
    restart_ns = faster.pop("scheduling.restart", 0)
    played = job.played(*edits)
    assert played.pop("scheduling.restart", 0) == restart_ns * 8 // 10
    assert played == faster


@pytest.mark.slow
@thorough
@given(plan=plans(), index=st.integers(0, 3))
def test_a_removed_failure_is_the_job_that_never_met_it(plan: Plan, index: int, case_log: CaseLog) -> None:
    if index >= len(plan.failures) or (plan.status == "failed" and index == len(plan.failures) - 1):
        return
    left = [failure for number, failure in enumerate(plan.failures) if number != index]
    job, without = Simulated(plan, case_log), Simulated(replace(plan, failures=tuple(left)), case_log)
    if places_change(plan.failures, index) or job.struck_at_once or without.struck_at_once:
        return
    assert job.played(f"remove reason=cause{index}") == without.detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans())
def test_a_job_without_any_failure_is_one_that_never_failed(plan: Plan, case_log: CaseLog) -> None:
    if not plan.failures or plan.status == "failed":
        return
    job = Simulated(plan, case_log)
    if job.struck_at_once:
        return
    played = replay(job.job, [parse_remove(f.cause, find_stops(job.account)) for f in plan.failures]).detail_ns
    assert played == Simulated(replace(plan, failures=()), case_log).detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans(), steps=st.integers(1, 15))
def test_another_interval_is_the_job_that_saved_so(plan: Plan, steps: int, case_log: CaseLog) -> None:
    job, other = Simulated(plan, case_log), Simulated(replace(plan, interval_steps=steps), case_log)
    if saved_once(job) and not other.struck_at_once:
        assert job.played(f"every {steps} steps") == other.detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans(), every_s=st.integers(3, 40))
def test_an_interval_in_time_is_the_job_that_saved_so(plan: Plan, every_s: int, case_log: CaseLog) -> None:
    job, other = Simulated(plan, case_log), Simulated(replace(plan, interval_s=every_s), case_log)
    if saved_once(job) and not other.struck_at_once:
        assert job.played(f"every {every_s}s") == other.detail_ns


@pytest.mark.slow
@thorough
@given(plan=plans(hows=("failed", "preempted")), steps=st.integers(1, 15))
def test_several_edits_are_the_job_with_all_of_them(plan: Plan, steps: int, case_log: CaseLog) -> None:
    if not plan.failures or plan.status == "failed" or places_change(plan.failures, 0):
        return
    job = Simulated(plan, case_log)
    other = Simulated(replace(plan, interval_steps=steps, compile_s=5, failures=plan.failures[1:]), case_log)
    if saved_once(job) and not other.struck_at_once:
        assert job.played("set compilation=-75%", f"every {steps} steps", "remove cause0") == other.detail_ns


def saved_once(job: Simulated) -> bool:
    """What a save costs, how long its commit takes, and where each failure struck is in the log."""
    is_known = "wasted.ckpt_save" in job.detail_ns and job.job.commit_lag_ns is not None
    return is_known and not job.struck_at_once


def test_a_save_that_the_removed_preemption_overtook_would_have_been_whole(case_log: CaseLog) -> None:
    # The preemption comes 0.2 s after the save of step 1, whose commit takes 0.5 s; its own save commits step 1 too.
    strikes = {"into_s": 0.1, "cause": "c"}
    first = Failure(after_step=1, into_s=0.1, cause="gone", how="preempted")
    others = (Failure(after_step=2, **strikes), Failure(after_step=2, how="preempted", **strikes))
    plan = Plan(num_steps=12, interval_steps=1, failures=(first, *others))
    without = Simulated(replace(plan, failures=others), case_log)
    assert Simulated(plan, case_log).played("remove reason=gone") == without.detail_ns


def places_change(failures: Sequence[Failure], index: int) -> bool:
    """Without this failure the simulator would let the next one strike earlier in the work than the job had been."""
    following = failures[index + 1] if index + 1 < len(failures) else None
    return following is not None and (following.in_start_up or following.after_step < failures[index].after_step)


def test_two_edits_share_what_they_both_save(case_log: CaseLog) -> None:
    """Without the failure the second compilation is gone whatever it costs: that part is in both single gains."""
    job = Simulated(Plan(failures=(Failure(after_step=20, into_s=1, cause="host_failure"),)), case_log)
    found = what_if(job.job, job.edits("set compilation=-75%", "remove host_failure"))
    singles = [gain.gain_ns for gain in found.gains]
    assert singles[0] == 2 * 15 * NS
    assert found.overlap_ns == 15 * NS
    assert sum(singles) - found.overlap_ns == found.gain_ns
    assert sum(gain.shapley_ns for gain in found.gains) == found.gain_ns
    assert [gain.shapley_ns for gain in found.gains] == [s - 7.5 * NS for s in singles]


def test_a_start_up_second_is_paid_once_for_each_start(case_log: CaseLog) -> None:
    failures = tuple(Failure(after_step=10 * n, into_s=1, cause=f"cause{n}") for n in (1, 2, 3))
    job = Simulated(Plan(failures=failures), case_log)
    for name, saved_s in (("compilation=19s", 1), ("initialization.imports=7s", 1)):
        assert what_if(job.job, job.edits(f"set {name}")).gain_ns == saved_s * (1 + len(failures)) * NS


def test_the_bracket_is_wider_the_more_the_remaining_failures_cost(case_log: CaseLog) -> None:
    failures = tuple(Failure(after_step=10 * n, into_s=1, cause=f"cause{n}") for n in (1, 2, 3))
    job = Simulated(Plan(failures=failures), case_log)
    some = what_if(job.job, job.edits("set compilation=-50%")).bracket
    none = what_if(job.job, job.edits("remove failures")).bracket
    assert some.lower is not None
    assert some.upper is not None
    assert some.upper > some.lower > 0
    assert none.upper == none.lower


@pytest.mark.parametrize("num_failures", [2, 3])
def test_young_s_rule_wants_three_failures(num_failures: int, case_log: CaseLog) -> None:
    failures = tuple(Failure(after_step=8 * n, into_s=1, cause=f"cause{n}") for n in range(1, num_failures + 1))
    job = Simulated(Plan(failures=failures, save_s=2.5), case_log)
    advice = what_if(job.job, []).advice
    if num_failures < 3:
        assert (advice.interval_s, advice.refused) == (None, "not enough failures: 2 of 3")
    else:
        mtbf_s = sum(job.detail_ns.values()) / NS / 3
        assert advice.interval_s == pytest.approx((2 * 2.5 * mtbf_s) ** 0.5)


@pytest.mark.parametrize(
    "text",
    ["set compilation", "set compiling=-5%", "set compilation=-101%", "set compilation=5", "set effective=-5%",
     "set wasted.replay=-5%", "remove cosmic_rays", "every auto", "every 0 steps", "every soon",
     "set compilation=+99999999999%", "set compilation=99999999h", "set compilation=nan%", "set compilation=1e9x",
     f"set compilation={'9' * 400}%", f"every {'9' * 400}h", "set compilation=٣%"],
)  # fmt: skip
def test_an_edit_without_a_meaning_is_refused(text: str, case_log: CaseLog) -> None:
    job = Simulated(Plan(failures=(Failure(after_step=9, into_s=1, cause="cause0"),)), case_log)
    with pytest.raises(UsageError):
        job.edits(text)


def test_at_most_six_edits_are_compared(case_log: CaseLog) -> None:
    job = Simulated(Plan(num_steps=10), case_log)
    with pytest.raises(UsageError):
        what_if(job.job, job.edits(*["set compilation=-5%"] * 7))


def test_the_last_failure_of_a_failed_job_gives_its_tail_back(case_log: CaseLog) -> None:
    plan = Plan(num_steps=20, status="failed", failures=(Failure(after_step=9, into_s=1, cause="host"),))
    job = Simulated(plan, case_log)
    played = job.played("remove host")
    assert "wasted.unsaved_tail" not in played
    assert played["effective.new_data"] == job.detail_ns["effective.new_data"] + job.detail_ns["wasted.unsaved_tail"]


def test_the_command_prints_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write_case: Callable[[Case, Path], list[str]]
) -> None:
    write_case(simulated(Plan(failures=(Failure(after_step=20, into_s=1, cause="host_failure"),)))[0], tmp_path)
    argv = ["whatif", "--events", str(tmp_path), "--set", "compilation=-75%", "--remove", "reason=host_failure"]
    assert run([*argv, "--checkpoint-interval", "5 steps"]) == 0
    shown = capsys.readouterr().out
    assert "together: " in shown
    assert "no advice, not enough failures: 1 of 3" in shown
    assert run([*argv, "--json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    data = envelope["data"]
    assert envelope["schema"] == "ett.whatif/v1"
    assert (
        sum(data["after"]["ns"].values()) == data["after"]["total_ns"] == data["before"]["total_ns"] - data["gain_ns"]
    )
    assert [edit["edit"] for edit in data["edits"]] == ["compilation=-75%", "remove host_failure"]
    assert run(["whatif", "--events", str(tmp_path), "--remove", "cosmic_rays"]) == 2
    assert "host_failure" in capsys.readouterr().err
