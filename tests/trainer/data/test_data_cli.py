from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from ett.cli import run
from ett.trainer.data.generator import criteo_lines


def generate(out: Path, *more: str) -> int:
    return run(["data", "generate", "criteo", "--rows", "40", "--seed", "3", "--out", str(out), *more])


def test_generate_writes_the_lines_of_rows_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(tmp_path / "a.tsv") == 0
    assert (tmp_path / "a.tsv").read_bytes() == b"".join(criteo_lines(40, 3))
    assert "a.tsv: 40 lines" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "flags"), [("a.tsv.gz", ()), ("a.tsv", ("--gzip",))])
def test_generate_packs_by_suffix_or_by_flag(tmp_path: Path, name: str, flags: tuple[str, ...]) -> None:
    assert generate(tmp_path / name, *flags) == 0
    assert gzip.decompress((tmp_path / name).read_bytes()) == b"".join(criteo_lines(40, 3))


def test_generate_refuses_to_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text("mine")
    assert generate(tmp_path / "a.tsv") == 7
    assert (tmp_path / "a.tsv").read_text() == "mine"
    assert "--force" in capsys.readouterr().err


def test_generate_overwrites_when_forced(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("mine")
    assert generate(tmp_path / "a.tsv", "--force") == 0
    assert (tmp_path / "a.tsv").read_text().count("\n") == 40


def test_generate_names_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(tmp_path / "missing" / "a.tsv") == 4
    assert f"mkdir -p {tmp_path / 'missing'}" in capsys.readouterr().err


def test_generate_never_replaces_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(tmp_path, "--force") == 2
    assert "is a folder" in capsys.readouterr().err


def test_generate_never_replaces_a_pipe_or_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert generate(tmp_path / "pipe", "--force") == 2
    assert (tmp_path / "pipe").is_fifo()
    assert "is a device or a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--rows", "0"), ("--seed", "-1"), ("--rows", "many")])
def test_generate_refuses_values_out_of_range(tmp_path: Path, flags: tuple[str, str]) -> None:
    assert generate(tmp_path / "a.tsv", *flags) == 2
    assert not (tmp_path / "a.tsv").exists()
