"""Saves that are written while training goes on, by the product: a commit is the state of its step boundary."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from checkpoint_world import RecordingRun, ThreadRanks, raise_first, run_ranks
from test_policy_saves import POLICIES, Rows, Tables, check_all

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.capture import row_capture
from ett.checkpoint.capture.staging_pool import BLOCK_BYTES
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.errors import ConfigError, Unreachable


class PacedStore(LocalStore):
    """Segments are begun when a test lets them; a write fails when it says so."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._permits, self._is_open = threading.Condition(), True
        self._num = 0
        self.fails = False

    def hold(self) -> None:
        with self._permits:
            self._is_open, self._num = False, 0

    def let(self, num: int) -> None:
        with self._permits:
            self._num += num
            self._permits.notify_all()

    def go(self) -> None:
        with self._permits:
            self._is_open = True
            self._permits.notify_all()

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        if name.endswith(".seg"):
            with self._permits:
                assert self._permits.wait_for(lambda: self._is_open or self._num > 0, timeout=60)
                self._num -= not self._is_open
            if self.fails:
                raise Unreachable("injected")
        with super().create_stream(name) as file:
            yield file


def opened(folder: Path, ranks: ThreadRanks, **config: Any) -> tuple[Tables, Checkpointer, PacedStore, RecordingRun]:
    """Open a checkpointer that skips no save on a slow machine, unless `config` has a stall budget."""
    tables, run, store = Tables(ranks.rank, ranks.world_size), RecordingRun(), PacedStore(folder)
    settings = CheckpointConfig(uri=str(folder), background=True, **{"stall_budget_s": 60.0, **config})
    return tables, Checkpointer(settings, model=tables, run=run, ranks=ranks, store=store), store, run


def live(folder: Path, seed: int, config: dict[str, Any]) -> dict[int, Rows]:
    """Live through a few processes; return what a commit of each step has to hold, if there is one."""
    rng = random.Random(seed)
    expected: dict[int, Rows] = {}
    for life in range(3):

        def work(ranks: ThreadRanks, life: int = life, seed: int = rng.getrandbits(32)) -> dict[int, Rows]:
            mine, rows = random.Random(seed), {}
            budget = {"interval": "3 steps", "stall_budget_s": 1e-3}
            tables, checkpointer, store, _ = opened(folder, ranks, **budget, **config)
            checkpointer.restore()
            first = 30 * life + 1
            for step in range(first, first + 15):
                tables.train(mine)
                store.let(mine.randint(0, 2))
                if step % 3 == 0:
                    rows[step] = tables.rows()
                    if mine.random() < 0.8:  # else it is skipped, if the one before has not ended by itself
                        store.go()
                        assert checkpointer.has_settled(60)
                        store.hold()
                        store.fails = mine.random() < 0.2
                checkpointer.step(step, step)
            store.go()
            store.fails = False
            rows[first + 15] = tables.rows()
            checkpointer.save(first + 15, 0)
            checkpointer.close()
            return rows

        results = run_ranks(rng.choice([1, 2, 3]), work)
        raise_first(results)
        for rows in results:
            for step, part in rows.items():  # type: ignore[union-attr]
                expected.setdefault(step, {}).update(part)
    return expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=pytest.mark.slow), *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 6))],
)
def test_any_life_is_restored_as_it_was_at_the_boundaries(
    tmp_path: Path, policy: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_capture, "_SWEPT_BYTES", 64)
    expected = live(tmp_path, seed, {"policy": policy, "max_chain": 3, "keep_last": 20})
    commits = [commit for commit in CommitLog(LocalStore(tmp_path)).read_all()[0].values() if not commit.is_fresh]
    assert len(commits) >= 6
    check_all(tmp_path, expected)


def alone(folder: Path, **config: Any) -> tuple[Tables, Checkpointer, PacedStore, RecordingRun]:
    (found,) = run_ranks(1, lambda ranks: opened(folder, ranks, **config))
    raise_first([found])
    return found  # type: ignore[return-value]


def commits_of(folder: Path) -> list[Commit]:
    return [commit for commit in CommitLog(LocalStore(folder)).read_all()[0].values() if not commit.is_fresh]


