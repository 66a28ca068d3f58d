"""What a save says of itself is what it wrote: in its commit, as an event, and in `ett checkpoint`."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks, raise_first, run_ranks
from test_policy_saves import Tables, opened

from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.commit import Commit
from ett.checkpoint.failure_history import FailureHistory
from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.save_records import read_saves
from ett.cli import run
from ett.event_log import EventWriter
from ett.uptime import Stretch

WROTE = ("base_rows", "hot_rows", "cold_rows", "tombstones", "base_bytes", "hot_bytes", "cold_bytes", "dense_bytes")


def one_rank() -> ThreadRanks:
    return ThreadRanks(0, 1, Meeting(1))


def facts_of(commit: Commit) -> SaveFacts:
    facts = SaveFacts.of_stats(commit.stats)
    assert facts is not None
    return facts


def details(run: RecordingRun) -> list[dict[str, Any]]:
    return [fields for ev, fields in run.said if ev == "ckpt_detail"]


def lived(folder: Path, num_saves: int, world_size: int = 1, **config: Any) -> tuple[list[Commit], RecordingRun]:
    """Train and save; return rank 0's commits and what it said."""

    def work(ranks: ThreadRanks) -> tuple[list[Commit], RecordingRun]:
        rng = random.Random(1)
        tables, checkpointer, said = opened(folder, ranks, **config)
        checkpointer.restore()
        commits = []
        for step in range(1, num_saves + 1):
            tables.train(rng)
            commits.append(checkpointer.save(step, 10 * step))
        checkpointer.close()
        return commits, said

    results: list[Any] = run_ranks(world_size, work)
    raise_first(results)
    return results[0]  # type: ignore[no-any-return]


def update(tables: Tables, ids: list[int]) -> None:
    tables.grows.update(np.array(ids, np.int64), torch.ones(len(ids), 3), 0.1)


@pytest.mark.parametrize(("policy", "kind"), [("incremental", "cold"), ("differential", "hot")])
def test_rows_are_counted_by_the_files_that_they_went_into(tmp_path: Path, policy: str, kind: str) -> None:
    tables, checkpointer, _ = opened(tmp_path, one_rank(), policy=policy)
    checkpointer.restore()
    update(tables, [1, 2, 3, 4, 5])
    first = facts_of(checkpointer.save(1, 1))
    assert (first.base_rows, first.hot_rows, first.cold_rows) == (55, 0, 0)  # and the 50 of the table of fixed size
    update(tables, [1, 2])
    update(tables, [2, 7])
    second = facts_of(checkpointer.save(2, 2))
    expected = {"hot": 0, "cold": 0} | {kind: 3}
    assert (second.base_rows, second.hot_rows, second.cold_rows) == (0, expected["hot"], expected["cold"])
    assert second.base_bytes == 0 < second.num_bytes - second.dense_bytes


def test_an_eviction_is_counted_as_a_tombstone(tmp_path: Path) -> None:
    tables, checkpointer, _ = opened(tmp_path, one_rank(), policy="incremental")
    checkpointer.restore()
    for first_id in (0, 100):
        ids = np.arange(first_id, first_id + 30, dtype=np.int64)
        tables.evicts.update(ids, torch.ones(30, 3), 0.1)
        facts = facts_of(checkpointer.save(first_id + 1, 1))
    assert (facts.cold_rows, facts.tombstones) == (30, 30)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("policy", ["full", "adaptive", "check_n_run"])
def test_bytes_by_kind_are_those_of_the_new_files_of_all_ranks(tmp_path: Path, policy: str, world_size: int) -> None:
    commits, _ = lived(tmp_path, 6, world_size, policy=policy, keep_last=100)
    for commit in commits:
        on_disk = Counter[str]()
        for path in (tmp_path / "d").rglob(f"{commit.ckpt_uuid}/*.seg"):
            on_disk[path.name.split(".")[1]] += path.stat().st_size
        facts = facts_of(commit)
        assert {kind: getattr(facts, f"{kind}_bytes") for kind in ("base", "hot", "cold")} == {
            kind: on_disk[kind] for kind in ("base", "hot", "cold")
        }
        dense = (tmp_path / "dense" / commit.ckpt_uuid).rglob("*")
        assert facts.dense_bytes == sum(path.stat().st_size for path in dense if path.is_file())


def test_every_commit_has_one_event_that_says_the_same(tmp_path: Path) -> None:
    commits, said = lived(tmp_path, 5, policy="adaptive")
    told = details(said)
    assert [(each["id"], each["step"]) for each in told] == [(commit.ckpt_uuid, commit.step) for commit in commits]
    for each, commit in zip(told, commits, strict=True):
        assert {name: each[name] for name in WROTE} == {name: commit.stats[name] for name in WROTE}
        assert (each["policy"], each["over_budget"]) == ("adaptive", False)
        assert each["stall_s"] >= each["write_s"] > 0  # training waits for the commit, and for what follows it
        assert not {"thresholds", "prefetch_rows", "sweep_rows", "guard_rows", "waited_s", "staged_bytes"} & set(each)


def test_rows_and_memory_of_all_ranks_are_added_and_the_longest_wait_is_stall() -> None:
    ranks = [CaptureCounts(prefetch=1, guard=2, sweep=3, waited_s=w, staged_bytes=100) for w in (0.25, 0.5)]
    facts = SaveFacts(stall_s=1.0, write_s=2.0).with_captures(ranks)
    assert (facts.prefetch_rows, facts.guard_rows, facts.sweep_rows) == (2, 4, 6)
    assert (facts.stall_s, facts.waited_s, facts.staged_bytes) == (1.5, 0.5, 200)


