"""Saves of a part of the rows, by the product: whatever happens between them, a restore is what was committed."""

from __future__ import annotations

import copy
import errno
import json
import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks, bits, raise_first, run_ranks
from test_failed_save import break_store, mend_store
from torch import nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.ranks import Ranks, current_ranks
from ett.checkpoint.table import copy_of_rows
from ett.checkpoint.verify import verify_commit
from ett.cli import run
from ett.errors import ConfigError, EttError
from ett.trainer.embedding.dense_rows import DenseRows
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.hashing import RowInit
from ett.trainer.sparse.row_optimizer import Adagrad
from ett.trainer.sparse.row_rules import RowRules
from ett.trainer.sparse.row_sums import each_row

NUM_IDS, FIXED, DIM = 120, 50, 3
POLICIES = ["adaptive", "incremental", "differential", "check_n_run", "full"]
Rows = dict[tuple[str, int], bytes]


def init(name: str) -> RowInit:
    return RowInit(name, seed=1, dim=DIM, scale=0.1)


class Tables(nn.Module):
    """A table that grows, one whose rows give way to others, and a range of one of a fixed size."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        place: dict[str, Any] = {"dim": DIM, "num_rows": 0, "rank": rank, "world_size": world_size}
        bounded = RowRules(max_rows=30, when_full="lru")
        self.grows = EmbeddingShard("grows", init("grows"), Adagrad(1e-8), **place)
        self.evicts = EmbeddingShard("evicts", init("evicts"), Adagrad(1e-8), rules=bounded, **place)
        size = -(-FIXED // world_size)
        ids = range(min(FIXED, rank * size), min(FIXED, (rank + 1) * size))
        self.fixed = DenseRows("fixed", init("fixed"), Adagrad(1e-8), dim=DIM, ids=ids)
        self.dense = nn.Parameter(torch.zeros(2))

    def train(self, rng: random.Random) -> None:
        """Update some rows; every rank draws the same ids and keeps its own."""
        for shard, limit in ((self.grows, NUM_IDS), (self.evicts, NUM_IDS), (self.fixed, FIXED)):
            ids = np.array(sorted(rng.sample(range(limit), rng.randint(0, 12))), np.int64)
            grads = torch.tensor([[rng.uniform(-1, 1) for _ in range(DIM)] for _ in ids]).view(-1, DIM)
            mine = shard.owned(torch.from_numpy(ids))
            if isinstance(shard, DenseRows):
                shard.update(ids[mine.numpy()], each_row(grads[mine]), 0.1)
            else:
                shard.update(ids[mine.numpy()], grads[mine], 0.1)
        with torch.no_grad():
            self.dense += rng.random()

    def rows(self) -> Rows:
        found: Rows = {("dense", 0): bits(self.dense)}
        for shard in (self.grows, self.evicts, self.fixed):
            rows = copy_of_rows(shard)  # type: ignore[arg-type]
            for n, row_id in enumerate(rows.ids.tolist()):
                values = [rows.weights[n], *(state[n] for state in rows.states.values())]
                found[shard.name, row_id] = b"".join(map(bits, values))
        return found


def opened(folder: Path, ranks: Ranks, **config: Any) -> tuple[Tables, Checkpointer, Any]:
    tables = Tables(ranks.rank, ranks.world_size)
    run = RecordingRun()
    checkpointer = Checkpointer(CheckpointConfig(uri=str(folder), **config), model=tables, run=run, ranks=ranks)
    return tables, checkpointer, run


def live(folder: Path, seed: int, config: dict[str, Any]) -> tuple[dict[int, Rows], int]:
    """Live through a few processes; return what each commit has to hold, and how many saves failed."""
    rng = random.Random(seed)
    expected: dict[int, Rows] = {}
    failed, step = 0, 0
    for _ in range(3):
        world_size, life = rng.choice([1, 2, 3]), rng.getrandbits(32)
        resume = "auto"
        if expected and rng.random() < 0.3:
            resume = str(rng.choice(list(expected)[-2:]))
        before = max(expected, default=0) if resume == "auto" else int(resume)

        def work(
            ranks: ThreadRanks, life: int = life, resume: str = resume, before: int = before, step: int = step
        ) -> tuple[list[tuple[int, Rows]], int]:
            mine = random.Random(life)
            tables, checkpointer, _ = opened(folder, ranks, **config)
            checkpointer.restore(resume)
            begun = tables.rows()
            saved, num_failed = [(before, begun)], 0
            for number in range(mine.randint(2, 7)):
                for _ in range(mine.randint(0, 3)):
                    tables.train(mine)
                broken = mine.choice([None, None, None, 0, ranks.world_size - 1])
                if broken == ranks.rank:
                    break_store(SimpleNamespace(checkpointer=checkpointer), errno.EIO)  # type: ignore[arg-type]
                try:
                    checkpointer.save(step + number + 1, number)
                    saved.append((step + number + 1, tables.rows()))
                except EttError:
                    num_failed += 1
                if broken == ranks.rank:
                    mend_store(SimpleNamespace(checkpointer=checkpointer))  # type: ignore[arg-type]
            checkpointer.close()  # what is old is gone before anybody looks
            return saved, num_failed

        results = run_ranks(world_size, work)
        raise_first(results)
        by_step: dict[int, Rows] = {}
        for saved, _ in results:  # type: ignore[misc]
            for at, rows in saved:
                merged = by_step.setdefault(at, {})
                assert not {key for key in rows if key in merged and key[0] != "dense"}
                merged |= rows
        if expected:
            assert by_step[before] == expected[before], f"restored step {before} is another state"
        expected |= by_step
        failed += results[0][1]  # type: ignore[index]
        step += 10
    expected.pop(0, None)
    return expected, failed


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.campaign if n else pytest.mark.slow) for n in range(5)]
)
def test_any_life_is_restored_as_it_was_committed(tmp_path: Path, policy: str, seed: int) -> None:
    rng = random.Random(1000 * seed)
    config = {"policy": policy, "max_chain": rng.randint(1, 6), "keep_last": rng.randint(1, 3)}
    expected, _ = live(tmp_path, seed, config)
    check_all(tmp_path, expected)


@pytest.mark.slow
def test_a_life_is_restored_as_it_was_committed(tmp_path: Path) -> None:
    expected, failed = live(tmp_path, 3, {"policy": "adaptive", "max_chain": 4, "keep_last": 3})
    assert failed and len(expected) > 4
    check_all(tmp_path, expected)


def check_all(folder: Path, expected: dict[int, Rows]) -> None:
    """Restore every commit that is left, by another number of ranks; the last one by several."""
    commits = [commit for commit in CommitLog(LocalStore(folder)).read_all()[0].values() if not commit.is_fresh]
    for commit in commits:
        verify_commit(LocalStore(folder), commit, "load")
    steps = sorted({commit.step for commit in commits})
    for world_size, step in [*((2, step) for step in steps), (1, steps[-1]), (3, steps[-1])]:

        def work(ranks: ThreadRanks, step: int = step) -> Rows:
            tables, checkpointer, _ = opened(folder, ranks, allow_foreign=True)
            checkpointer.restore(str(step))
            return tables.rows()

        found = run_ranks(world_size, work)
        raise_first(found)
        merged: Rows = {}
        for rows in found:
            merged |= rows  # type: ignore[operator]
        assert merged == expected[step], f"step {step} on {world_size} ranks"


def one_rank(folder: Path, **config: Any) -> tuple[Tables, Checkpointer]:
    tables, checkpointer, _ = opened(folder, current_ranks(), **config)
    checkpointer.restore()
    return tables, checkpointer


def kinds_of(commit: Commit, table: str) -> list[str]:
    (entry,) = [entry for entry in commit.tables if entry.spec.name == table]
    return [file.identity.kind for file in entry.files if file.seq == commit.seq]


def test_what_is_written_is_what_changed(tmp_path: Path) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="incremental", max_chain=8)
    every, one = np.arange(NUM_IDS), np.array([7])
    tables.grows.update(every, torch.ones(NUM_IDS, DIM), 0.1)
    base = checkpointer.save(1, 1)
    assert (base.type, base.policy, kinds_of(base, "grows")) == ("base", "incremental", ["base"])
    assert base.digest is not None
    tables.grows.update(one, torch.ones(1, DIM), 0.1)
    delta = checkpointer.save(2, 2)
    assert (delta.type, kinds_of(delta, "grows"), kinds_of(delta, "fixed")) == ("delta", ["cold"], [])
    assert [file.num_rows for file in delta.tables[2].files if file.seq == delta.seq] == [1]
    assert delta.tables[2].num_rows == NUM_IDS
    nothing = checkpointer.save(3, 3)
    assert kinds_of(nothing, "grows") == [] and nothing.chain_len == 1


@pytest.mark.slow
def test_digests_of_a_chain_are_computed_when_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for policy in ("incremental", "full"):
        tables, checkpointer = one_rank(tmp_path / policy, policy=policy)
        for step in (1, 2):
            tables.train(random.Random(step))
            checkpointer.save(step, step)
        assert run(["checkpoint", "show", str(tmp_path / policy), "--digest", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)["data"]
        assert facts["type"] == ("base" if policy == "full" else "delta")
        digests.append([facts["digest"], *(table["digest"] for table in facts["tables"])])
    assert digests[0] == digests[1] and None not in digests[0]


def test_diff_compares_what_chains_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="incremental", keep_last=9)
    tables.train(random.Random(1))
    checkpointer.save(1, 1)
    tables.grows.update(np.array([5]), torch.ones(1, DIM), 0.1)
    for step in (2, 3):
        checkpointer.save(step, step)

    def compared(*steps: int) -> tuple[bool, dict[str, str]]:
        assert run(["checkpoint", "diff", str(tmp_path), *map(str, steps), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)["data"]
        return data["equal"], {row["table"]: row["content"] for row in data["tables"]}

    same = dict.fromkeys(("evicts", "fixed", "grows", "(dense)"), "equal")
    assert compared(1, 2) == (False, same | {"grows": "changed"})
    assert compared(2, 3) == (True, same)


def test_the_longest_chain_is_kept(tmp_path: Path) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="differential", max_chain=2)
    types = []
    for step in range(1, 8):
        tables.grows.update(np.arange(step), torch.ones(step, DIM), 0.1)
        types.append(checkpointer.save(step, step).type)
    assert types == ["base", "delta", "delta", "base", "delta", "delta", "base"]


def test_rows_that_were_written_behind_a_table_are_saved_when_it_is_told(tmp_path: Path) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="incremental", max_chain=8)
    checkpointer.save(1, 1)
    with torch.no_grad():
        tables.fixed.weight[3] = 5.0
        tables.fixed.weight[9] = 6.0
    checkpointer.touched("fixed", np.array([3, 9]))
    commit = checkpointer.save(2, 2)
    assert kinds_of(commit, "fixed") == ["cold"]
    with torch.no_grad():
        tables.fixed.weight[:] = 1.0
    checkpointer.touched("fixed", None)
    checkpointer.save(3, 3)
    expected = tables.rows()
    found, _ = one_rank(tmp_path)
    assert found.rows() == expected
    with pytest.raises(ConfigError, match="no table"):
        checkpointer.touched("fixd", None)


def test_loading_a_state_is_a_change_of_every_row(tmp_path: Path) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="incremental", max_chain=8)
    checkpointer.save(1, 1)
    tables.load_state_dict({"fixed.weight": torch.full((FIXED, DIM), 2.0)}, strict=False)
    checkpointer.save(2, 2)
    expected = tables.rows()
    assert one_rank(tmp_path)[0].rows() == expected


def buffered(remote: Path, buffer: Path, policy: str) -> tuple[Tables, Checkpointer]:
    tables = Tables(0, 1)
    config = CheckpointConfig(uri=str(remote), buffer_dir=str(buffer), policy=policy, keep_last=1)
    ranks = ThreadRanks(0, 1, Meeting(1))
    checkpointer = Checkpointer(config, model=tables, run=RecordingRun(), ranks=ranks, store=LocalStore(remote))
    checkpointer.restore()
    return tables, checkpointer


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["adaptive", "differential"])
def test_a_chain_goes_on_where_its_first_files_are_in_the_remote_folder_only(tmp_path: Path, policy: str) -> None:
    rng, rows = random.Random(1), {}
    for host in ("1", "2", "2", "3"):
        tables, checkpointer = buffered(tmp_path / "remote", tmp_path / host, policy)
        assert tables.rows() == rows or not rows
        for _ in range(2):
            tables.train(rng)
            checkpointer.save(1 + len(CommitLog(LocalStore(tmp_path / "remote")).seqs()), 1)
        rows = tables.rows()
        checkpointer.close()
    commit = CommitLog(LocalStore(tmp_path / "remote")).read_all()[0].popitem()[1]
    assert commit.type == "delta"
    assert one_rank(tmp_path / "remote")[0].rows() == rows


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "incremental"])
def test_rows_that_every_rank_has_are_restored_on_any_number_of_ranks(tmp_path: Path, policy: str) -> None:
    def life(ranks: ThreadRanks) -> tuple[bytes, bytes]:
        given = {"dim": DIM, "ids": range(FIXED), "is_exporter": ranks.rank == 0}
        rows = DenseRows("fixed", init("fixed"), Adagrad(1e-8), **given)  # type: ignore[arg-type]
        config = CheckpointConfig(uri=str(tmp_path), policy=policy)
        checkpointer = Checkpointer(config, model=rows, run=RecordingRun(), ranks=ranks)
        restored = checkpointer.restore()
        before, step = bits(rows.weight.detach()), restored.step if restored else 0
        for number in (1, 2):
            rows.update(np.arange(number, FIXED, 7), each_row(torch.ones(len(range(number, FIXED, 7)), DIM)), 0.1)
            checkpointer.save(step + number, 1)
        checkpointer.close()
        return before, bits(rows.weight.detach())

    after = None
    for world_size in (2, 3, 1, 2):
        found = run_ranks(world_size, life)
        raise_first(found)
        assert len(set(found)) == 1
        assert after in (None, found[0][0])  # type: ignore[index]
        after = found[0][1]  # type: ignore[index]


def fixed_rows(folder: Path, rows: DenseRows) -> Checkpointer:
    model = nn.ModuleDict({"fixed": rows})
    return Checkpointer(CheckpointConfig(uri=str(folder), policy="incremental"), model=model, run=RecordingRun())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda rows: pickle.loads(pickle.dumps(rows))])
def test_a_copy_of_a_table_tells_whoever_tracks_the_copy(tmp_path: Path, copied: Any) -> None:
    table = DenseRows("fixed", init("fixed"), Adagrad(1e-8), dim=DIM, ids=range(FIXED))
    of_table = fixed_rows(tmp_path / "1", table)
    of_table.save(1, 1)
    rows = copied(table)
    of_rows = fixed_rows(tmp_path / "2", rows)
    of_rows.save(1, 1)
    rows.load_state_dict({"weight": torch.full((FIXED, DIM), 2.0)})
    assert kinds_of(of_table.save(2, 2), "fixed") == []
    assert kinds_of(of_rows.save(2, 2), "fixed") == ["cold"]
    for checkpointer in (of_table, of_rows):
        checkpointer.close()


def test_ids_that_are_no_rows_may_be_told_of(tmp_path: Path) -> None:
    tables, checkpointer = one_rank(tmp_path, policy="incremental")
    tables.train(random.Random(1))
    checkpointer.save(1, 1)
    unknown = np.array([10**6, -1, 3, 10**6, 3])
    for name in ("grows", "evicts", "fixed"):
        checkpointer.touched(name, unknown)
    commit = checkpointer.save(2, 2)
    verify_commit(LocalStore(tmp_path), commit, "load")
    found, restored = one_rank(tmp_path)
    assert (found.rows(), restored._epoch.seq) == (tables.rows(), commit.seq + 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("ids", [np.array([3.5]), np.array([3], np.int32), np.array([[3]])])
def test_ids_of_another_kind_are_refused(tmp_path: Path, ids: Any) -> None:
    _, checkpointer = one_rank(tmp_path, policy="incremental")
    with pytest.raises(ConfigError, match="int64"):
        checkpointer.touched("grows", ids)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_two_checkpointers_of_a_model_each_save_what_it_is(tmp_path: Path, policy: str) -> None:
    rng = random.Random(1)
    tables, first = one_rank(tmp_path / "1", policy=policy)
    first.save(1, 1)
    ranks = first._place.ranks
    config = CheckpointConfig(uri=str(tmp_path / "2"), policy=policy)
    second = Checkpointer(config, model=tables, run=RecordingRun(), ranks=ranks)
    second.save(1, 1)
    saved = {}
    for folder, checkpointer in [("1", first), ("1", first), ("2", second), ("1", first), ("2", second)]:
        tables.train(rng)
        checkpointer.save(len(saved) + 2, 1)
        saved[folder] = tables.rows()
    for folder, rows in saved.items():
        assert one_rank(tmp_path / folder)[0].rows() == rows


def test_rows_wider_than_a_block_of_staging_memory_are_tracked_where_nothing_is_staged(tmp_path: Path) -> None:
    rows = DenseRows("wide", RowInit("wide", seed=1, dim=70_000, scale=0.1), Adagrad(1e-8), dim=70_000, ids=range(3))
    checkpointer = Checkpointer(
        CheckpointConfig(uri=str(tmp_path), policy="incremental", background=False), model=rows, run=RecordingRun()
    )
    checkpointer.save(1, 1)
    rows.update(np.array([1]), each_row(torch.ones(1, 70_000)), 0.1)
    commit = checkpointer.save(2, 2)
    checkpointer.close()
    assert (commit.type, commit.stats["cold_rows"]) == ("delta", 1)


def test_what_saves_and_restores_take_is_what_the_policy_reckons_with(tmp_path: Path) -> None:
    def opened_alone(**config: Any) -> tuple[Tables, Checkpointer]:
        (found,) = run_ranks(1, lambda ranks: opened(tmp_path, ranks, policy="adaptive", **config))
        raise_first([found])
        return found[:2]  # type: ignore[index]

    tables, checkpointer = opened_alone(background=True, interval="1 steps")
    tables.train(random.Random(1))
    checkpointer.step(1, 1)
    commit, rates = checkpointer.save(1, 1), checkpointer._tables._rates
    checkpointer.close()
    # The save went on beside training: only the stall of its boundary is exposed.
    assert (rates.exposed.above, rates.exposed.below) == (commit.stats["stall_s"], commit.stats["write_s"])
    assert rates.exposed.above < rates.exposed.below and not rates.read.below
    _, restored = opened_alone()
    restored.restore()
    assert restored._tables._rates.read.above == commit.num_bytes and restored._tables._rates.read.below > 0
    restored.close()
