from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.cli import run
from ett.event_log import EventWriter
from ett.job_folder import JobFolder, Lease
from ett.launch_plan import LaunchPlan
from ett.recovery.restore_plan import plan_restore


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    """A job that ran once and kept its launch; it has no checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    for name in ("ETT_JOB", "ETT_JOB_DIR", "ETT_RESUME"):
        monkeypatch.delenv(name, raising=False)
    folder = JobFolder(tmp_path / "home" / "jobs" / "ctr-7f3a")
    folder.create()
    recovery = {"max_restarts": 0, "grace_s": 5.0}
    LaunchPlan(kind="script", target="train.py", cwd=str(tmp_path), nproc=2, recovery=recovery).keep(folder, None, {})
    return folder


@pytest.fixture
def saved(job: JobFolder) -> JobFolder:
    """The same with checkpoints of steps 10, 20 and 30."""
    config = CheckpointConfig(uri=str(job.checkpoints), interval="10 steps", keep_last=9)
    checkpointer = Checkpointer(config, model=torch.nn.Linear(3, 2))
    assert checkpointer.restore() is None
    for step in (10, 20, 30):
        checkpointer.save(step, step * 8)
    checkpointer.close()
    return job


def test_the_plan_is_the_newest_checkpoint(saved: JobFolder) -> None:
    plan = plan_restore(saved, None)
    assert (plan.job, plan.step, plan.cursor, plan.newest_step, plan.warnings) == ("ctr-7f3a", 30, 240, 30, ())
    assert plan.num_files > 0
    assert plan.num_bytes > 0


def test_a_chosen_step_shows_what_is_given_up(saved: JobFolder) -> None:
    plan = plan_restore(saved, 10)
    assert (plan.step, plan.newest_step) == (10, 30)
    assert dict(plan.rows())["given up"] == "20 steps up to step 30"


def test_a_chosen_step_lists_the_checkpoints_that_will_be_removed(
    saved: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_restore(saved, None).abandons == ()
    assert plan_restore(saved, 10).abandons == (20, 30)
    assert run(["restore", "ctr", "--step", "10", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["abandons"] == [20, 30]
    assert (data["launch"], data["program"]) == ("ett launch --job ctr-7f3a --resume 10", "train.py")
    assert run(["restore", "ctr", "--step", "10"]) == 2
    assert "checkpoints of steps 20, 30: abandoned at once, deleted by the next save" in capsys.readouterr().out


def test_no_is_an_answer(saved: JobFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert run(["restore", "ctr", "--step", "10"]) == 0
    said = capsys.readouterr()
    assert "nothing was done" in said.out
    assert "interrupted" not in said.err
    assert not saved.events.exists()


def test_a_complete_job_is_found_out_before_the_question(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    writer = EventWriter(saved.events / "0", "sup", {"job": saved.name}, wait_s=None)
    writer.emit("attempt_started", att=1)
    writer.emit("attempt_ended", att=1, reason="completed")
    writer.close()
    assert run(["restore", "ctr", "--yes"]) == 0
    assert "is complete: nothing is left to train" in capsys.readouterr().err
    assert run(["restore", "ctr", "--step", "30"]) == 2  # no terminal to ask on
    assert "no saved step is trained again" in capsys.readouterr().err
    assert run(["restore", "ctr", "--step", "10"]) == 2
    assert "20 steps of it would be trained again" in capsys.readouterr().err


def test_a_program_is_shown_as_a_shell_takes_it() -> None:
    recipe = LaunchPlan(kind="recipe", target="/a b/r.toml", cwd="/", overrides=("data.path=x y",))
    assert recipe.program_text() == "--set 'data.path=x y' '/a b/r.toml'"
    assert LaunchPlan(kind="command", target="sh", args=("-c", "exit 3"), cwd="/").program_text() == "-- sh -c 'exit 3'"


def test_a_damaged_newest_checkpoint_is_passed_over_aloud(saved: JobFolder) -> None:
    newest = max(
        saved.checkpoints.rglob("*"),
        key=lambda path: (path.is_file() and path.suffix not in (".json",), path.stat().st_mtime_ns),
    )
    newest.write_bytes(newest.read_bytes()[:-1])
    plan = plan_restore(saved, None)
    assert plan.step == 20
    assert "passed over" in plan.warnings[0]


def test_json_prints_the_plan_and_starts_nothing(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "ctr", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema"], printed["data"]["step"]) == ("ett.restore/v1", 30)
    assert not saved.events.exists()


def test_without_a_terminal_nothing_starts_unasked(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "ctr-7f3a"]) == 2
    said = capsys.readouterr()
    assert "step 30, 240 samples consumed" in said.out
    assert "--yes" in said.err
    assert not saved.events.exists()


def test_a_running_job_is_found_out_before_the_question(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    lease = Lease(saved)
    assert run(["restore", "ctr-7f3a"]) == 7
    assert "is running" in capsys.readouterr().err
    lease.release()


@pytest.mark.parametrize(
    ("args", "code"),
    [(["ctr"], 10), (["ctr", "--to", "out"], 10), (["feed"], 4), (["../x"], 4), (["ctr", "--step", "-1"], 2)],
)
def test_nothing_to_restore_is_one_clear_error(
    job: JobFolder, capsys: pytest.CaptureFixture[str], args: list[str], code: int
) -> None:
    assert run(["restore", *args]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_step_without_a_checkpoint_lists_those_that_have_one(
    saved: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["restore", "ctr", "--step", "15"]) == 4
    assert "10, 20, 30" in capsys.readouterr().err


def test_an_export_is_a_checkpoint_folder_of_its_own(saved: JobFolder, tmp_path: Path) -> None:
    assert run(["restore", "ctr", "--step", "20", "--to", str(tmp_path / "out")]) == 0
    config = CheckpointConfig(uri=str(tmp_path / "out"), interval="10 steps")
    start = Checkpointer(config, model=torch.nn.Linear(3, 2)).restore()
    assert start is not None
    assert (start.step, start.cursor) == (20, 160)
    assert not saved.events.exists()


def damage_newest_segment(folder: Path) -> None:
    """Flip a bit that no size shows."""
    newest = max(folder.glob("dense/*/*.distcp"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)


def test_plan_asks_nothing_and_starts_nothing(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "ctr", "--plan", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "step 30, 240 samples consumed" in said
    assert "ett launch --job ctr-7f3a" in said
    assert not saved.events.exists()


def test_a_plan_of_a_running_job_can_be_seen(saved: JobFolder) -> None:
    lease = Lease(saved)
    assert run(["restore", "ctr", "--plan"]) == 0
    lease.release()


def test_another_world_size_is_in_the_plan(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "ctr", "--plan", "--world-size", "5", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["world_size"], data["saved_world_size"], data["nproc"]) == (5, 1, 5)
    assert data["launch"] == "ett launch --job ctr-7f3a --nproc 5"


def test_only_a_deeper_check_finds_a_flipped_bit(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    damage_newest_segment(saved.checkpoints)
    assert plan_restore(saved, None).step == 30
    for level in ("hash", "load"):
        assert run(["restore", "ctr", "--plan", "--verify", level, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["data"]["step"], printed["data"]["level"]) == (20, level)
        assert printed["data"]["fallback_from"] is not None
        assert "passed over" in printed["warnings"][0]
    assert run(["restore", "ctr", "--plan", "--verify", "hash", "--step", "30"]) == 8
    said = capsys.readouterr().err
    assert "step 30, which --step names" in said
    assert "does not match its checksum" in said
    assert "`ett checkpoint verify ctr-7f3a`" in said


def test_the_plan_of_a_named_step_promises_no_other_one(saved: JobFolder) -> None:
    assert "passed over" in dict(plan_restore(saved, None).rows())["checked"]
    checked = dict(plan_restore(saved, 20).rows())["checked"]
    assert "passed over" not in checked
    assert "never replaced by another" in checked


def test_a_folder_has_a_plan_and_no_launch(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    uri = str(saved.checkpoints)
    assert run(["restore", uri, "--plan", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["job"], data["uri"], data["step"]) == ("", uri, 30)
    assert run(["restore", uri]) == 2
    assert "--plan" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["checkpoint", "torch", "safetensors"])
def test_a_copy_of_a_damaged_newest_is_of_the_one_before(
    saved: JobFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    damage_newest_segment(saved.checkpoints)
    argv = ["restore", str(saved.checkpoints), "--to", str(tmp_path / "out"), "--into", form, "--json"]
    assert run(argv) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["data"]["step"], printed["data"]["form"]) == (20, form)
    assert "passed over" in printed["warnings"][0]
    assert printed["data"]["num_files"] > 0
    assert (tmp_path / "out").is_dir()


def test_a_form_needs_a_folder(saved: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["restore", "ctr", "--into", "torch"]) == 2
    assert "--to DIR" in capsys.readouterr().err
    assert run(["restore", "ctr", "--to", "out", "--world-size", "2"]) == 2
