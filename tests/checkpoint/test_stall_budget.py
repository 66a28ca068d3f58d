"""Saves beside training that would hold it: skipped within the budget, and given up where the store does not answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import LateClock, Meeting, Rank, RecordingRun, ThreadRanks, raise_first, run_ranks
from test_background_saves import PacedStore, alone, commits_of, opened
from test_policy_saves import Rows, Tables, check_all

from ett.checkpoint import Checkpointer, save_under_way, stall_budget
from ett.checkpoint.background_save import BackgroundSave
from ett.errors import Unreachable

BUDGET = {"interval": "1 steps", "stall_budget_s": 1e-3}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in vain takes milliseconds."""
    monkeypatch.setattr(stall_budget, "LONGEST_S", 1e-2)
    monkeypatch.setattr(save_under_way, "END_S", 1e-1)


def abandoned(run: RecordingRun) -> list[tuple[int, str, int]]:
    return [(f["step"], f["code"], f["in_a_row"]) for kind, f in run.said if kind == "ckpt_abandoned"]


def trained_to(tables: Tables, saves: Checkpointer, steps: range) -> dict[int, Rows]:
    rows = {}
    for step in steps:
        tables.train(random.Random(step))
        rows[step] = tables.rows()
        saves.step(step, step)
    return rows


@pytest.mark.slow
def test_a_boundary_that_would_wait_too_long_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables, saves, store, run = alone(tmp_path, policy="incremental", **BUDGET)
    store.hold()
    rows = trained_to(tables, saves, range(1, 4))
    assert abandoned(run) == [(2, "S007", 1), (3, "S007", 2)]
    assert "step 3 is not saved (2 in a row)" in caplog.text
    store.go()
    assert saves.has_settled(60)
    rows |= trained_to(tables, saves, range(4, 5))
    saves.has_settled(60)
    saves.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [1, 4]  # with the rows of those that were skipped
    check_all(tmp_path, rows)


def test_what_a_program_waits_for_at_its_end_is_not_over_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = LateClock()
    rank = Rank(tmp_path, ThreadRanks(0, 1, Meeting(1)), clock=clock, interval="1 steps", stall_budget_s=100.0)
    rank.checkpointer.restore()
    rank.checkpointer.step(1, 10)
    assert rank.checkpointer.has_settled(60)
    wait = BackgroundSave.wait

    def waits_long(self: BackgroundSave, timeout_s: float | None = None) -> bool:
        clock.late_ns += 1000 * 10**9
        return wait(self, timeout_s)

    monkeypatch.setattr(BackgroundSave, "wait", waits_long)
    assert rank.checkpointer.save(1, 10).step == 1
    kind, told = rank.run.said[-1]
    assert (kind, told["over_budget"], "held training" in caplog.text) == ("ckpt_detail", False, False)
    assert told["stall_s"] >= 1000
    rank.checkpointer.close()


@pytest.mark.slow
def test_after_three_in_a_row_training_waits_as_long_as_the_save_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, saves, store, run = alone(tmp_path, policy="incremental", **BUDGET)
    store.hold()
    rows = trained_to(tables, saves, range(1, 5))
    waited: list[float | None] = []
    wait = BackgroundSave.wait

    def waits(self: BackgroundSave, timeout_s: float | None = None) -> bool:
        waited.append(timeout_s)
        store.go()
        return wait(self, 60)

    monkeypatch.setattr(BackgroundSave, "wait", waits)
    rows |= trained_to(tables, saves, range(5, 6))
    saves.close()
    assert waited[0] == stall_budget.LONGEST_S
    assert [in_a_row for _, _, in_a_row in abandoned(run)] == [1, 2, 3]
    assert [commit.step for commit in commits_of(tmp_path)] == [1, 5]
    check_all(tmp_path, rows)


@pytest.mark.slow
def test_a_slow_save_is_not_given_up_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, saves, store, run = alone(tmp_path, policy="incremental", **BUDGET)
    store.hold()
    rows = trained_to(tables, saves, range(1, 5))
    seen = iter(range(99))
    monkeypatch.setattr(saves._under_way, "_done_by", lambda running: next(seen))
    rows |= trained_to(tables, saves, range(5, 9))
    assert [in_a_row for _, _, in_a_row in abandoned(run)] == [1, 2, 3, 4, 5, 6, 7]  # a warning each, and no failure
    store.go()
    assert saves.has_settled(60)
    saves.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [1]
    check_all(tmp_path, rows)


