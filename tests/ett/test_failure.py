from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ett.failure import RankExit, classify, first_failure, keep_tail, last_lines, signature, stated_cause


def test_codes_are_those_of_a_shell() -> None:
    assert (RankExit(rank=0, code=7).exit_code, RankExit(rank=0, code=7).signal) == (7, None)
    assert (RankExit(rank=0, code=-9).exit_code, RankExit(rank=0, code=-9).signal) == (137, 9)
    assert str(RankExit(rank=3, code=-signal.SIGSEGV)) == "rank 3 was killed by SIGSEGV"


def test_the_first_failure_is_the_first_to_end_among_those_that_failed() -> None:
    exits = [RankExit(rank=0, code=1), RankExit(rank=1, code=0), RankExit(rank=2, code=-9)]
    assert first_failure(exits, order=[1, 2, 0]).rank == 2
    assert first_failure(exits, order=[]).rank == 0


def test_a_kill_is_the_infrastructures_and_an_exit_code_the_users() -> None:
    assert classify(RankExit(rank=0, code=-signal.SIGKILL)) == "infra"
    assert classify(RankExit(rank=0, code=-signal.SIGSEGV)) == "unknown"
    assert classify(RankExit(rank=0, code=1)) == "user"


def test_errors_that_differ_in_numbers_only_have_one_signature() -> None:
    gone = RankExit(rank=0, code=1)
    first = signature(gone, ["Traceback", "ValueError: loss is nan at step 120", ""])
    assert first == signature(gone, ["ValueError: loss is nan at step 9"])
    assert first != signature(gone, ["ValueError: loss is inf at step 9"])
    assert first != signature(RankExit(rank=0, code=2), ["ValueError: loss is nan at step 9"])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[rank0]: ValueError: bad", "ValueError: bad"),
        ("torch.OutOfMemoryError: CUDA", "torch.OutOfMemoryError: CUDA"),
        ("error[ETT-D001]: a:3: 38 fields", "error[ETT-D001]: a:3: 38 fields"),
        ("  do        correct it", ""),
        ("loss 0.3", ""),
    ],
)
def test_the_cause_is_the_programs_own_word(line: str, cause: str) -> None:
    assert stated_cause(["Traceback", line, "  expected  40 fields"]) == cause


def test_silence_and_signals_have_no_signature() -> None:
    assert signature(RankExit(rank=0, code=7), []) == ""
    assert signature(RankExit(rank=0, code=-9), ["ValueError"]) == ""


def test_last_lines_come_from_the_first_file_that_has_any(tmp_path: Path) -> None:
    (tmp_path / "err").write_text("")
    (tmp_path / "log").write_bytes(b"\xff\n" * 5 + b"end")
    assert last_lines(tmp_path / "gone", tmp_path / "err", tmp_path / "log", num_lines=2) == ["\ufffd", "end"]


def test_a_tail_is_kept_under_its_hash(tmp_path: Path) -> None:
    name = keep_tail(tmp_path, ["a", "b"])
    assert (tmp_path / name).read_text() == "a\nb\n"
    assert keep_tail(tmp_path / "gone", ["a"]) == ""
