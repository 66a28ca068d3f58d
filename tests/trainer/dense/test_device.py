"""The dense part on a GPU, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_sequence_model import CONFIG as SEQUENCE
from test_sequence_model import batch as histories
from test_sequence_model import tables

from ett.checkpoint.table import copy_of_rows
from ett.errors import ConfigError
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import DenseConfig, TrainerConfig
from ett.trainer.dense.device import CPU, dense_device, moved, on_host
from ett.trainer.dense.micro_batches import MicroBatches
from ett.trainer.dense.recipe_model import recipe_model
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def losses(config: TrainerConfig, device: torch.device, num_steps: int = 5) -> tuple[list[float], Any]:
    model = recipe_model(config, tables(LocalCollectives(), config), num_dense=0)
    step = TrainingStep(config, model, LocalCollectives(), device)
    found = []
    for number in range(1, num_steps + 1):
        clock = StageClock(0)
        with clock.run("read", 1):
            pass
        with clock.run("exchange_samples", 1):
            ready = ReadyBatch(1, histories(number), 0, None)
        found.append(step.take(number, ready, clock)[0])
    rows = [copy_of_rows(shard).weights for shard in model.ebc.shards()]
    return found, [*(p.detach().cpu() for p in model.parameters()), *rows]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"dense.device is 'cuda', and torch finds no CUDA device"):
        dense_device("cuda", 0)
    assert dense_device("auto", 0) == CPU


def test_the_host_is_the_host_wherever_there_is_a_gpu() -> None:
    assert dense_device("cpu", 3) == CPU
    rows = torch.ones(2, 3)
    assert moved(rows, CPU) is rows
    assert on_host([rows])[0] is rows


def test_gradients_come_back_from_leaves_that_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: one part, whose leaves are copies."""
    looked_up = tables(LocalCollectives(), SEQUENCE).look_up(histories(1).features)
    whole = looked_up.inputs
    parts = MicroBatches(whole, 1)
    monkeypatch.setattr(parts, "_is_whole", False)
    for _, part in parts:
        assert all(leaf.is_leaf for leaf in part.values())
        sum((leaf * leaf.detach()).sum() for leaf in part.values()).backward()
    kept = [rows.detach().clone() for rows in whole.values()]
    for rows in whole.values():
        rows.retain_grad()
    parts.join_gradients()
    for rows, want in zip(whole.values(), kept, strict=True):
        assert rows.grad is not None and torch.equal(rows.grad, want)


@on_a_gpu
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_trains_the_same_bits_twice_and_what_the_host_trains_but_for_rounding(precision: Any, parts: int) -> None:
    config = replace(SEQUENCE, dense=DenseConfig(precision=precision), train=replace(SEQUENCE.train, accumulate=parts))
    gpu = torch.device("cuda", 0)
    first, second = losses(config, gpu), losses(config, gpu)
    assert first[0] == second[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    # Five steps at these rates; of bfloat16, 2^-9 a product.
    assert first[0] == pytest.approx(losses(config, CPU)[0], rel=1e-4 if precision == "float32" else 3e-2)


@on_a_gpu
def test_dropout_on_a_gpu_follows_from_its_key_alone() -> None:
    config = replace(SEQUENCE, model=replace(SEQUENCE.model, dropout=0.4))
    gpu = torch.device("cuda", 0)
    assert losses(config, gpu)[0] == losses(config, gpu)[0]
    assert losses(config, gpu)[0] != losses(SEQUENCE, gpu)[0]
