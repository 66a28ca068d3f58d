"""A choice that was made ahead is taken while it is that of the folder, and made again when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_world import restored_world, saved_world

from ett.checkpoint import commit_choice
from ett.checkpoint.commit_choice import Planned, choose, plan_ahead
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.local_store import LocalStore


def planned(uri: Path, resume: str = "auto") -> Planned:
    found = plan_ahead(CheckpointConfig(uri=str(uri)), uri, {"ETT_RESUME": resume})
    assert found is not None
    return found


def test_a_plan_of_the_same_commits_is_taken_without_reading_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_world(tmp_path, 1, [1, 2])
    plan, store = planned(tmp_path), LocalStore(tmp_path)
    anew = choose(store, {}, None)
    monkeypatch.setattr(commit_choice, "check_files", None)  # whoever chooses calls it
    assert choose(store, {}, None, plan) == anew


def test_a_plan_is_made_again_once_there_is_another_commit(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1])
    plan = planned(tmp_path)
    restored_world(tmp_path, 1)  # a life that opens its epoch
    store = LocalStore(tmp_path)
    assert choose(store, {}, None, plan)["seq"] == choose(store, {}, None)["seq"] != plan.choice["seq"]


def test_a_plan_is_of_its_own_step_and_of_the_first_look(tmp_path: Path) -> None:
    saved_world(tmp_path, 1, [1, 2])
    store, plan = LocalStore(tmp_path), planned(tmp_path)
    newest = plan.choice["seq"]
    assert (plan.is_of(store, None), plan.is_of(store, 1)) == (True, False)
    assert choose(store, {newest: "does not verify"}, None, plan)["seq"] < newest
    assert choose(store, {}, 1, planned(tmp_path, "1"))["seq"] == choose(store, {}, 1)["seq"]
