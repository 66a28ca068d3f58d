"""A rank that another one was lost to: its tables go on into its next generation, and the bits are the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_worker import written_recipe

from ett.errors import LostPeer
from ett.generation import FOLDER_VARIABLE
from ett.tracker import Run, RunIdentity
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.embedding import kept_tables
from ett.trainer.embedding.kept_tables import KeptTables
from ett.trainer.job_recipe import read_recipe
from ett.trainer.loop import TrainingStep
from ett.trainer.rank_start import build_model
from ett.trainer.sparse.tiers.tiers import RankPlace
from ett.trainer.worker import run_worker

SMALL = ("data.generate.rows=1500", "train.batch_size=128", "eval.enabled=false", "train.max_steps=8")
SAVES = ("checkpoint.interval=3 steps", "checkpoint.background=false", "checkpoint.policy=incremental")


def test_a_rank_that_lives_on_ends_with_the_bits_of_one_that_was_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the last step's rows have changed when the other rank is noticed to be gone."""
    results, take, lost_at = [], TrainingStep.take, {5, 7}
    num_threads = torch.get_num_threads()
    for name in ("undisturbed", "lives_on"):
        folder = tmp_path / name
        folder.mkdir()
        written_recipe(folder, *SMALL, *SAVES)
        run, kept = Run(RunIdentity(job="j", attempt=1, job_dir=folder)), KeptTables()

        def lose(self: TrainingStep, step: int, *parts: object, is_lost: bool = name == "lives_on") -> object:
            found = take(self, step, *parts)  # type: ignore[arg-type]
            if is_lost and step in lost_at:
                lost_at.remove(step)
                raise LostPeer("injected")
            return found

        monkeypatch.setattr(TrainingStep, "take", lose)
        code = -1
        while code == -1:
            try:
                code = run_worker(run, {FOLDER_VARIABLE: str(folder)}, None, kept)
            except LostPeer:
                continue
        run.unwatch_sigterm()
        run.close()
        assert code == 0
        results.append(json.loads((folder / "result.json").read_text()))
    torch.set_num_threads(num_threads)
    assert results[0] == results[1]
    (log,) = (tmp_path / "lives_on").rglob("r0-*.jsonl")
    records = [json.loads(line.rsplit("\t", 1)[0]) for line in log.read_text().splitlines()]
    restores = [record for record in records if record["ev"] == "restore"]
    assert [record["scope"] for record in restores] == ["partial", "partial"]
    assert all(record["kept_bytes"] > 0 and "not_kept" not in record for record in restores)


def test_tables_without_a_commit_and_those_of_another_place_are_not_taken(tmp_path: Path) -> None:
    tables = build_model(read_recipe(written_recipe(tmp_path)).trainer, LocalCollectives()).ebc
    place = RankPlace(job_dir=tmp_path, rank=0, world_size=1)
    kept = KeptTables()
    kept.keep(tables, place)
    assert not kept.take(place)


def test_a_generation_with_nothing_to_restore_has_neither_rows_nor_sightings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = read_recipe(written_recipe(tmp_path, "sparse.admit_after=2"))
    tables = build_model(recipe.trainer, LocalCollectives()).ebc
    shard = tables.shards()[0]
    ids = np.arange(8)
    for _ in range(2):  # seen, then admitted
        shard.update(ids, torch.ones(8, shard.dim), 0.1)
    shard.update(ids + 8, torch.ones(8, shard.dim), 0.1)  # seen once
    assert shard.sightings is not None and len(shard) and len(shard.sightings)
    monkeypatch.setattr(kept_tables, "has_rows_of_a_commit", lambda shard: True)
    place, kept = RankPlace(job_dir=tmp_path, rank=0, world_size=1), KeptTables()
    kept.keep(tables, place)
    assert kept.take(place)
    kept.forget()
    assert not len(shard) and not len(shard.sightings)
