"""A Checkpointer that cannot work as it was made is refused when it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import RecordingRun
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.ranks import SoloRanks
from ett.errors import ConfigError, UsageError


def made(uri: str, ranks: SoloRanks | None = None) -> Checkpointer:
    return Checkpointer(CheckpointConfig(uri=uri), model=nn.Linear(1, 1), run=RecordingRun(), ranks=ranks)


def test_one_of_several_ranks_without_a_process_group_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="WORLD_SIZE is 2") as raised:
        made(str(tmp_path))
    assert raised.value.expected
    assert "init_process_group" in raised.value.do
    assert made(str(tmp_path), SoloRanks()).restore() is None


def test_one_rank_needs_no_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert made(str(tmp_path)).restore() is None


def test_no_uri_outside_a_job_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.uri is empty and this process belongs to no job") as raised:
        made("")
    assert "ett launch" in raised.value.do


def test_a_later_change_of_folder_does_not_move_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    checkpointer = made("ckpt")
    checkpointer.save(1, 10)
    monkeypatch.chdir(tmp_path / "elsewhere")
    checkpointer.save(2, 20)
    assert len(list((tmp_path / "ckpt/commits").iterdir())) == 2
    assert not list((tmp_path / "elsewhere").iterdir())
