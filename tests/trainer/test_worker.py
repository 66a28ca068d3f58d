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
from ett.trainer.job_recipe import read_recipe
from ett.trainer.rank_start import build_model
from ett.trainer.worker import run_worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"


def written_recipe(folder: Path, *overrides: str, example: Path = EXAMPLE) -> Path:
    path = folder / "recipe.json"
    path.write_text(json.dumps(resolve(example, overrides).sections))
    return path


def test_a_worker_reads_what_the_recipe_said(tmp_path: Path) -> None:
    recipe = read_recipe(written_recipe(tmp_path, "train.batch_size=77", "checkpoint.interval=5 steps"))
    assert recipe.trainer.train.batch_size == 77
    assert recipe.trainer.model.top_mlp == (128, 64)
    assert recipe.checkpoint.interval == "5 steps"


def test_the_example_builds_26_tables_of_torchrecs_names(tmp_path: Path) -> None:
    model = build_model(read_recipe(written_recipe(tmp_path)).trainer, LocalCollectives())
    assert [shard.name for shard in model.ebc.shards()] == [f"embedding_bags.t_C{i}" for i in range(1, 27)]


@pytest.mark.parametrize("name", ["criteo", "criteo_dcn_v2", "sequence"])
def test_each_example_names_a_model_that_its_data_can_feed(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(written_recipe(tmp_path, example=EXAMPLE.with_name(f"{name}.toml")))
    model = build_model(recipe.trainer, LocalCollectives(), data=recipe.data)
    fed = {feature for _, features in model.ebc.pooled for feature in features} | set(model.ebc.sequences)
    assert fed == set(recipe.data.id_features)
    assert recipe.trainer.model.kind == {"criteo": "dlrm", "criteo_dcn_v2": "dcn_v2", "sequence": "hstu"}[name]


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
