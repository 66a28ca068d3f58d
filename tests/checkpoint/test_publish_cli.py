"""`ett publish`: what a person types, what a program reads, and the exit codes between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import saved_world
from published_world import newest, served_rows

from ett.cli import run


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "job"
    saved_world(folder, 1, [1, 2])
    return folder


def document(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> Any:
    assert run(["publish", *argv, "--json"]) == code
    return json.loads(capsys.readouterr().out)["data"]


def test_publish_is_a_command(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path / "out")
    plan = document(capsys, str(job), "--to", to, "--plan")
    assert (plan["step"], plan["tables"], plan["done"], plan["parts_there"]) == (2, ["bags/items", "users"], None, 0)
    made = document(capsys, str(job), "--to", to)
    assert (made["number"], made["step"], made["was_done"], made["files_written"]) == (1, 2, False, 3)
    again = document(capsys, "commit", str(job), "--to", to)
    assert (again["number"], again["was_done"], again["key"]) == (1, True, plan["key"])
    assert document(capsys, str(job), "--to", to, "--plan")["done"] == 1
    seq = newest(job).seq
    assert document(capsys, str(job), "--to", to, "--step", "1", "--tables", "users")["number"] == 2
    assert document(capsys, str(job), "--to", to, "--commit", str(seq), "--tables", "users,bags/items")["number"] == 1
    status = document(capsys, "status", to)
    assert [(p["number"], p["step"], p["tables"]) for p in status["publications"]] == [
        (2, 1, ["users"]),
        (1, 2, ["bags/items", "users"]),
    ]
    assert status["unfinished"] == []
    assert set(served_rows(tmp_path / "out")) == {"users"}
    assert run(["publish", "status", to, "--verify"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:4] == ["number", "kind", "base", "job"]


def test_a_delta_that_is_not_possible_says_why(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path)
    assert document(capsys, str(job), "--to", to, "--step", "1")["kind"] == "full"
    plan = document(capsys, str(job), "--to", to, "--delta", "--plan")
    assert (plan["kind"], plan["base"]) == ("full", None)
    assert plan["reasons"] == [f"table {name} has a new base since publication 1" for name in plan["tables"]]
    assert run(["publish", str(job), "--to", to, "--delta"]) == 0
    assert "all rows were published: table users has a new base" in capsys.readouterr().err


def test_damage_is_told_with_what_to_type(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path)
    document(capsys, str(job), "--to", to)
    (path,) = tmp_path.glob("artefacts/*/dense.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert run(["publish", "status", to]) == 0
    assert run(["publish", "status", to, "--verify"]) == 8
    assert "--verify: what is damaged is made anew" in capsys.readouterr().err
    assert document(capsys, str(job), "--to", to, "--verify")["files_written"] == 1
    assert run(["publish", "status", to, "--verify"]) == 0
    (tmp_path / "publications" / f"{1:016d}.json").write_text("{}")
    assert run(["publish", "status", to]) == 8
    capsys.readouterr()
    assert document(capsys, str(job), "--to", to)["number"] == 2


def test_what_was_begun_is_shown(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path)
    document(capsys, str(job), "--to", to)
    (tmp_path / "publications" / f"{1:016d}.json").unlink()
    (begun,) = document(capsys, "status", to)["unfinished"]
    assert begun["files"] == 3
    assert run(["publish", "status", to]) == 0
    assert "publish again" in capsys.readouterr().out
    assert document(capsys, str(job), "--to", to, "--plan")["parts_there"] == 3
    assert document(capsys, str(job), "--to", to)["files_reused"] == 3


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--step", "1", "--commit", "1"], 2),
        (["--step", "7"], 4),
        (["--tables", "user"], 4),
        (["--min-updates", "3"], 3),
        (["--commit", "99"], 4),
    ],
)
def test_mistakes_have_exit_codes(job: Path, tmp_path: Path, argv: list[str], code: int) -> None:
    assert run(["publish", str(job), "--to", str(tmp_path / "out"), *argv]) == code
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "to, told",
    [
        ("{}/a_file/out", "choose another place (--to)"),
        ("ftp://user:p@ss@host/x", "set --to to another store"),
        ("s3:///x", "--to is 's3:///x'"),
        ("", "--to is empty"),
    ],
)
def test_a_place_that_will_not_do_is_that_of_its_option(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, told: str
) -> None:
    (tmp_path / "a_file").touch()
    assert run(["publish", str(job), "--to", to.format(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert told in said
    assert "checkpoint.uri" not in said
    assert "ss@" not in said


def test_an_empty_folder_has_nothing_to_publish(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    assert run(["publish", str(tmp_path / "job"), "--to", str(tmp_path / "out")]) == 10
    assert run(["publish", "status", str(tmp_path / "out")]) == 0