@pytest.mark.slow
def test_training_goes_on_while_a_save_waits_for_its_disk(tmp_path: Path) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps", policy="adaptive")
    rng = random.Random(0)
    tables.train(rng)
    rows = tables.rows()
    store.hold()
    assert checkpointer.step(1, 10) is None
    for _ in range(20):
        tables.train(rng)
    assert commits_of(tmp_path) == [] and "committed" not in run.kinds()
    store.go()
    checkpointer.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [1]
    assert commits_of(tmp_path)[0].stats["staged_bytes"] >= BLOCK_BYTES
    assert [fields["step"] for kind, fields in run.said if kind == "committed"] == [1]
    assert tables.rows() != rows
    check_all(tmp_path, {1: rows})


@pytest.mark.slow
def test_a_due_save_waits_for_the_one_that_is_under_way(tmp_path: Path) -> None:
    tables, checkpointer, _, _ = alone(tmp_path, interval="1 steps")
    expected = {}
    for step in range(1, 4):
        tables.train(random.Random(step))
        expected[step] = tables.rows()
        checkpointer.step(step, step)
    checkpointer.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [1, 2, 3]
    check_all(tmp_path, expected)


def test_the_save_of_a_step_that_is_under_way_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    tables, checkpointer, _, _ = alone(tmp_path, interval="1 steps")
    tables.train(random.Random(1))
    checkpointer.step(1, 1)
    commit = checkpointer.save(1, 1)
    assert [(each.step, each.seq) for each in commits_of(tmp_path)] == [(1, commit.seq)]
    checkpointer.close()


@pytest.mark.slow
def test_what_fails_in_the_background_is_counted_at_the_next_boundary_and_raised_the_third_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps", policy="incremental")
    expected = {}
    rng = random.Random(1)
    for step in range(1, 4):
        tables.train(rng)
        expected[step] = tables.rows()
        checkpointer.step(step, step)
    assert checkpointer.has_settled(60)
    store.fails = True
    tables.train(rng)
    checkpointer.step(4, 4)
    for step in (5, 6):
        tables.train(rng)
        checkpointer.step(step, step)
    assert [fields["in_a_row"] for kind, fields in run.said if kind == "ckpt_abandoned"] == [1, 2]
    with pytest.raises(Unreachable, match="injected"):
        checkpointer.step(7, 7)
    store.fails = False
    tables.train(rng)
    expected[8] = tables.rows()
    assert checkpointer.save(8, 8).step == 8  # with the rows of those that failed
    checkpointer.close()
    assert [commit.step for commit in commits_of(tmp_path)][-1] == 8
    check_all(tmp_path, expected)


def test_what_fails_in_the_background_is_logged_at_once_before_the_next_boundary_counts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps", policy="incremental")
    store.fails = True
    tables.train(random.Random(1))
    checkpointer.step(1, 1)
    assert checkpointer.has_settled(60)
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == ["the save at step 1 failed (1 in a row): injected"]
    assert "ckpt_abandoned" not in run.kinds()
    store.fails = False
    checkpointer.step(2, 2)
    assert [fields["in_a_row"] for kind, fields in run.said if kind == "ckpt_abandoned"] == [1]
    assert caplog.text.count("the save at step 1") == 1
    checkpointer.close()


def test_rows_that_are_written_to_untold_fail_the_save_that_wanted_them(tmp_path: Path) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps")
    tables.train(random.Random(1))
    store.hold()
    checkpointer.step(1, 1)
    tables.fixed.weight.data[7] = 3.0
    checkpointer.touched("fixed", np.array([7]))
    store.go()
    commit = checkpointer.save(2, 2)
    assert [each.step for each in commits_of(tmp_path)] == [commit.step] == [2]
    assert [fields["code"] for kind, fields in run.said if kind == "ckpt_abandoned"]
    checkpointer.close()
    check_all(tmp_path, {2: tables.rows()})


def test_staging_memory_has_a_smallest_size() -> None:
    with pytest.raises(ConfigError, match="staging_bytes is 1000"):
        CheckpointConfig(staging_bytes=1000)