def test_the_threshold_of_each_table_is_recorded(tmp_path: Path) -> None:
    commits, _ = lived(tmp_path, 3, policy="adaptive")
    first, *others = map(facts_of, commits)
    assert (first.threshold, dict(first.thresholds)) == (None, {})  # a base: there is nothing to decide
    for facts in others:
        assert sorted(facts.thresholds) == ["evicts", "fixed", "grows"]
        assert all(0 < value <= 1 for value in facts.thresholds.values())
        assert facts.threshold in facts.thresholds.values()
    assert facts_of(lived(tmp_path / "full", 2, policy="full")[0][-1]).threshold is None


@pytest.mark.slow
def test_a_job_that_fails_often_keeps_more_rows_hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's past reaches the policy's cost model, not only its interval."""

    def last_thresholds(folder: Path) -> list[float]:
        return list(facts_of(lived(folder, 3, policy="adaptive")[0][-1]).thresholds.values())

    usual = last_thresholds(tmp_path / "usual")
    failed = tuple(Stretch(-k - 1.0, -float(k), has_failed=True) for k in range(5000))
    monkeypatch.setattr("ett.checkpoint.checkpointer.read_failures", lambda *_: FailureHistory(0.0, failed))
    monkeypatch.setattr("ett.checkpoint.policy.table_saves._PRIOR_INTERVAL_S", 3600.0)
    assert max(last_thresholds(tmp_path / "often")) < min(usual)


def test_stats_of_an_older_version_are_no_facts() -> None:
    assert SaveFacts.of_stats({"write_s": 1.0}) is None
    facts = SaveFacts(stall_s=1.0, write_s=2.0, hot_rows=3, sweep_rows=4, thresholds={"t": 0.5})
    assert SaveFacts.of_stats(json.loads(json.dumps(facts.as_json()))) == facts


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Commit], Path]]:
    """Job j with four commits, two of which are left, and the log of its saves; its third was uploaded in 2.5 s."""
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    folder = tmp_path / "jobs/j"
    commits, said = lived(folder / "checkpoints", 4, policy="adaptive", keep_last=2)
    log = EventWriter(folder / "events/1", "r0", {"job": "j", "att": 1, "rank": 0})
    for fields in details(said):
        log.emit("ckpt_detail", **fields | {"stall_s": 7.25})
        log.emit("step", samples=1, step=1, b_mono=0, e_mono=1)
    log.emit("ckpt_upload", id=commits[2].ckpt_uuid, step=3, bytes=1, seconds=2.5)
    return commits, folder


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["checkpoint", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_log_knows_saves_whose_commits_are_gone(job: tuple[list[Commit], Path]) -> None:
    commits, folder = job
    saves = list(read_saves(folder / "events").values())
    assert [save.ckpt_uuid for save in saves] == [commit.ckpt_uuid for commit in commits]
    assert [save.upload_s for save in saves] == [None, None, 2.5, None]
    assert [save.facts.cold_bytes for save in saves] == [commit.stats["cold_bytes"] for commit in commits]


def test_show_says_what_was_saved(job: tuple[list[Commit], Path], capsys: pytest.CaptureFixture[str]) -> None:
    commits, _ = job
    save = document(capsys, "show", "j", "--step", "3")["data"]["save"]
    assert {name: save[name] for name in WROTE} == {name: commits[2].stats[name] for name in WROTE}
    assert (save["stall_s"], save["upload_s"]) == (7.25, 2.5)
    assert run(["checkpoint", "show", "j", "--step", "3"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    stats = commits[2].stats
    assert f"hot {stats['hot_rows']} rows in {stats['hot_bytes']} bytes" in lines["saved"]
    assert lines["took"].startswith("took        training 7.25 s, written in ")
    assert lines["took"].endswith(", uploaded in 2.5 s")
    least, most = (pick(stats["thresholds"].items(), key=lambda item: item[1]) for pick in (min, max))
    assert lines["threshold"].startswith(f"threshold   {least[1]:.3f} ({least[0]})")
    assert lines["threshold"].endswith(f"{most[1]:.3f} ({most[0]}), tables: 3")


def test_ls_lists_what_each_save_wrote(job: tuple[list[Commit], Path], capsys: pytest.CaptureFixture[str]) -> None:
    commits, folder = job
    saved = {commit.seq: facts_of(commit).num_bytes for commit in commits}
    rows = document(capsys, "ls", "j")["data"]["commits"]
    assert {row["seq"]: row["saved"] for row in rows if row["save"]} == {seq: saved[seq] for seq in (4, 5)}
    assert {row["stall_s"] for row in rows if row["save"]} == {7.25}
    by_uri = document(capsys, "ls", str(folder / "checkpoints"))["data"]["commits"]
    assert by_uri[0]["stall_s"] == commits[-1].stats["stall_s"]
    assert run(["checkpoint", "ls", "j"]) == 0
    title, newest, *_ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert newest[title.index("saved")] == str(saved[5])


def test_a_log_that_cannot_be_read_is_a_warning(
    job: tuple[list[Commit], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (job[1] / "events/1/r0-x.jsonl").mkdir()
    assert "the job's log" in document(capsys, "show", "j")["warnings"][0]
