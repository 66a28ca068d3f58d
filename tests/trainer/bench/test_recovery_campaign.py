"""The fault campaign without its jobs: what it runs, and that it notices what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ett.event_log import EventWriter
from ett.event_schema import NS
from ett.figures import load_targets
from ett.recovery import FaultPlan
from ett.recovery.fault import HOWS, KINDS
from ett.spare_process import rank_name
from ett.trainer.bench.campaign_job import Ended, same_facts
from ett.trainer.bench.campaign_verdict import attempt_spans, compare_times, moments, wrong_bits, wrongs
from ett.trainer.bench.job_observer import attempt_of_spare
from ett.trainer.bench.recovery_campaign import WORKLOAD, Campaign, Findings, blind_spots, figures_of

START_S = 1000
FACTS = {
    "step": 4,
    "cursor": 40,
    "dense": {"digest": "aa", "bytes": 3},
    "tables": [{"name": "t", "rows": 2, "digest": "bb", "bytes": 8}],
}


class Hands:
    """A clock whose hands the test sets."""

    def __init__(self) -> None:
        self.now_s = float(START_S)

    def wall_ns(self) -> int:
        return int((self.now_s + 5_000_000) * NS)

    def mono_ns(self) -> int:
        return int(self.now_s * NS)


def write_log(folder: Path, clock: Hands, *, cause: str = "injected_fault") -> None:
    """Two attempts: slow steps, a kill at 3.0 that is seen at 3.25, a restore of a second, a step that ends at 9."""

    def tell(writer: EventWriter, at_s: float, ev: str, **fields: Any) -> None:
        clock.now_s = START_S + at_s
        writer.emit(ev, **fields)

    sup = EventWriter(folder / "events" / "0", "sup", {"job": "j"}, clock=clock)
    first, second = (
        EventWriter(folder / "events" / str(att), "r0", {"job": "j", "att": att, "rank": 0}, clock=clock)
        for att in (1, 2)
    )
    tell(sup, 0, "job_submitted", att=0)
    tell(sup, 1, "attempt_started", att=1, world=1)
    tell(first, 1.5, "fault_injected", fault="slow:rank=0,step=1,by=1s,attempt=1", kind="slow", point="step", step=1)
    tell(first, 3, "step", step=1, b_mono=1002 * NS, e_mono=1003 * NS, c0=0, c1=10, world=1)
    tell(first, 3, "fault_injected", fault="kill:rank=0,step=2,point=step,attempt=1", kind="kill", point="step", step=2)
    tell(sup, 3.25, "attempt_ended", att=1, reason="failed", cause=cause)
    tell(sup, 4, "attempt_started", att=2, world=1)
    tell(second, 5, "span_begin", id=1, name="restore", blocking=True)  # the node of the start
    tell(second, 6, "span_begin", id=2, name="restore", blocking=True, parent=1)
    tell(second, 7, "span_end", id=2, name="restore", blocking=True)
    tell(second, 7.5, "span_end", id=1, name="restore", blocking=True)
    tell(second, 9, "step", step=1, b_mono=1008 * NS, e_mono=1009 * NS, c0=0, c1=10, world=1)
    tell(sup, 10, "attempt_ended", att=2, reason="completed")
    tell(sup, 10, "job_ended", att=0, status="succeeded")
    for writer in (sup, first, second):
        writer.close()


@pytest.fixture
def ended(tmp_path: Path) -> Ended:
    write_log(tmp_path, Hands())
    return Ended(
        code=0,
        err="",
        job_dir=tmp_path,
        facts=same_facts(FACTS),
        losses='{"step": 1, "loss": 0.5}\n',
        report={"ns": {"effective": 10 * NS}, "total_ns": 10 * NS, "total_s": 10.0, "interruptions": {"failures": 1}},
        lives_s={1: (1001.1, 1003.1), 2: (1004.1, 1009.9)},
        tolerance_s=0.5,
        wall_s=10.2,
    )


def test_the_quick_form_has_every_kind_and_every_way_to_hang() -> None:
    cells = Campaign.read(WORKLOAD, Path(), "", quick=True).cells
    faults = [fault for cell in cells for fault in FaultPlan.parse(cell.chaos).faults]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.how for fault in faults if fault.kind == "hang"} == set(HOWS)
    assert {fault.point for fault in faults} >= {"startup", "restore", "ckpt_before_commit", "step"}


def test_a_lost_rank_is_timed_with_a_spare_and_without() -> None:
    cells = Campaign.read(WORKLOAD, Path(), "", quick=False).cells
    timed = [cell.restart for cell in cells if cell.begins_with_a_kill_at_a_step]
    assert {way: timed.count(way) for way in ("attempt_spares", "spare", "inprocess")} == {
        "attempt_spares": 1,
        "spare": 2,
        "inprocess": 1,
    }


def test_a_job_that_ended_well_has_nothing_wrong(ended: Ended) -> None:
    assert wrongs(ended, ended, 1) == []


def test_a_campaign_that_is_told_lies_notices_each(ended: Ended) -> None:
    assert blind_spots(ended, num_failures=1) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"code": 6, "err": "ett: no"}, "ended with code 6: ett: no"),
        ({"facts": {}}, "step is None, undisturbed 4"),
        ({"losses": ""}, "0 lines instead of 1"),
        ({"err": "ett: chaos: kill:step=9 never fired"}, "never fired"),
        ({"report": {}}, "says nothing"),
        ({"lives_s": {1: (1001.1, 1003.1)}}, "nobody saw attempts [2]"),
        ({"lives_s": {1: (1001.1, 1003.1), 2: (1004.1, 1011.0)}}, "attempt 2 ends 1.00 s before what was seen"),
        ({"wall_s": 8.0}, "the job took 10.00 s, the command 8.00 s"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str, ended: Ended) -> None:
    found = wrongs(replace(ended, **change), ended, 1)
    assert any(said in line for line in found), found


def test_a_failure_that_the_log_does_not_call_injected_is_wrong(ended: Ended, tmp_path: Path) -> None:
    write_log(tmp_path / "other", Hands(), cause="value_error")
    found = wrongs(replace(ended, job_dir=tmp_path / "other"), ended, 1)
    assert found == ["the attempt_ended of attempt 1 has the cause 'value_error', not injected_fault"]


def test_of_a_host_that_was_lost_the_losses_are_those_from_its_checkpoint_on(ended: Ended) -> None:
    whole = replace(ended, losses="1\n2\n3\n")
    assert wrong_bits(replace(ended, losses="3\n"), whole) != []
    assert wrongs(replace(ended, losses="3\n"), whole, 1, is_other_host=True) == []
    assert wrongs(replace(ended, losses="2\n"), whole, 1, is_other_host=True) != []
    assert wrongs(replace(ended, losses=""), whole, 1, is_other_host=True) != []


def test_a_failure_is_timed_from_the_fault_to_the_end_of_the_first_step_without_reading(ended: Ended) -> None:
    assert moments(ended) == {"detected_s": 0.25, "back_s": 5.0, "read_s": 1.0}


def test_attempts_are_compared_in_the_hosts_own_time(ended: Ended) -> None:
    assert attempt_spans(ended) == {1: (1001.0, 1003.25), 2: (1004.0, 1010.0)}
    assert compare_times({1: (1.0, 2.0)}, {1: (1.4, 2.6)}, 0.5) == [
        "attempt 1 ends 0.60 s before what was seen, tolerance 0.50 s"
    ]


@pytest.mark.parametrize(
    ("name", "attempt"),
    [(rank_name({"RANK": "12", "ETT_ATTEMPT": "10"}), 10), ("ett-spare", None), ("python", None)],
)
def test_an_observer_knows_spares_that_have_become_ranks(name: str, attempt: int | None) -> None:
    assert attempt_of_spare(name.encode()) == attempt


def test_the_figures_are_those_of_the_table() -> None:
    rows: list[dict[str, Any]] = [
        {"cell": "a", "wrong": [], "restart": "attempt", "detected_s": 0.2, "back_s": 6.0},
        {"cell": "b", "wrong": ["bits"], "restart": "spare", "detected_s": 0.1, "back_s": 0.9},
        {"cell": "d", "wrong": [], "restart": "inprocess", "detected_s": 0.1, "back_s": 4.9},
        {"cell": "c", "wrong": [], "restart": "attempt"},
        {"cell": "e", "wrong": [], "restart": "attempt_spares", "detected_s": 0.3, "back_s": 3.0},
    ]
    figures = figures_of(Findings(rows=rows, imports_s=[3.0]), ["a lie"])
    assert {figure.name: figure.samples for figure in figures} == {
        "dead_rank_detected_s": [0.2, 0.3, 0.1, 0.1],
        "process_restart_vs_import_torch": [1.0],
        "inprocess_restart_s": [0.9],
        "campaign_wrong_results": [2],
    }
    assert {figure.name for figure in figures} <= set(load_targets("recovery", quick=False))
    assert "b: bits; a lie" in figures[-1].reason
