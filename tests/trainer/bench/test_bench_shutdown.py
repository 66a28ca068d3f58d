"""What `ett bench shutdown` makes of jobs that ended, without running any."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ett.bench import BenchResult
from ett.errors import ThresholdMissed
from ett.figures import Measured, load_targets
from ett.tracker import Run, RunIdentity
from ett.trainer.bench import bench_shutdown
from ett.trainer.bench.bench_shutdown import WORKLOAD, Ending, ending_of, processes_of, run

S = 1_000_000_000
MB = 1_000_000
EXPOSED_S = {"nothing_saved": 3.0, "saved_halfway": 1.0, "begun_before": 2.0}
Words = dict[str, Any]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Words:
    """What jobs come to that are never launched: their exit code, their commits, their processes."""
    words: Words = {"code": 0, "usable": 1, "left": []}

    class Process:
        pid = 0

        def wait(self, timeout_s: float) -> int:
            if words["code"] is None:
                raise subprocess.TimeoutExpired("ett launch", timeout_s)
            return int(words["code"])

    class Job:
        def __init__(self, home: Path, recipe: Path, *, longest_s: float) -> None:
            self.job_dir = home
            home.mkdir(parents=True)
            (home / "err").write_text("rank 1 said no")

        def start(self, settings: Words) -> Process:
            words["settings"] = settings
            return Process()

        def asked(self, *told: str) -> Words:
            return {"usable": words["usable"]} if told[0] == "checkpoint" else {"detail": {}}

    def published(quick: bool) -> Measured:
        return Measured(name="publish_memory_mib_10gb_table", unit="MiB", samples=[300.0 if quick else 400.0])

    def ended(name: str, *_: object, **facts: Any) -> Ending:
        name = name.rpartition("-")[0] or name
        return Ending(name=name, exposed_s=EXPOSED_S[name], ranks_s=0.5, dirty_bytes=MB, disk_s=0.5)

    monkeypatch.setattr(bench_shutdown, "CampaignJob", Job)
    monkeypatch.setattr(bench_shutdown, "end", lambda process: None)
    monkeypatch.setattr(bench_shutdown, "processes_of", lambda folder: words["left"])
    monkeypatch.setattr(bench_shutdown, "_disk_s", lambda folder, size: 0.5)
    monkeypatch.setattr(bench_shutdown, "ending_of", ended)
    monkeypatch.setattr(bench_shutdown, "measure_publish_memory", published)
    return words


def measured() -> BenchResult:
    return run(quick=True)


def test_the_figure_is_of_the_worst_end_of_each_round_over_two_seconds_and_the_disks_own(jobs: Words) -> None:
    result = measured()
    figures = {figure.name: figure for figure in result.figures}
    assert list(figures["exposed_over_bound"].samples) == [pytest.approx(3.0 / 2.5)] * 3
    assert figures["publish_memory_mib_10gb_table"].value == 300
    assert set(figures) == set(load_targets("shutdown", quick=True))
    assert len(result.table) == 1 + len(EXPOSED_S)


def test_quick_jobs_are_smaller_and_save_as_late(jobs: Words) -> None:
    workload = tomllib.loads(WORKLOAD.read_text())
    for job, ends in (
        (workload["job"], workload["ends"]),
        (workload["job"] | workload["quick_job"], workload["ends"] | workload["quick_ends"]),
    ):
        last = job["train.max_steps"]
        every = {name: int(end["checkpoint.interval"].split()[0]) for name, end in ends.items()}
        assert every["nothing_saved"] > last
        assert last % every["saved_halfway"] == 0
        assert 0 < last - every["begun_before"] < 10
        assert job["data.generate.rows"] > last * job["train.batch_size"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"code": 3}, "exit code 3, .* rank 1 said no"),
        ({"left": [77]}, r"processes left: \[77\]"),
        ({"usable": 0}, "the commit of the last step, 40, is not there whole"),
        ({"code": None}, "has not ended"),
    ],
)
def test_a_job_that_did_not_end_well_has_no_figure(jobs: Words, said: Words, told: str) -> None:
    jobs |= said
    with pytest.raises(ThresholdMissed, match=told):
        measured()


class Clock:
    now_ns = 5 * S

    def wall_ns(self) -> int:
        return self.now_ns

    def mono_ns(self) -> int:
        return self.now_ns


def test_an_end_is_from_the_last_step_of_any_rank_to_the_end_of_the_command(tmp_path: Path) -> None:
    clock = Clock()
    for rank, at in ((0, 10 * S), (1, 11 * S)):
        run_of = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path, rank=rank, world_size=2), clock=clock)
        run_of.record_step(at - S, at, 4, number=1)
        clock.now_ns = 12 * S + rank * S // 2
        run_of.train_end()
        if rank == 1:
            clock.now_ns = 13 * S
            run_of.emit("job_ended", status="succeeded")
        run_of.close()
    report = {"detail": {"shutdown.final_save": 1.25, "effective.step": 9.0}}
    found = ending_of("e", tmp_path, 14 * S, dirty_bytes=2 * MB, disk_s=1.0, report=report)
    assert (found.exposed_s, found.ranks_s) == (3.0, 2.0)
    assert found.parts_s == {"final_save": 1.25, "after_job_end": 1.0}
    assert found.over_bound == 1.0


def test_a_process_that_a_job_left_is_found(tmp_path: Path) -> None:
    assert processes_of(tmp_path) == []
    reads = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    environ = os.environ | {"ETT_JOB_DIR": str(tmp_path)}
    with subprocess.Popen(reads, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes_of(tmp_path) == [process.pid]
        assert process.stdin is not None
        process.stdin.write(b"\n")
