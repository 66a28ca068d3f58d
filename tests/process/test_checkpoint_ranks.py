"""Checkpoints through real processes: gloo groups, another number of ranks, a folder that the user may not enter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gloo_ranks import run_ranks_well


def run_world(folder: Path, store: Path, world_size: int, expected: int, seed: int = 0) -> str:
    """Run a world of processes that restores `expected` and saves; return the digest of what it saved."""
    return run_ranks_well("checkpoint_ranks.py", world_size, store, folder, expected, seed)[0].strip()


@pytest.mark.process
def test_real_ranks_save_and_restore_on_another_number_of_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    first = run_world(folder, tmp_path / "a", 2, expected=0, seed=7)
    assert run_world(folder, tmp_path / "b", 1, expected=7) == first
    assert run_world(folder, tmp_path / "c", 3, expected=107) == first


CLOSED = """
import os
import sys

from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.errors import AccessDenied

checkpointer = Checkpointer(CheckpointConfig(uri=sys.argv[1]), model=nn.Linear(1, 1))
os.setuid(65534)
try:
    checkpointer.restore()
except AccessDenied as err:
    print(err.fact)
    sys.exit(err.exit_code)
"""


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_without_rights_is_one_clear_error(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    done = subprocess.run([sys.executable, "-c", CLOSED, str(closed)], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert str(closed) in done.stdout


ENDS = """
import sys, weakref
import torch.distributed as dist

from ett.checkpoint.ranks import GlooRanks

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
ranks = GlooRanks()
assert ranks.gather(1) == [1]
group = weakref.ref(ranks.group)
ranks.close()
print(group() is None)
ranks.close()
assert dist.is_initialized()
dist.destroy_process_group()
"""


@pytest.mark.process
def test_a_closed_group_has_no_threads_when_the_interpreter_ends(tmp_path: Path) -> None:
    """Where it had, one process in some hundreds aborted: `terminate called without an active exception`."""
    command = [sys.executable, "-c", ENDS, str(tmp_path / "store")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"
