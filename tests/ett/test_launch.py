from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ett.cli import run
from ett.errors import RestartsSpent
from ett.failure import RankExit
from ett.job_folder import JobFolder, write_json
from ett.job_history import read_supervisors
from ett.launch import _end
from ett.launch_plan import LaunchPlan, kept_environment
from ett.outcome import Outcome
from ett.restart import RestartDecision
from ett.stop_signals import StopSignals
from ett.supervisor import JobSupervisor


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ETT_HOME", raising=False)
    (tmp_path / "train.py").write_text("")


def planned(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run(["launch", "--dry-run", *args]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


@pytest.mark.parametrize(
    ("args", "kind", "target", "rest"),
    [
        (["train.py", "--nproc", "4", "--", "-m"], "script", "train.py", ["--nproc", "4", "--", "-m"]),
        (["-m", "pkg.train", "-m", "x"], "module", "pkg.train", ["-m", "x"]),
        (["--", "train.py", "--job"], "command", "train.py", ["--job"]),
        (["--", "sh", "-c", "exit 3"], "command", "sh", ["-c", "exit 3"]),
    ],
)
def test_our_flags_end_at_the_first_positional(
    capsys: pytest.CaptureFixture[str], args: list[str], kind: str, target: str, rest: list[str]
) -> None:
    plan = planned(capsys, "--nproc", "2", *args)
    assert (plan["kind"], plan["target"], plan["args"], plan["nproc"]) == (kind, target, rest, 2)


def test_a_dry_run_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    planned(capsys, "--job", "j", "train.py")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_is_not_restarted_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "train.py")["recovery"]["max_restarts"] == 0
    assert planned(capsys, "--max-restarts", "4", "train.py")["recovery"]["max_restarts"] == 4


def test_a_smaller_world_is_for_those_who_ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[launch]\nnproc = 3\n")
    assert [planned(capsys, *flags)["nproc_min"] for flags in (["train.py"], ["r.toml"])] == [0, 0]
    for args in (["--nproc", "3", "--nproc-min", "2", "train.py"], ["--nproc-min", "2", "r.toml"]):
        assert planned(capsys, *args)["nproc_min"] == 2


def test_flags_win_over_the_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[job]\nmodel = "ctr"\nteam = "feed"\nowner = "ann"\n[launch]\nnproc = 3\n[recovery]\nmax_restarts = 1\n'
    )
    kept = planned(capsys, "r.toml")
    assert (kept["team"], kept["owner"], kept["nproc"], kept["recovery"]["max_restarts"]) == ("feed", "ann", 3, 1)
    flags = ("--team", "ads", "--owner", "bob", "--nproc", "2", "--max-restarts", "5", "--grace", "7", "--model", "m")
    won = planned(capsys, *flags, "r.toml")
    assert (won["team"], won["owner"], won["nproc"], won["model"]) == ("ads", "bob", 2, "m")
    assert (won["recovery"]["max_restarts"], won["recovery"]["grace_s"]) == (5, 7.0)
    assert won["config_hash"] != kept["config_hash"]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ([], 2, "nothing to launch"),
        (["--job", "j"], 4, "no job 'j'"),
        (["--job", "../j", "train.py"], 2, "job name '../j'"),
        (["gone.py"], 4, "script gone.py does not exist"),
        (["gone.toml"], 4, "recipe gone.toml does not exist"),
        (["--resume", "newest", "train.py"], 2, "--resume 'newest'"),
        (["--set", "train.seed=1", "train.py"], 2, "--set without a recipe"),
        (["--team", "Ads Team", "train.py"], 3, "job.team is 'Ads Team'"),
        (["--chaos", "kill:rank=1", "train.py"], 2, "no step"),
        (["--chaos", "kill:rank=5,step=1", "--nproc", "2", "train.py"], 2, "no rank 5 with --nproc 2"),
        (["--nproc", "0", "train.py"], 2, "--nproc"),
        (["--nproc", "2", "--nproc-min", "3", "train.py"], 3, "launch.nproc_min is 3"),
        (["--nprocs", "2", "train.py"], 2, "--nprocs"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, args: list[str], code: int, text: str
) -> None:
    assert run(["launch", *args]) == code
    said = capsys.readouterr()
    assert text in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / ".ett").exists()


