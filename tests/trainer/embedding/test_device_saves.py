"""Tables in device memory saved while training goes on: each commit has every bit of its step boundary."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from device_world import CACHES, Make, batch, make, train
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.table import copy_of_rows
from ett.trainer import EmbeddingBagCollection, EmbOptimType
from ett.trainer.embedding.cache_params import CacheParams

__all__ = ["make"]  # a fixture


class Model(nn.Module):
    def __init__(self, tables: EmbeddingBagCollection) -> None:
        super().__init__()
        self.tables = tables


def copies(model: Model) -> list[dict[str, torch.Tensor]]:
    found = []
    for part in model.tables.embedding_bags.values():
        rows = copy_of_rows(part)  # type: ignore[arg-type]
        found.append({"ids": rows.ids, "weights": rows.weights.clone(), **rows.states})
    return found


def assert_same(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "policy", "background"),
    [
        (None, "adaptive", True),
        (CACHES[1], "full", True),
        (CACHES[2], "adaptive", True),
        (CACHES[2], "incremental", True),
        (CACHES[2], "adaptive", False),
    ],
)
def test_every_commit_is_its_step_boundary(
    make: Make, tmp_path: Path, cache: CacheParams | None, background: bool, policy: Any
) -> None:
    rng = random.Random(policy)
    config = CheckpointConfig(
        uri=str(tmp_path), interval="1 steps", policy=policy, background=background, keep_last=100, max_chain=4
    )
    model = Model(make(EmbOptimType.EXACT_ROWWISE_ADAGRAD, cache))
    checkpointer = Checkpointer(config, model=model)
    assert checkpointer.restore() is None
    expected: dict[int, list[dict[str, torch.Tensor]]] = {}
    for step in range(1, 9):
        for _ in range(3):
            train(model.tables, batch(rng))
        expected[step] = copies(model)
        checkpointer.step(step, step * 3)
        for _ in range(2):
            train(model.tables, batch(rng))
    last = checkpointer.save(9, 27)
    checkpointer.close()
    assert policy == "full" or sum(file.num_rows for file in last.tables[0].files if file.seq == last.seq) < 170
    for step in (1, 4, 8):
        again = Model(make(EmbOptimType.EXACT_ROWWISE_ADAGRAD, cache))
        reader = Checkpointer(config, model=again)
        restored = reader.restore(resume=str(step))
        reader.close()
        assert restored is not None and restored.step == step
        assert_same(copies(again), expected[step])
