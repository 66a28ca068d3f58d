"""Faults of a store as a checkpointer meets them: saves are given up, and what was saved before is whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.event_reader import read_folder
from ett.recovery.armed_faults import arm
from ett.tracker import Run, RunIdentity


def start(folder: Path, chaos: str, attempt: int = 1, **places: str) -> tuple[Checkpointer, nn.Module, Run]:
    identity = RunIdentity(job="j", attempt=attempt, job_dir=folder)
    run = Run(identity, faults=arm(chaos, folder, rank=0, attempt=attempt))
    model = nn.Linear(4, 4, bias=False)
    config = CheckpointConfig(
        interval="1 steps",
        background=False,
        stall_budget_s=60.0,
        **places,  # type: ignore[arg-type]
    )
    return Checkpointer(config, model=model, run=run), model, run


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "job").mkdir()
    yield tmp_path / "job"


def train(checkpointer: Checkpointer, model: nn.Module, steps: range) -> list[bool]:
    """Set the weights to each step's number; return which steps were saved."""
    saved = []
    for step in steps:
        with torch.no_grad():
            model.weight.fill_(float(step))
        saved.append(checkpointer.step(step, step * 10) is not None)
    return saved


def test_a_full_disk_costs_the_saves_that_it_lasts_for(folder: Path) -> None:
    checkpointer, model, run = start(folder, "disk_full:step=2,saves=2")
    checkpointer.restore()
    assert train(checkpointer, model, range(1, 6)) == [True, False, False, True, True]
    checkpointer.close()
    run.close()
    records = read_folder(folder).records
    assert [(r.data["step"], r.data["code"]) for r in records if r.ev == "ckpt_abandoned"] == [(2, "S002"), (3, "S002")]
    (injected,) = (r.data for r in records if r.ev == "fault_injected")
    assert (injected["kind"], injected["tier"]) == ("disk_full", "local")
    again, restored, _ = start(folder, "kill:step=99", attempt=2)
    position = again.restore()
    assert position is not None
    assert position.step == 5
    assert torch.equal(restored.weight, torch.full((4, 4), 5.0))  # type: ignore[arg-type]
    again.close()


def test_a_damaged_commit_is_passed_over(folder: Path) -> None:
    checkpointer, model, run = start(folder, "kill:step=99")
    checkpointer.restore()
    train(checkpointer, model, range(1, 4))
    checkpointer.close()
    run.close()
    again, restored, run = start(folder, "corrupt:phase=restore,attempt=2", attempt=2)
    position = again.restore()
    assert position is not None
    assert (position.step, position.fallback_from is not None) == (2, True)
    assert torch.equal(restored.weight, torch.full((4, 4), 2.0))  # type: ignore[arg-type]
    again.close()
    run.close()
    assert [r.data["kind"] for r in read_folder(folder).records if r.ev == "fault_injected"] == ["corrupt"]


def test_a_shared_folder_behind_a_buffer_is_the_remote_tier(folder: Path, tmp_path: Path) -> None:
    places = {"uri": str(tmp_path / "shared"), "buffer_dir": str(tmp_path / "disk")}
    checkpointer, model, run = start(folder, "store_fails:step=1,ops=1", **places)
    checkpointer.restore()
    assert train(checkpointer, model, range(1, 3)) == [True, True]
    checkpointer.close()
    run.close()
    assert [r.data["tier"] for r in read_folder(folder).records if r.ev == "fault_injected"] == ["remote"]
