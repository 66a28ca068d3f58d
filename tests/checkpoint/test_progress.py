"""Long work shows how far it is on a terminal, and nowhere else; what is counted are the bytes that were read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_world import DictShard, Meeting, RecordingRun, ThreadRanks, saved_world
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer, TableRows
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.progress import _counted
from ett.checkpoint.verify import verify_commit


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    saved_world(folder, 1, [1])
    return folder


def drawn(*argv: str) -> str:
    """Run a command with a terminal for its stderr; return what it wrote there."""
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "ett", "checkpoint", *argv],
        stderr=theirs,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 4096):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert done.stdout
    return text.decode()


@pytest.mark.slow
def test_a_terminal_sees_bytes_and_rate(saved: Path, tmp_path: Path) -> None:
    told = drawn("export", str(saved), "--to", str(tmp_path / "out"), "--format", "checkpoint")
    assert "copying" in told and "verifying" in told
    assert "KiB" in told and "/s" in told


@pytest.mark.slow
def test_with_json_nothing_is_drawn(saved: Path) -> None:
    assert drawn("verify", str(saved), "--json") == ""


@pytest.mark.slow
def test_without_a_terminal_nothing_is_drawn(saved: Path) -> None:
    argv = [sys.executable, "-m", "ett", "checkpoint", "verify", str(saved)]
    assert subprocess.run(argv, capture_output=True, check=True).stderr == b""


def test_every_byte_that_is_read_counts(tmp_path: Path) -> None:
    table = DictShard("users", 1000, (), (0, 1))
    ids = torch.arange(1000)
    table.rows = TableRows(ids=ids, weights=torch.zeros(1000, 1000), states={})
    ranks = ThreadRanks(0, 1, Meeting(1))
    config = CheckpointConfig(uri=str(tmp_path))
    Checkpointer(config, model=nn.ModuleList([table]), run=RecordingRun(), ranks=ranks).save(1, 1)
    counts: list[int] = []
    commit, _ = find_commit(LocalStore(tmp_path), None)
    verify_commit(_counted(LocalStore(tmp_path), counts.append), commit, "hash")
    assert 1 <= sum(counts) / commit.num_bytes < 1.1  # of a file the ends, which say what is in it, are read twice
