from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ett
from ett.errors import NotFound, UsageError
from ett.recipe import resolve
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.worker import build_model, read_recipe, run_worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"


def written_recipe(folder: Path, *overrides: str) -> Path:
    path = folder / "recipe.json"
    path.write_text(json.dumps(resolve(EXAMPLE, overrides).sections))
    return path


def test_a_worker_reads_what_the_recipe_said(tmp_path: Path) -> None:
    recipe = read_recipe(written_recipe(tmp_path, "train.batch_size=77", "checkpoint.interval=5 steps"))
    assert recipe.trainer.train.batch_size == 77
    assert recipe.trainer.model.top_mlp == (128, 64)
    assert recipe.checkpoint.interval == "5 steps"


def test_the_example_builds_26_tables_of_torchrecs_names(tmp_path: Path) -> None:
    model = build_model(read_recipe(written_recipe(tmp_path)).trainer, LocalCollectives())
    assert [shard.name for shard in model.ebc.shards()] == [f"embedding_bags.t_C{i}" for i in range(1, 27)]


def test_the_seed_decides_the_first_rows(tmp_path: Path) -> None:
    rows = []
    for seed in (1, 2):
        recipe = read_recipe(written_recipe(tmp_path, f"train.seed={seed}"))
        ebc = build_model(recipe.trainer, LocalCollectives()).ebc
        rows.append(ebc.look_up({f"C{i}": np.array([i]) for i in range(1, 27)}).inputs.pooled[0])
    assert not torch.equal(rows[0], rows[1])


def test_a_missing_recipe_says_how_to_start_workers(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="ett launch"):
        read_recipe(tmp_path / "recipe.json")


def test_a_worker_outside_a_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ett.init()
    monkeypatch.setattr(run, "job_dir", None)
    with pytest.raises(UsageError, match="belongs to no job"):
        run_worker(run, {})
