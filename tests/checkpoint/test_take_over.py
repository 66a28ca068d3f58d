"""A job that begins with another's commit has its rows, bit for bit, but for what it says it has not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_world import DictShard, Loader, RecordingRun, ThreadRanks, raise_first, random_bits, run_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer, RestoredPosition, StateSpec, TableRows
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.source import VARIABLE, Source
from ett.errors import ConfigError, NotFound, RestoreFailed
from ett.recovery.lineage import find_source

NUM_ROWS = 40
OLD = {"a": 4, "b": 4, "c": 4}  # names and widths


class Rank:
    def __init__(self, uri: Path, ranks: ThreadRanks, tables: Mapping[str, int], top: int, **config: Any) -> None:
        state = (StateSpec(name="sum", dtype="float32", width=1),)
        place = (ranks.rank, ranks.world_size)
        self.tables = {name: DictShard(name, dim, state, place) for name, dim in tables.items()}
        torch.manual_seed(top)
        self.model = nn.ModuleDict({**self.tables, "bottom": nn.Linear(2, 2), "top": nn.Linear(2, top)})
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loader, self.run = Loader(), RecordingRun()
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(uri), **config),
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            run=self.run,
            ranks=ranks,
        )

    def fill(self, seed: int) -> None:
        for name, shard in self.tables.items():
            drawn = torch.Generator().manual_seed(seed + ord(name[0]))
            ids = torch.arange(NUM_ROWS)
            weights = random_bits((NUM_ROWS, shard.dim), torch.float32, drawn)
            sums = random_bits((NUM_ROWS, 1), torch.float32, drawn)
            mine = shard.owned(ids)
            shard.rows = TableRows(ids=ids[mine], weights=weights[mine], states={"sum": sums[mine]})
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.loader.state = {"cursor": seed * 10}

    def rows(self) -> dict[tuple[str, int], bytes]:
        return {
            (name, int(row_id)): weights.numpy().tobytes() + total.numpy().tobytes()
            for name, shard in self.tables.items()
            for row_id, weights, total in zip(shard.rows.ids, shard.rows.weights, shard.rows.states["sum"], strict=True)
        }


def world(uri: Path, size: int, tables: Mapping[str, int], *, save: int = 0, top: int = 3, **config: Any) -> Any:
    """Begin on every rank; with `save`, fill and save that step. Return ranks and positions."""

    def work(ranks: ThreadRanks) -> tuple[Rank, RestoredPosition | None]:
        rank = Rank(uri, ranks, tables, top, **config)
        at = rank.checkpointer.restore()
        if save:
            if at is None:
                rank.fill(save)
            rank.checkpointer.save(save, save * 10)
        return rank, at

    results = run_ranks(size, work)
    raise_first(results)
    return results


def all_rows(found: Any) -> dict[tuple[str, int], bytes]:
    return {key: value for rank, _ in found for key, value in rank.rows().items()}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], bytes]:
    """Save job "old" at step 7, have what follows begin with it, and return its rows."""
    rows = all_rows(world(tmp_path / "old", 2, OLD, save=7))
    monkeypatch.setenv(VARIABLE, json.dumps(find_source(str(tmp_path / "old"), tmp_path)))
    return rows


@st.composite
def migrations(draw: st.DrawFn) -> tuple[MigrateConfig, dict[str, int], dict[str, str]]:
    """A config, the tables of the model that goes on, and from which of the commit each of those comes."""
    fates = {name: draw(st.sampled_from(["same", "drop", "rename", "resize"])) for name in OLD}
    origin = {f"{name}2" if fate == "rename" else name: name for name, fate in fates.items() if fate != "drop"}
    tables = {new: draw(st.sampled_from([2, 6])) if fates[old] == "resize" else OLD[old] for new, old in origin.items()}
    added = ("z",) if draw(st.booleans()) else ()
    config = MigrateConfig(
        drop=tuple(name for name, fate in fates.items() if fate == "drop"),
        rename={name: f"{name}2" for name, fate in fates.items() if fate == "rename"},
        resize=tuple(name for name, fate in fates.items() if fate == "resize"),
        add=added,
    )
    return config, tables | dict.fromkeys(added, 4), origin


def expected(
    rows: dict[tuple[str, int], bytes], tables: Mapping[str, int], origin: Mapping[str, str]
) -> dict[tuple[str, int], bytes]:
    found = {}
    for new, old in origin.items():
        was, now = 4 * OLD[old], 4 * tables[new]
        for row_id in range(NUM_ROWS):
            row = rows[old, row_id]
            found[new, row_id] = row[: min(was, now)] + bytes(max(0, now - was)) + row[was:]
    return found


@pytest.mark.slow
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(migration=migrations(), size=st.integers(1, 3))
def test_rows_are_those_of_the_commit_under_their_new_names_and_widths(
    migration: tuple[MigrateConfig, dict[str, int], dict[str, str]],
    size: int,
    source: dict[tuple[str, int], bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config, tables, origin = migration
    uri = tmp_path_factory.mktemp("new")
    begun = world(uri, size, tables, migrate=config)
    assert all_rows(begun) == expected(source, tables, origin)
    assert [(at.step, at.cursor) for _, at in begun] == [(7, 70)] * size
    world(uri, size, tables, migrate=config, save=8)
    again = world(uri, size % 3 + 1, tables, migrate=config)
    assert all_rows(again) == expected(source, tables, origin)  # from its own commit: whole, without the other's files
    assert {(at.step, at.source) for _, at in again} == {(8, "")}


@pytest.mark.usefixtures("source")
def test_what_a_job_began_with_stands_in_its_commits_and_its_log(tmp_path: Path) -> None:
    (begun, *_) = world(tmp_path / "new", 1, OLD, save=9)
    (found,) = [commit for commit in CommitLog(LocalStore(tmp_path / "new")).read_all()[0].values() if commit.dense]
    origin = find_source(str(tmp_path / "old"), tmp_path)
    assert found.stats["from"] == Source(**origin).lineage()
    assert begun[1].source == "step 7 of job test-job"
    assert (found.parent_seq, found.step) == (1, 9)


@pytest.mark.usefixtures("source")
def test_a_life_that_ended_before_its_first_save_begins_with_it_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert [at.step for _, at in world(tmp_path / "new", 2, OLD)] == [7, 7]


@pytest.mark.parametrize(
    ("tables", "named"),
    [({"a": 4, "b": 4}, 'drop = ["c"]'), ({**OLD, "d": 4}, 'add = ["d"]'), ({**OLD, "a": 8}, 'resize = ["a"]')],
)
@pytest.mark.usefixtures("source")
def test_what_is_not_named_is_refused_on_every_rank_and_nothing_is_written(
    tables: dict[str, int], named: str, tmp_path: Path
) -> None:
    def work(ranks: ThreadRanks) -> None:
        Rank(tmp_path / "new", ranks, tables, 3).checkpointer.restore()

    results = run_ranks(2, work)
    assert [type(err) for err in results] == [ConfigError, ConfigError]
    assert all(err.code == "F008" and named in err.do for err in results if isinstance(err, ConfigError))
    assert not list((tmp_path / "new").rglob("commits/*"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_beyond_the_bound_are_left_behind_once_that_is_named_and_verified_all_the_same(
    size: int, source: dict[tuple[str, int], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DictShard, "num_rows", 25, raising=False)  # as a table with num_embeddings has it
    with pytest.raises(ConfigError, match="takes ids below 25, the commit has 40 up to 39"):
        world(tmp_path / "refused", size, OLD)
    begun = world(tmp_path / "new", size, OLD, migrate=MigrateConfig(resize=tuple(OLD)))
    assert all_rows(begun) == {key: row for key, row in source.items() if key[1] < 25}


@pytest.mark.usefixtures("source")
def test_dense_tensors_begin_anew_where_that_is_named_and_their_optimizer_state_with_them(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"dense tensor top\.bias is float32 \[3\] in the commit, float32 \[5\] in the model"
    ):
        world(tmp_path / "refused", 1, OLD, top=5)
    ((old, _),) = world(tmp_path / "old", 1, OLD)
    ((new, _),) = world(tmp_path / "new", 1, OLD, top=5, migrate=MigrateConfig(reset=("top.*",)))
    torch.manual_seed(5)
    fresh = nn.ModuleDict({"bottom": nn.Linear(2, 2), "top": nn.Linear(2, 5)})
    assert torch.equal(new.model["bottom"].weight, old.model["bottom"].weight)
    assert torch.equal(new.model["top"].weight, fresh["top"].weight)
    states = {name: new.optimizer.state.get(parameter, {}) for name, parameter in new.model.named_parameters()}
    assert {name: bool(state) for name, state in states.items()} == {
        "bottom.weight": True, "bottom.bias": True, "top.weight": False, "top.bias": False
    }  # fmt: skip
    for parameter in new.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    new.optimizer.step()


@pytest.mark.usefixtures("source")
def test_a_new_window_of_data_begins_at_step_and_sample_zero(tmp_path: Path) -> None:
    ((rank, at),) = world(tmp_path / "new", 1, OLD, migrate=MigrateConfig(position="restart"))
    assert (at.step, at.cursor, rank.loader.state) == (0, 0, Loader().state)
    ((rank, at),) = world(tmp_path / "other", 1, OLD)
    assert (at.step, at.cursor, rank.loader.state) == (7, 70, {"cursor": 70})


@pytest.mark.usefixtures("source")
def test_a_commit_that_is_gone_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "old" / "commits").iterdir():
        path.unlink()
    with pytest.raises(NotFound, match=r"step 7 of .* is no more under"):
        world(tmp_path / "new", 1, OLD)


@pytest.mark.usefixtures("source")
def test_a_commit_of_the_same_number_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = find_source(str(tmp_path / "old"), tmp_path) | {"ckpt_uuid": "e000001-other"}
    monkeypatch.setenv(VARIABLE, json.dumps(other))
    with pytest.raises(NotFound, match="is no more under"):
        world(tmp_path / "new", 1, OLD)


@pytest.mark.usefixtures("source")
def test_a_damaged_commit_is_refused_and_nothing_is_begun(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "old")
    (commit,) = [commit for commit in CommitLog(store).read_all()[0].values() if commit.dense]
    path = tmp_path / "old" / commit.tables[0].files[0].stored.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RestoreFailed, match=r"step 7 of .* does not verify"):
        world(tmp_path / "new", 1, OLD)
    assert not list((tmp_path / "old" / "leases").glob("*.json"))


def test_a_source_survives_its_way_through_the_environment(tmp_path: Path) -> None:
    source = Source(job="x", uri="s3://b/c", seq=3, step=2, cursor=1, ckpt_uuid="e1")
    assert Source.of_environ({VARIABLE: json.dumps(asdict(source))}) == source
    assert Source.of_environ({}) is None
