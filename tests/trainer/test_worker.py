from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ett
from ett.errors import LostPeer, NotFound, UsageError
from ett.generation import FOLDER_VARIABLE
from ett.recipe import resolve
from ett.trainer import worker
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


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_rank_lives_on_only_where_its_process_group_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    def lose(*_: object) -> int:
        raise lost

    def leave() -> bool:
        left.append(is_closed)
        return is_closed

    lost, said, left = LostPeer("rank 1 is gone"), list[object](), list[bool]()
    start = SimpleNamespace(until_end=nullcontext(), say=said.append)
    monkeypatch.setattr(worker, "RankStart", lambda *_: start)
    monkeypatch.setattr(worker, "_train_and_score", lose)
    monkeypatch.setattr(worker, "leave_process_group", leave)
    written_recipe(tmp_path)
    run: Any = SimpleNamespace(job_dir=tmp_path)
    with pytest.raises(LostPeer) if is_closed else nullcontext():
        assert run_worker(run, {FOLDER_VARIABLE: str(tmp_path)}) == lost.exit_code
    assert said == ([] if is_closed else [lost])
    assert left == [is_closed]  # once: the second would wait as long
