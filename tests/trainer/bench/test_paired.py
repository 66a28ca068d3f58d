"""The paired benchmark without its jobs: which legs there are, what is kept of them, what they come to."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ett.errors import ConfigError, CorruptState, ThresholdMissed, UsageError
from ett.event_log import EventWriter
from ett.event_schema import COMPONENTS, NS
from ett.figures import judge, load_targets
from ett.recipe import resolve
from ett.trainer.bench.bench_ett import WORKLOAD, run_campaign
from ett.trainer.bench.campaign_job import CampaignJob, Ended
from ett.trainer.bench.job_observer import Life
from ett.trainer.bench.paired_account import account_row, mean_loss, wrongs
from ett.trainer.bench.paired_bars import main as draw
from ett.trainer.bench.paired_bars import paired_bars
from ett.trainer.bench.paired_figures import figures_of, shape_detail
from ett.trainer.bench.paired_leg import LegRunner
from ett.trainer.bench.paired_lines import shape_lines
from ett.trainer.bench.paired_results import ResultsFile
from ett.trainer.bench.paired_workload import (
    OPTIMISED,
    PLAIN,
    UNDISTURBED,
    Campaign,
    JobPlan,
    Leg,
    Shape,
    Switch,
    median_step_s,
    plan_job,
)
from ett.trainer.bench.plain_leg import attempt_of_plain_rank, observed_records

PLAN = JobPlan(steps=60, every=10, kills=(26, 46))
ORIGIN = {"commit": "abc"}


@pytest.fixture
def known() -> Any:
    return resolve(os.devnull).sections


def small(**changes: Any) -> Campaign:
    shape = Shape(name="s", format="criteo", rows=10, compiled="", set={"train.batch_size": 4})
    switches = tuple(Switch(name=n, on={f"a.{n}": 1}, off={f"a.{n}": 0}) for n in ("x", "y"))
    campaign = Campaign(
        shapes=(shape,),
        switches=switches,
        job={"launch.nproc": 2},
        repeats=2,
        productive_s=60.0,
        interval_s=10.0,
        leave_out=True,
        pilot_steps=5,
        poll_s=0.1,
        plain_ett=(0.59, 0.85),
        fingerprint="f",
    )
    return replace(campaign, **changes)


def row(
    effective_s: float, *, scheduling_s: float = 0.0, initialization_s: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """A leg whose lost time before its first failure is a third of all of it."""
    ns = dict.fromkeys(COMPONENTS, 0)
    ns |= {
        "effective": int(effective_s * NS),
        "scheduling": int(scheduling_s * NS),
        "initialization": int(initialization_s * NS),
    }
    return {
        "wall_ns": sum(ns.values()),
        "ns": ns,
        "first_ns": {name: value // 3 for name, value in ns.items()},
        "outside_ns": [1, 1],
        "state": "succeeded",
        "code": 0,
        "failures": 2,
        "faults": list(PLAN.kills),
        "steps": 60,
        "samples": 240,
        "step_ms": 100.0,
        "facts": {"dense": "aa"},
        "loss": 0.5,
        "publish_s": 10.0,
    } | changes


WHOLE = row(60, failures=0, faults=[])


def rows_of(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """Plain 60 of 100 s, optimised 60 of 64 s; without one switch 60 of 80 s."""
    legs = {
        PLAIN: row(60, scheduling_s=10, initialization_s=30),
        OPTIMISED: row(60, scheduling_s=1, initialization_s=3),
        UNDISTURBED: WHOLE,
    }
    return {str(leg): legs.get(leg.variant, row(60, initialization_s=20)) for leg in campaign.legs()}


def test_the_quick_form_has_fewer_legs_and_no_switch_left_out(known: Any) -> None:
    quick, full = (Campaign.read(WORKLOAD, known, quick=is_quick) for is_quick in (True, False))
    assert [leg.variant for leg in quick.legs()] == [UNDISTURBED, PLAIN, OPTIMISED]
    assert len(full.shapes) >= 4 and full.repeats == 3
    assert len(full.legs()) == sum(1 + 3 * (2 + len(full.switches_of(shape))) for shape in full.shapes)


@pytest.mark.slow
def test_every_leg_of_the_campaign_is_a_recipe_that_resolves(known: Any) -> None:
    campaign = Campaign.read(WORKLOAD, known, quick=False)
    shapes = {shape.name: shape for shape in campaign.shapes}
    told = [campaign.settings(shapes[leg.shape], leg) for leg in campaign.legs()]
    for settings in {json.dumps(settings): settings for settings in told}.values():  # those of repeats are the same
        resolve(os.devnull, [f"{name}={json.dumps(value)}" for name, value in settings.items()])


def test_a_switch_without_a_key_in_this_version_is_absent_not_an_error(tmp_path: Path, known: Any) -> None:
    text = WORKLOAD.read_text() + '\n[[switch]]\nname = "magic"\non = { "recovery.magic" = true }\noff = {}\n'
    (tmp_path / "ett.toml").write_text(text)
    campaign = Campaign.read(tmp_path / "ett.toml", known, quick=True)
    assert "magic" in campaign.absent
    assert "magic" not in [switch.name for switch in campaign.switches]


def test_legs_are_interleaved_and_begin_with_another_variant_each_time() -> None:
    legs = small(repeats=3).legs()
    assert str(legs[0]) == "s, undisturbed"
    assert [leg.variant for leg in legs if leg.repeat == 1] == [PLAIN, OPTIMISED, "without x", "without y"]
    assert [leg.variant for leg in legs if leg.repeat == 2] == [OPTIMISED, "without x", "without y", PLAIN]
    assert len({str(leg) for leg in legs}) == len(legs)


def test_a_leg_sets_every_switch_on_but_the_one_that_it_leaves_out() -> None:
    campaign = small()
    settings = campaign.settings(campaign.shapes[0], Leg("s", "without y", 1))
    plain = {"launch.nproc": 2, "data.format": "criteo", "train.batch_size": 4}
    assert settings == plain | {"a.x": 1, "a.y": 0}
    assert campaign.settings(campaign.shapes[0], Leg("s", PLAIN, 1)) == plain


def test_a_switch_that_a_model_cannot_have_is_neither_on_nor_left_out() -> None:
    campaign = small()
    shape = replace(campaign.shapes[0], without=("x",))
    legs = replace(campaign, shapes=(shape,)).legs()
    assert "without x" not in [leg.variant for leg in legs]
    assert "a.x" not in campaign.settings(shape, Leg("s", OPTIMISED, 1))


def test_failures_come_half_way_between_two_checkpoints() -> None:
    plan = plan_job(step_s=0.1, productive_s=120.0, interval_s=6.0)
    assert (plan.steps, plan.every, plan.kills) == (1200, 60, (391, 811))
    assert plan.chaos == ("kill:rank=1,step=391,times=1", "kill:rank=1,step=811,times=1")
    assert [step % plan.every for step in plan.kills] == [31, 31]


def test_jobs_of_slow_steps_are_still_long_enough_to_save_and_fail_twice() -> None:
    plan = plan_job(step_s=100.0, productive_s=1.0, interval_s=1.0)
    first, second = plan.kills
    assert plan.every < first < second < plan.steps and first // plan.every < second // plan.every


def test_a_step_lasts_to_the_begin_of_the_next_one() -> None:
    spans = [(at * NS, at * NS + NS // 2) for at in (0, 5, 6, 7, 8, 9)]
    assert median_step_s(spans) == 1.0


def test_rows_are_there_again_when_a_campaign_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "campaign.jsonl"
    ResultsFile(file, ORIGIN).add("a", {"value": 1})
    again = ResultsFile(file, ORIGIN)
    again.add("b", {"value": 2})
    assert ResultsFile(file, ORIGIN).rows == {"a": {"key": "a", "value": 1}, "b": {"key": "b", "value": 2}}


def test_a_campaign_that_was_killed_at_any_byte_keeps_every_row_that_was_whole(tmp_path: Path) -> None:
    file = tmp_path / "campaign.jsonl"
    results = ResultsFile(file, ORIGIN)
    for name in ("a", "b"):
        results.add(name, {"value": name})
    whole = file.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        resumed = ResultsFile(file, ORIGIN)
        num_rows = max(0, sum(end <= size for end in ends) - 1)
        assert list(resumed.rows) == ["a", "b"][:num_rows]
        for name in ["a", "b"][num_rows:]:
            resumed.add(name, {"value": name})
        assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"origin": {"commit": "xyz"}, "schema": "ett.bench.paired/v1"}\n', ConfigError),
        ('{"schema": "other"}\n', CorruptState),
        ("a letter to a friend", CorruptState),
        ('{"origin": {"commit": "abc"}, "schema": "ett.bench.paired/v1"}\nwhat?\n', CorruptState),
        ('{"origin": {"commit": "abc"}, "schema": "ett.bench.paired/v1"}\n{"value": 1}\n', CorruptState),
        ("1\n", CorruptState),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    text: str, error: type[Exception], tmp_path: Path
) -> None:
    file = tmp_path / "campaign.jsonl"
    file.write_text(text)
    with pytest.raises(error):
        ResultsFile(file, ORIGIN)
    assert file.read_text() == text


def test_a_campaign_runs_only_what_is_not_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign, told = small(), rows_of(small())
    runner = LegRunner(campaign=campaign, scratch=tmp_path)
    ran: list[str] = []

    def take(self: LegRunner, shape: Shape, leg: Leg, plan: JobPlan) -> dict[str, Any]:
        assert plan == PLAN
        ran.append(str(leg))
        if len(ran) == 4:
            raise KeyboardInterrupt
        return told[str(leg)]

    monkeypatch.setattr(LegRunner, "pilot", lambda self, shape: PLAN)
    monkeypatch.setattr(LegRunner, "run", take)
    file = tmp_path / "campaign.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_campaign(campaign, runner, ResultsFile(file, ORIGIN))
    monkeypatch.setattr(LegRunner, "pilot", lambda self, shape: pytest.fail("it is planned already"))
    results = ResultsFile(file, ORIGIN)
    assert run_campaign(campaign, runner, results) == {"s": PLAN}
    assert [*ran[:3], *ran[4:]] == [str(leg) for leg in campaign.legs()]
    assert {key for key in results.rows if not key.startswith("plan")} == set(told)


@pytest.mark.parametrize(("cache", "num_pilots"), [("{caches}", 1), ("elsewhere", 0)])
def test_caches_that_legs_share_are_filled_anew_where_a_campaign_goes_on(
    cache: str, num_pilots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = small(switches=(Switch(name="x", on={"compile.uri": cache}, off={"compile.uri": ""}),))
    told, ran = rows_of(campaign), list[str]()

    def pilot(self: LegRunner, shape: Shape) -> JobPlan:
        ran.append("pilot")
        return PLAN

    def take(self: LegRunner, shape: Shape, leg: Leg, plan: JobPlan) -> dict[str, Any]:
        ran.append(leg.variant)
        if ran[-3:] == ["pilot", UNDISTURBED, PLAIN]:
            raise KeyboardInterrupt
        return told[str(leg)]

    monkeypatch.setattr(LegRunner, "pilot", pilot)
    monkeypatch.setattr(LegRunner, "run", take)
    file, runner = tmp_path / "campaign.jsonl", LegRunner(campaign=campaign, scratch=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_campaign(campaign, runner, ResultsFile(file, ORIGIN))
    run_campaign(campaign, runner, ResultsFile(file, ORIGIN))
    assert ran[3:] == ["pilot"] * num_pilots + [leg.variant for leg in campaign.legs()[1:]]
    ran.clear()
    run_campaign(campaign, runner, ResultsFile(file, ORIGIN))
    assert ran == []


def test_a_leg_that_is_wrong_ends_the_campaign_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LegRunner, "pilot", lambda self, shape: PLAN)
    monkeypatch.setattr(LegRunner, "run", lambda self, shape, leg, plan: WHOLE | {"steps": 59})
    results = ResultsFile(tmp_path / "campaign.jsonl", ORIGIN)
    with pytest.raises(ThresholdMissed, match="s, undisturbed: steps: 59, expected 60"):
        run_campaign(small(), LegRunner(campaign=small(), scratch=tmp_path), results)
    assert list(results.rows) == ["plan s"]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_leg_that_failed_before_it_had_a_log_is_told_by_its_last_words(
    has_ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: CampaignJob, *args: object) -> Ended:
        if has_ended:
            return Ended(code=2, err="said before\nett: no such key\n", job_dir=self.job_dir)
        raise subprocess.TimeoutExpired("ett launch", 660.0)

    campaign = small()
    runner, shape = LegRunner(campaign=campaign, scratch=tmp_path), campaign.shapes[0]
    monkeypatch.setattr(CampaignJob, "run", run)
    leg = Leg("s", OPTIMISED, 1)
    said = "code 2: ett: no such key" if has_ended else "code -9: ett: it took more than 660 s and was killed"
    assert wrongs(leg, runner.run(shape, leg, PLAN), PLAN, WHOLE) == [f"it ended with {said}"]
    with pytest.raises(ThresholdMissed, match="the pilot of s ended with code"):
        runner.pilot(shape)


@pytest.mark.parametrize(
    ("variant", "change", "said"),
    [
        (OPTIMISED, {"code": 3, "said": "no"}, "ended with code 3: no"),
        (OPTIMISED, {"state": "failed"}, "state: failed"),
        (OPTIMISED, {"faults": [26]}, "faults: [26]"),
        (OPTIMISED, {"failures": 1}, "failures: 1"),
        (PLAIN, {"samples": 239}, "samples: 239, expected 240"),
        (OPTIMISED, {"facts": {"dense": "bb"}}, "facts: {'dense': 'bb'}"),
        (OPTIMISED, {"loss": 0.5000001}, "loss: 0.5000001"),
        (OPTIMISED, {"wall_ns": 1}, "the components sum to"),
        (PLAIN, {"outside_ns": [-NS, 0]}, "leaves its command by 1.000 s"),
        (PLAIN, {"loss": 0.51}, "did not learn the same"),
        (PLAIN, {"loss": None}, "did not learn the same"),
    ],
)
def test_what_is_wrong_with_a_leg_is_said(variant: str, change: dict[str, Any], said: str) -> None:
    leg = Leg("s", variant, 1)
    right = row(60, facts={} if variant == PLAIN else WHOLE["facts"])
    assert wrongs(leg, right, PLAN, WHOLE) == []
    assert any(said in line for line in wrongs(leg, right | change, PLAN, WHOLE))


def test_an_undisturbed_leg_without_a_checkpoint_compares_with_nothing() -> None:
    leg = Leg("s", UNDISTURBED, 0)
    assert wrongs(leg, WHOLE, PLAN, None) == []
    assert wrongs(leg, WHOLE | {"facts": {}}, PLAN, None) == ["it has no checkpoint to compare"]


def test_figures_are_those_of_the_pairs() -> None:
    campaign = small()
    figures = {figure.name: figure for figure in figures_of(campaign, rows_of(campaign))}
    assert figures["gain_points"].samples == pytest.approx([33.75, 33.75])
    assert figures["optimised_ett"].samples == pytest.approx([0.9375, 0.9375])
    assert figures["lost_seconds_removed"].samples == pytest.approx([0.9, 0.9])
    judged = judge(load_targets("ett", quick=False), list(figures.values()), "cpu")
    assert [each["met"] for each in judged] == [True, False, True]


def test_a_shape_whose_plain_leg_is_not_as_the_papers_is_no_sample() -> None:
    campaign = small(plain_ett=(0.7, 0.85))
    figures = figures_of(campaign, rows_of(campaign))
    assert [figure.value for figure in figures] == [None, None, None]
    assert figures[0].reason == "s: plain ETT is 60.0%, outside of 70% to 85%"


def test_figures_say_what_the_optimised_legs_did_without() -> None:
    campaign = small(absent=("magic",))
    assert {f.reason for f in figures_of(campaign, rows_of(campaign))} == {"not switched on: magic"}


def test_a_gain_is_split_into_what_the_first_start_saves_and_what_restarts_repeat() -> None:
    campaign = small()
    told = shape_detail(campaign, rows_of(campaign), "s")
    gain = told["gain_by_component"]["initialization"]
    assert gain == {"points": 25.312, "saved_s": 27.0, "direct_s": 9.0, "cascade": 3.0}
    assert told["gain_by_component"]["shutdown"]["cascade"] is None
    points = sum(of_component["points"] for of_component in told["gain_by_component"].values())
    assert points == pytest.approx(told["gain_points"]["median"], abs=0.01)


def test_a_switch_costs_the_points_that_its_leg_has_less() -> None:
    campaign = small()
    left_out = shape_detail(campaign, rows_of(campaign), "s")["left_out"]
    assert left_out["x"]["costs_points"]["median"] == pytest.approx(18.75)
    assert left_out["publishing outside the job"] == {
        "ett": {"median": 0.8108, "least": 0.8108, "most": 0.8108, "n": 2},
        "costs_points": {"median": 12.6689, "least": 12.6689, "most": 12.6689, "n": 2},
        "is_computed": True,
    }


def test_both_legs_are_printed_side_by_side() -> None:
    campaign = small()
    lines = shape_lines("s", shape_detail(campaign, rows_of(campaign), "s"))
    assert "ETT 60.0 (60.0 to 60.0) % plain, 93.8 (93.8 to 93.8) % optimised: +33.8" in lines[1]
    (initialization,) = [line for line in lines if line.startswith("  initialization")]
    assert initialization.split()[-4:] == ["27.0", "9.0", "3.0x", "+25.3"]
    assert sum(line.startswith("  without ") for line in lines) == 3


def test_the_picture_has_a_bar_for_each_component_that_took_time(tmp_path: Path) -> None:
    campaign = small()
    shapes = {"a & b": shape_detail(campaign, rows_of(campaign), "s")}
    (tmp_path / "results.json").write_text(json.dumps({"data": {"detail": {"shapes": shapes}}}))
    draw([str(tmp_path / "results.json"), str(tmp_path / "out.svg")])
    picture = (tmp_path / "out.svg").read_text()
    titles = [node.text for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("title")]
    assert titles[1:4] == ["plain, effective: 60.0 s", "plain, initialization: 30.0 s", "plain, scheduling: 10.0 s"]
    assert "93.8 % of 64 s" in picture
    assert picture == paired_bars(shapes)


def test_results_of_another_benchmark_are_not_drawn(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"data": {"detail": {}}}))
    with pytest.raises(UsageError, match="no pairs of jobs"):
        draw([str(tmp_path / "results.json"), str(tmp_path / "out.svg")])


def test_attempts_of_torchrun_are_told_by_its_restarts_and_children_of_ranks_are_none() -> None:
    assert attempt_of_plain_rank({b"TORCHELASTIC_RESTART_COUNT": b"2"}) == 3
    assert attempt_of_plain_rank({b"TORCHELASTIC_RESTART_COUNT": b"2", b"ETT_ATTEMPT": b"3"}) is None
    assert attempt_of_plain_rank({}) is None


def test_an_observer_tells_what_a_supervisor_would_have() -> None:
    lives = {1: Life(20, 50), 2: Life(58, 90)}
    assert observed_records(lives, (10, 100), 9, num_ranks=3, is_done=True) == [
        (10, "job_submitted", {"att": 0}),
        (10, "allocated", {"att": 1, "nodes": 1}),
        (20, "attempt_started", {"att": 1, "nodes": 1, "world": 3}),
        (58, "attempt_ended", {"att": 1, "reason": "failed", "class": "infra"}),
        (58, "allocated", {"att": 2, "nodes": 1}),
        (58, "attempt_started", {"att": 2, "nodes": 1, "world": 3}),
        (99, "attempt_ended", {"att": 2, "reason": "completed"}),
        (100, "job_ended", {"att": 0, "status": "succeeded"}),
    ]


class Hands:
    """A clock whose hands the test sets."""

    now_s = 0.0

    def wall_ns(self) -> int:
        return int((self.now_s + 5_000_000) * NS)

    def mono_ns(self) -> int:
        return int(self.now_s * NS)


def test_a_legs_components_sum_to_what_a_stopwatch_beside_its_command_shows(tmp_path: Path) -> None:
    clock = Hands()
    sup = EventWriter(tmp_path / "events" / "0", "sup", {"job": "j"}, clock=clock)
    first, second = (
        EventWriter(tmp_path / "events" / str(att), "r0", {"job": "j", "att": att, "rank": 0}, clock=clock)
        for att in (1, 2)
    )

    def tell(writer: EventWriter, at_s: float, ev: str, **fields: Any) -> None:
        clock.now_s = at_s
        writer.emit(ev, **fields)

    tell(sup, 1, "job_submitted", att=0)
    tell(sup, 1, "attempt_started", att=1, world=1)
    tell(first, 4, "step", step=1, b_mono=2 * NS, e_mono=4 * NS, c0=0, c1=10, world=1)
    tell(first, 5, "fault_injected", fault="kill:rank=0,step=2", kind="kill", point="step", step=2)
    tell(sup, 5, "attempt_ended", att=1, reason="failed", **{"class": "infra"})
    tell(sup, 6, "attempt_started", att=2, world=1)
    tell(second, 9, "step", step=2, b_mono=7 * NS, e_mono=9 * NS, c0=10, c1=20, world=1)
    tell(sup, 10, "attempt_ended", att=2, reason="completed")
    tell(sup, 10, "job_ended", att=0, status="succeeded")
    for writer in (sup, first, second):
        writer.close()
    found = account_row(tmp_path, (int(0.5 * NS), 12 * NS))
    assert sum(found["ns"].values()) == found["wall_ns"] == int(11.5 * NS)
    assert (found["ns"]["effective"], found["ns"]["scheduling"]) == (4 * NS, int(3.5 * NS))
    assert (found["first_ns"]["effective"], found["first_ns"]["scheduling"]) == (2 * NS, NS // 2)
    assert found["outside_ns"] == [NS // 2, 2 * NS]
    assert (found["failures"], found["faults"], found["samples"], found["state"]) == (1, [2], 20, "succeeded")


def test_the_mean_loss_is_that_of_all_steps() -> None:
    lines = [json.dumps({"step": n, "loss_hex": value.hex()}) + "\n" for n, value in enumerate((0.25, 0.75))]
    assert mean_loss("".join(lines)) == 0.5
    assert mean_loss("") is None
