"""`ett checkpoint ls|show|verify` on a job's name and on a folder: output, JSON, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import Meeting, Rank, ThreadRanks

from ett.checkpoint.buffer import buffer_store
from ett.cli import run


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code = run(["checkpoint", *argv, "--json"])
    envelope = json.loads(capsys.readouterr().out)
    assert set(envelope) == {"schema", "data", "warnings"}
    assert envelope["schema"] == f"ett.checkpoint.{argv[0]}/v1"
    return {**envelope["data"], "code": code, "warnings": envelope["warnings"]}


def test_show_gives_the_checkpoint_facts(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = document(capsys, "show", str(saved))
    assert (facts["seq"], facts["step"], facts["cursor"], facts["policy"]) == (3, 2, 20, "adaptive")
    assert [(t["name"], t["rows"]) for t in facts["tables"]] == [("bags/items", 502), ("users", 502)]
    assert all(len(t["digest"]) == 16 and t["bytes"] > 0 for t in facts["tables"])
    assert len(facts["dense"]["digest"]) == 32
    assert [(part["seq"], part["kind"]) for part in facts["chain"]] == [(3, "base"), (3, "dense")]
    assert sum(part["bytes"] for part in facts["chain"]) == facts["bytes"]
    assert document(capsys, "show", str(saved), "--step", "1")["step"] == 1


def test_show_computes_the_same_digests(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "show", str(saved), "--digest") == document(capsys, "show", str(saved))


def test_ls_lists_newest_first(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commits = document(capsys, "ls", str(saved))["commits"]
    assert [(c["seq"], c["step"], c["state"]) for c in commits] == [
        (3, 2, "restorable"),
        (2, 1, "restorable"),
    ]


@pytest.mark.parametrize("level", ["manifest", "size", "hash", "load"])
def test_verify_of_good_commits_is_zero(saved: Path, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "verify", str(saved), "--level", level]) == 0
    assert capsys.readouterr().out.count("ok ") == 2


def test_verify_of_one_damaged_commit_is_eight(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage_newest(copy)
    found = document(capsys, "verify", str(copy))
    assert (found["code"], found["usable"]) == (8, 1)
    assert [commit["ok"] for commit in found["commits"]] == [False, True]
    assert run(["checkpoint", "verify", str(copy), "--step", "1"]) == 0
    assert "table" in found["commits"][0]["problem"]


def test_verify_without_a_usable_commit_is_ten(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in copy.glob("dense/*/*"):
        os.truncate(path, 5)
    assert run(["checkpoint", "verify", str(copy)]) == 10
    assert "no usable checkpoint" in capsys.readouterr().err


def test_a_damaged_record_is_listed_and_warned_of(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / f"commits/{3:016d}.json").write_bytes(b"{}")
    assert document(capsys, "ls", str(copy))["commits"][0]["state"] == "damaged"
    shown = document(capsys, "show", str(copy))
    assert shown["step"] == 1
    assert len(shown["warnings"]) == 1


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["show", "no-such-job"], 4),
        (["show", "{saved}", "--step", "9"], 4),
        (["ls", "ftp://x/y"], 3),
        (["ls", "http://127.0.0.1:1/x"], 6),
        (["ls", "x" * 300], 3),
        (["ls", "~no-such-user/x"], 3),
        (["export", "{saved}", "--to", "x" * 300], 3),
        (["gc", "{saved}", "--max-bytes", "9" * 400], 2),
        (["gc", "{saved}", "--keep-every", "\u0661h"], 2),
    ],
)
def test_what_is_not_there_has_its_exit_code(
    saved: Path, argv: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoint", *(word.format(saved=saved) for word in argv)]) == code
    told = capsys.readouterr().err
    assert "error[ETT-" in told
    assert "ETT-E000" not in told


def test_what_a_buffer_has_not_sent_is_of_the_tier_local(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    job_dir = tmp_path / "home/jobs/job-a"
    shutil.copytree(saved, tmp_path / "remote")
    buffer = buffer_store(job_dir / "buffer", str(tmp_path / "remote")).root
    shutil.copytree(saved, buffer)
    (tmp_path / "remote" / f"commits/{3:016d}.json").unlink()
    (job_dir / "recipe.json").write_text(json.dumps({"checkpoint": {"uri": str(tmp_path / "remote")}}))
    tiers = {commit["step"]: commit["tier"] for commit in document(capsys, "ls", "job-a")["commits"]}
    assert tiers == {1: "remote", 2: "local"}
    assert [document(capsys, "show", "job-a", "--step", str(step))["tier"] for step in (1, 2)] == ["remote", "local"]


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "show", str(tmp_path)]) == 10
    Rank(tmp_path, ThreadRanks(0, 1, Meeting(1))).checkpointer.restore()
    assert run(["checkpoint", "show", str(tmp_path)]) == 10
    assert run(["checkpoint", "ls", str(tmp_path)]) == 0


def test_a_job_is_found_by_its_name_and_recipe(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    job_dir = tmp_path / "home" / "jobs" / "job-a"
    job_dir.mkdir(parents=True)
    shutil.copytree(saved, job_dir / "checkpoints")
    assert document(capsys, "show", "job-a")["uri"] == str(job_dir / "checkpoints")
    shutil.copytree(saved, tmp_path / "cwd" / "elsewhere")
    (job_dir / "launch.json").write_text(json.dumps({"cwd": str(tmp_path / "cwd")}))
    (job_dir / "recipe.json").write_text(json.dumps({"checkpoint": {"uri": "elsewhere"}}))
    assert document(capsys, "show", "job-a")["uri"] == str(tmp_path / "cwd" / "elsewhere")


@pytest.fixture
def jobs(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The jobs ctr-aaaa, which has commits, and ctr-bbbb, which has none; the working folder is the home's."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, tmp_path / "home/jobs/ctr-aaaa/checkpoints")
    (tmp_path / "home/jobs/ctr-bbbb").mkdir()
    return tmp_path / "home/jobs"


@pytest.mark.parametrize("verb", ["ls", "show", "verify"])
def test_a_unique_prefix_of_a_jobs_name_is_enough(jobs: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", verb, "ctr-a"]) == 0
    assert run(["checkpoint", verb, "ctr-"]) == 4
    told = capsys.readouterr().err
    assert "ETT-N002" in told
    assert "ctr-aaaa, ctr-bbbb" in told


def test_a_folder_named_in_full_goes_before_a_prefix(
    jobs: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(saved, "ctr")
    assert document(capsys, "ls", "ctr")["uri"] == str(Path("ctr").absolute())


def test_a_job_without_commits_says_where_it_was_looked_for(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "ls", "ctr-bbbb"]) == 0
    told = capsys.readouterr().out
    assert str(jobs / "ctr-bbbb/checkpoints") in told
    assert "checkpoint.uri" in told
    (warning,) = document(capsys, "ls", "ctr-bbbb")["warnings"]
    assert warning == told.strip()
    assert run(["checkpoint", "verify", "ctr-bbbb"]) == 10


def test_verify_takes_all_commits_or_the_one_of_a_step_as_its_help_says(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(document(capsys, "verify", str(saved))["commits"]) == 2
    assert [c["step"] for c in document(capsys, "verify", str(saved), "--step", "1")["commits"]] == [1]
    assert run(["checkpoint", "verify", "--help"]) == 0
    assert "Only the commit of this step; else all." in capsys.readouterr().out


@pytest.mark.slow
def test_looking_needs_no_torch(saved: Path) -> None:
    argv = ["checkpoint", "verify", str(saved)]
    probe = f"import sys; from ett.cli import run; code = run({argv!r}); sys.exit(code or ('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def damage_newest(folder: Path) -> None:
    newest = max(folder.glob("d/*/*/*"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(newest.read_bytes())
    data[5000] ^= 4
    newest.write_bytes(data)