@pytest.mark.slow
def test_a_store_that_hangs_holds_training_for_no_longer_than_that_and_ends_it_with_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, saves, store, run = alone(tmp_path, policy="incremental", **BUDGET)
    store.hold()
    # Nothing goes on, from the first step: on a busy machine it is a while before a save stands where it is held.
    monkeypatch.setattr(saves._under_way, "_done_by", lambda running: 0)
    rows = trained_to(tables, saves, range(1, 13))
    codes = [code for _, code, _ in abandoned(run)]
    assert codes == ["S007"] * 11
    assert [in_a_row for _, _, in_a_row in abandoned(run)] == [1, 2, 3, 1, 1, 2, 3, 2, 1, 2, 3]
    tables.train(random.Random(13))
    with pytest.raises(Unreachable, match="the save at step 1 is still under way") as raised:
        saves.step(13, 13)
    assert raised.value.code == "S007"
    store.go()  # it answers after all: nothing is lost, and nothing comes to a late commit
    saves.has_settled(60)
    rows[14] = tables.rows()
    assert saves.save(14, 14).step == 14
    saves.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [14]
    check_all(tmp_path, rows)


@pytest.mark.slow
def test_a_save_that_was_given_up_and_commits_all_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit was on its way when training gave it up."""
    tables, saves, _, run = alone(tmp_path, policy="incremental", **BUDGET)
    rows = trained_to(tables, saves, range(1, 2))
    assert saves.has_settled(60)
    running = saves._under_way.running
    assert running is not None
    saves._under_way.give_up(running, stall_budget.over_budget("given up"))
    rows |= trained_to(tables, saves, range(2, 3))
    assert saves.has_settled(60)
    saves.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [1, 2] and not abandoned(run)
    check_all(tmp_path, rows)


@pytest.mark.parametrize("call", ["close", "save", "restore"])
def test_nobody_waits_for_ever_for_a_save_that_hangs(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables, saves, store, _ = alone(tmp_path, policy="incremental", interval="1 steps")
    store.hold()
    trained_to(tables, saves, range(1, 2))
    args = (2, 2) if call == "save" else ()
    with pytest.raises(Unreachable, match="has not ended"):
        getattr(saves, call)(*args)
    store.go()
    assert saves.has_settled(60)
    assert commits_of(tmp_path) == []
    assert "failed" not in caplog.text  # the error that was raised says it


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1])
def test_ranks_skip_alike_where_one_of_them_is_slow(tmp_path: Path, slow: int) -> None:
    def work(ranks: ThreadRanks) -> tuple[list[tuple[int, str, int]], dict[int, Rows]]:
        tables, saves, store, run = opened(tmp_path, ranks, policy="incremental", **BUDGET)
        if ranks.rank == slow:
            store.hold()
        rows = trained_to(tables, saves, range(1, 4))
        assert saves._under_way.is_of(1)
        store.go()
        assert saves.has_settled(60)
        rows |= trained_to(tables, saves, range(4, 5))
        assert saves.has_settled(60)
        saves.close()
        return abandoned(run), rows

    results: list[Any] = run_ranks(2, work)
    raise_first(results)
    assert results[0][0] == [(2, "S007", 1), (3, "S007", 2)] and results[1][0] == []
    assert [commit.step for commit in commits_of(tmp_path)] == [1, 4]
    check_all(tmp_path, {step: results[0][1][step] | results[1][1][step] for step in range(1, 5)})


@pytest.mark.slow
def test_a_table_that_nobody_keeps_is_of_the_boundary_or_in_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on at some time, and whatever is read then is of another step."""
    monkeypatch.setattr("ett.checkpoint.policy.table_saves.can_be_staged", lambda spec: spec.name != "fixed")
    tables, saves, store, run = alone(tmp_path, policy="incremental", interval="1 steps")
    assert isinstance(store, PacedStore)
    store.hold()
    trained_to(tables, saves, range(1, 2))
    assert abandoned(run) == [(1, "S007", 1)]
    store.go()
    assert saves.has_settled(60)
    monkeypatch.setattr(save_under_way, "END_S", 60.0)
    rows = trained_to(tables, saves, range(2, 3))
    assert saves.has_settled(60)
    saves.close()
    assert [commit.step for commit in commits_of(tmp_path)] == [2]
    check_all(tmp_path, rows)
