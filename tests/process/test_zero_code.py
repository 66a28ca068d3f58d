"""Unmodified PyTorch programs under `ett launch`: what the account says, against what the programs themselves say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from launched_job import PROGRAMS, LaunchedJob

from ett.accounting import account
from ett.event_reader import read_folder
from ett.report import build_report, report_json

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN, DDP, MARKED = (
    str(path) for path in (EXAMPLES / "plain_loop.py", EXAMPLES / "ddp_loop.py", PROGRAMS / "marked_loop.py")
)
NS = 1_000_000_000
SLEEP_NS = 20_000_000  # of each step of marked_loop.py, before its optimizer steps
# A report's seconds are those of whole nanoseconds.
ROUNDING_S = 1e-6

pytestmark = [pytest.mark.process, pytest.mark.slow]


def report(job: LaunchedJob) -> dict[str, Any]:
    log = read_folder(job.job_dir)
    assert [record.data["error"] for record in log.records if record.ev == "hook_failed"] == []
    found = account(log, as_of_ns=max(record.wall_ns for record in log.records) + NS)
    assert found is not None
    data: dict[str, Any] = report_json(build_report(found))["data"]
    assert sum(data["ns"].values()) == data["total_ns"]
    return data


class Mark(NamedTuple):
    attempt: int
    step: int
    begin_ns: int
    end_ns: int


def marks(job: LaunchedJob) -> dict[tuple[int, int], Mark]:
    found = [Mark(*map(int, line.split())) for line in (job.folder / "marks").read_text().splitlines()]
    return {(mark.attempt, mark.step): mark for mark in found}


def steps_within_marks(job: LaunchedJob) -> dict[tuple[int, int], tuple[int, int]]:
    """Return each step's (begin, end), after a check against the program's own looks at the clock around them.

    The order of the looks is certain on a busy machine, too: a step is not over before the program has slept in it, and
    is when the program looks again; it begins before the first look, where the last one ended.
    """
    steps = {(s.att, s.data["step"]): (s.data["b_mono"], s.data["e_mono"]) for s in job.records("step")}
    own = marks(job)
    assert steps.keys() == own.keys()
    for (attempt, number), (begin_ns, end_ns) in steps.items():
        mark = own[attempt, number]
        assert mark.begin_ns + SLEEP_NS <= end_ns <= mark.end_ns
        assert begin_ns <= mark.begin_ns
        before = steps.get((attempt, number - 1))
        assert before is None or begin_ns == before[1]
    return steps


def test_a_plain_loop_is_accounted_for_without_a_change(job: LaunchedJob) -> None:
    assert job.run(PLAIN, "--accumulate", "4", "--save-every", "5", "--step-s", "0.005") == 0, job.err
    steps = job.records("step")
    assert [step.data["step"] for step in steps] == list(range(1, 31))
    assert {step.data["samples"] for step in steps} == {64}
    assert [commit.data["step"] for commit in job.records("ckpt_commit")] == [5, 10, 15, 20, 25, 30, 30]
    assert [commit.data["cursor"] for commit in job.records("ckpt_commit")][:6] == [320, 640, 960, 1280, 1600, 1920]
    uris = [Path(commit.data["uri"]).name for commit in job.records("ckpt_commit")]
    assert uris == ["plain_loop.pt"] * 6 + ["plain_loop.pt.final"]
    data = report(job)
    assert data["state"] == "SUCCEEDED"
    parts = {"initialization.imports", "initialization.data_warmup", "wasted.eval", "wasted.ckpt_save"}
    assert parts | {"effective.new_data", "shutdown.final_save", "shutdown.eval"} <= data["detail"].keys()
    assert not any(name.startswith("wasted.") and "untracked" in name for name in data["detail"])
    training_s = (steps[-1].data["e_mono"] - steps[0].data["b_mono"]) / NS
    assert 120 * 0.005 < data["seconds"]["effective"] < training_s
    assert data["flags"] == ["inferred_by_hooks"]


def test_hooks_change_no_number(tmp_path: Path) -> None:
    printed = []
    for hooks in ("all", "none"):
        (tmp_path / hooks).mkdir()
        job = LaunchedJob(tmp_path / hooks)
        assert job.run("--hooks", hooks, PLAIN) == 0, job.err
        printed.append(job.out)
        assert bool(job.records("step")) is (hooks == "all")
    assert printed[0] == printed[1]
    assert "weights" in printed[0]


def test_a_killed_loop_replays_what_its_own_clock_says(job: LaunchedJob) -> None:
    # Without stalls of the data, which a busy machine may have and which are no part of a step.
    assert job.run("--hooks=-data", "--max-restarts", "1", MARKED) == 0, job.err
    (restore,) = job.records("restore")
    assert (restore.att, restore.data["step"], restore.data["cursor"]) == (2, 20, 160)
    steps = steps_within_marks(job)
    data = report(job)
    # Steps 1 to 27 of the first attempt count, then 28 to 40 of the second; 21 to 27 were paid twice.
    replayed_s = (steps[2, 27][1] - steps[2, 21][0]) / NS
    new_s = (steps[1, 27][1] - steps[1, 1][0] + steps[2, 40][1] - steps[2, 27][1]) / NS
    saves_s = sum(end_ns - begin_ns for begin_ns, end_ns in saves_between_steps(job)) / NS
    assert data["detail"]["wasted.replay"] == pytest.approx(replayed_s, abs=ROUNDING_S)
    assert data["seconds"]["effective"] == pytest.approx(new_s - saves_s, abs=ROUNDING_S)
    assert [c.data["cursor"] for c in job.records("ckpt_commit")] == [80, 160, 240, 320]
    assert {Path(c.data["uri"]).name for c in job.records("ckpt_commit")} == {f"step-{n}.pt" for n in (10, 20, 30, 40)}
    assert "cursor_unknown" not in data["flags"]


def saves_between_steps(job: LaunchedJob) -> list[tuple[int, int]]:
    """Return (begin, end) of each save but the last, which is after the last step."""
    ends = {(r.att, r.data["id"]): r.mono_ns for r in job.records("span_end")}
    saves = [r for r in job.records("span_begin") if r.data["name"] == "ckpt_save"]
    return [(r.mono_ns, ends[r.att, r.data["id"]]) for r in saves[:-1]]


def test_a_restarted_loop_that_loads_nothing_is_never_effective(job: LaunchedJob) -> None:
    assert job.run("--hooks=-data", "--max-restarts", "1", MARKED, "--no-load") == 0, job.err
    assert [record.att for record in job.records("cursor_unknown")] == [2]
    steps = steps_within_marks(job)
    data = report(job)
    first_s = (steps[1, 27][1] - steps[1, 1][0]) / NS
    again_s = (steps[2, 40][1] - steps[2, 1][0]) / NS
    saves_s = sum(end_ns - begin_ns for begin_ns, end_ns in saves_between_steps(job)) / NS
    found_s = data["seconds"]["effective"] + data["detail"]["wasted.cursor_unknown"]
    assert found_s == pytest.approx(first_s + again_s - saves_s, abs=ROUNDING_S)
    assert 27 * SLEEP_NS / NS < data["seconds"]["effective"] < first_s
    assert 40 * SLEEP_NS / NS < data["detail"]["wasted.cursor_unknown"] < again_s
    assert "cursor_unknown" in data["flags"]


def test_a_first_attempt_from_a_foreign_file_starts_at_nothing(job: LaunchedJob) -> None:
    elsewhere = LaunchedJob(job.folder)
    assert elsewhere.run(MARKED) == 137
    elsewhere.job_dir.rename(job.folder / "first job")
    assert job.run(MARKED) == 0, job.err
    assert not job.records("restore", "cursor_unknown")
    assert job.records("step")[0].data["step"] == 1
    assert report(job)["detail"].get("wasted.replay", 0) == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_ddp_ranks_share_steps_and_position_over_a_restart(job: LaunchedJob, rank: int) -> None:
    chaos = f"kill:rank={rank},step=50"
    assert job.run("--nproc", "2", "--max-restarts", "1", "--chaos", chaos, DDP) == 0, job.err
    steps = {(s.att, s.rank): [] for s in job.records("step")}
    for step in job.records("step"):
        steps[step.att, step.rank].append(step.data["step"])
    assert steps[2, 0] == steps[2, 1] == list(range(41, 61))
    assert {s.data["samples"] for s in job.records("step")} == {16}
    assert {(r.data["step"], r.data["cursor"]) for r in job.records("restore")} == {(40, 1280)}
    data = report(job)
    assert data["interruptions"]["failures"] == 1
    assert data["detail"]["wasted.replay"] > 0
    assert "initialization.process_group" in data["detail"]
    assert not {"cursor_unknown", "samples_inferred"} & set(data["flags"])


def test_a_failed_program_has_no_end_of_training(job: LaunchedJob) -> None:
    assert job.run(PLAIN, "--save-every", "1000", "--checkpoint", "no/such/folder/x.pt") == 1
    data = report(job)
    assert not any(name.startswith("shutdown.") for name in data["detail"])
    assert data["detail"]["wasted.in_flight"] > 0
    assert data["detail"]["wasted.unsaved_tail"] > 0