def test_a_recipe_takes_no_arguments_after_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("")
    assert run(["launch", "r.toml", "--nproc", "2"]) == 2
    assert "--set section.key=value" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_data_that_is_not_there_is_one_error_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str]
) -> None:
    (tmp_path / "r.toml").write_text("")
    assert run(["launch", *flags, "--set", "data.path=nowhere", "r.toml"]) == 4
    assert capsys.readouterr().err.count("data.path 'nowhere' does not exist") == 1
    assert not (tmp_path / ".ett").exists()


@pytest.mark.parametrize("path", ["", "s3://bucket/day_0", "here"])
def test_data_elsewhere_or_here_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str) -> None:
    (tmp_path / "r.toml").write_text("")
    (tmp_path / "here").write_text("")
    plan = planned(capsys, "--set", f'data.path="{path}"', "r.toml")
    assert plan["overrides"] == [f'data.path="{path}"']


BUFFERED = " (which lacks the commits that only this host's buffer holds: `ett checkpoint ls j`)"


@pytest.mark.parametrize(("uri", "told"), [("", ""), ("/c", ""), ("s3://bucket/j", BUFFERED)])
def test_a_host_that_cannot_run_the_job_is_an_error_of_its_own_with_what_to_do(
    uri: str, told: str, tmp_path: Path
) -> None:
    folder = JobFolder(tmp_path / "jobs" / "j")
    folder.create()
    write_json(folder.recipe_file, {"checkpoint": {"uri": uri}})
    job = JobSupervisor(LaunchPlan(kind="script", target="train.py", cwd="/"), folder, StopSignals())
    job.attempt = 2
    decision = RestartDecision(restart=False, delay_s=0.0, rule="unhealthy_host", why="no room")
    outcome = Outcome(status="failed", failure=RankExit(rank=1, code=1), decision=decision, do="free space")
    with pytest.raises(RestartsSpent) as raised:
        _end(job, outcome)
    job.close()
    assert (raised.value.code, raised.value.exit_code) == ("L010", 121)
    assert raised.value.fact.endswith("in attempt 2; no restart: no room")
    assert raised.value.do == f"free space; then, or on another host{told}, `ett launch --job j`"
    assert [record.data["status"] for record in read_supervisors(folder.events)] == ["failed"]


def test_the_environment_is_kept_by_an_allow_list_without_secrets() -> None:
    environ = {"NCCL_DEBUG": "1", "OMP_NUM_THREADS": "2", "ETT_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/h"}
    environ |= {"TORCH_HUB_TOKEN": "t", "NCCL_AUTH": "a", "ETT_HOME": "/e"}
    assert kept_environment(environ) == {"NCCL_DEBUG": "1", "OMP_NUM_THREADS": "2", "ETT_HOME": "/e"}


def test_a_command_runs_as_it_is_and_a_module_through_python() -> None:
    plan = LaunchPlan(kind="command", target="prog", args=("a",), cwd="/")
    assert plan.program() == ["prog", "a"]
    module = LaunchPlan(kind="module", target="pkg.main", args=("a",), cwd="/")
    assert module.program()[-4:] == ["-u", "-m", "pkg.main", "a"]


@pytest.mark.parametrize("section", ["defaults.telemetry", "telemetry"])
def test_hooks_of_the_site_file_hold_until_the_environment_or_a_flag_says_otherwise(
    section: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "ett.toml"
    site.write_text(f'[{section}]\nhooks = "-eval"\n')
    monkeypatch.setenv("ETT_CONFIG", str(site))
    assert planned(capsys, "train.py")["telemetry"]["hooks"] == "-eval"
    monkeypatch.setenv("ETT_HOOKS", "steps")
    assert planned(capsys, "train.py")["telemetry"]["hooks"] == "steps"
    assert planned(capsys, "--hooks", "none", "train.py")["telemetry"]["hooks"] == "none"
    monkeypatch.delenv("ETT_HOOKS")
    site.write_text(f'[{section}]\nhooks = "-evil"\n')
    assert run(["launch", "--dry-run", "train.py"]) == 3
    error = capsys.readouterr().err
    assert "ett.toml:2: telemetry.hooks" in error
    assert "eval" in error
