"""A failing disk is one clear error of the command line, with the exit code of its kind."""

from __future__ import annotations

import errno
import os

import pytest

from ett.cli import run


@pytest.mark.parametrize(
    ("number", "code", "exit_code"),
    [
        (errno.ENOSPC, "S002", 6),
        (errno.EACCES, "P001", 5),
        (errno.EROFS, "P001", 5),
        (errno.EIO, "S003", 6),
        (errno.ENOTDIR, "F004", 3),
        (errno.ENAMETOOLONG, "F001", 3),
        (errno.EBADF, "E000", 1),
    ],
)
def test_a_failing_call_names_the_file_and_ends_with_its_code(
    number: int, code: str, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(target: str) -> None:
        raise OSError(number, os.strerror(number), "/disk/job/launch.json")

    monkeypatch.setattr("ett.cli.load", fail)
    assert run(["ls"]) == exit_code
    told = capsys.readouterr().err
    assert told.startswith(f"error[ETT-{code}]: ")
    assert "/disk/job/launch.json" in told
    assert "Traceback" not in told
