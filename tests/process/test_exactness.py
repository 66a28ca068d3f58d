"""A job that was killed, stopped or resized and restored, against one that ran through."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from launched_job import PROGRAMS, LaunchedJob
from wait import LONGEST_S, wait_until

from ett.job_folder import JobFolder
from ett.trainer.loss_log import read_losses

pytestmark = [pytest.mark.process, pytest.mark.slow]
RECIPE = str(PROGRAMS / "small_dlrm.toml")
SEQUENCE = str(Path(__file__).parents[2] / "examples" / "sequence.toml")
INTERVAL = 4  # of the checkpoints in RECIPE
SAME = ("step", "cursor", "auc", "normalized_entropy", "held_out_rows", "loss_hex")


class Ended:
    """What a finished job reported: every loss, final digests, AUC."""

    def __init__(self, job: LaunchedJob) -> None:
        result: dict[str, Any] = json.loads((job.job_dir / "result.json").read_text())
        self.facts = {name: result[name] for name in SAME} | job.digests()
        self.metrics = (job.job_dir / "metrics.jsonl").read_text()  # losses and scores
        self.losses = read_losses(job.job_dir / "metrics.jsonl")
        self.last_step: int = result["step"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Ended]:
    """Return a function from a world size to the job that ran through, and saved all rows; it runs once."""

    @functools.cache
    def run(world_size: int) -> Ended:
        job = LaunchedJob(tmp_path_factory.mktemp(f"whole-{world_size}"))
        assert job.run("--nproc", str(world_size), "--set", "checkpoint.policy=full", RECIPE) == 0, job.err
        return Ended(job)

    return run


def kill(draw: random.Random, world_size: int, last_step: int) -> tuple[str, str]:
    """Kill the last rank at a random step."""
    return "--chaos", f"kill:rank={world_size - 1},step={draw.randrange(INTERVAL + 1, last_step + 1)}"


def kills(draw: random.Random, world_size: int, last_step: int) -> list[str]:
    """Kill rank 0 in the first attempt and the last rank in the second, each at a random step."""
    first, second = sorted(draw.sample(range(2, last_step + 1), 2))
    specs = (f"kill:rank=0,step={first}", f"kill:rank={world_size - 1},step={second},attempt=2")
    return [flag for spec in specs for flag in ("--chaos", spec)]


@pytest.mark.parametrize("world_size", [3, *(pytest.param(size, marks=pytest.mark.campaign) for size in (2, 4))])
def test_a_killed_and_restored_job_ends_with_the_bits_of_an_uninterrupted_one(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended], world_size: int
) -> None:
    whole = uninterrupted(world_size)
    assert whole.last_step > 4 * INTERVAL
    flags = kills(random.Random(world_size), world_size, whole.last_step)
    assert job.run("--nproc", str(world_size), *flags, RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert Ended(job).metrics == whole.metrics
    assert list(whole.losses) == list(range(1, whole.last_step + 1))
    assert Ended(job).facts == whole.facts


BACKGROUND = ("--set", "checkpoint.background=true")


def digests(job: LaunchedJob) -> dict[str, Any]:
    """Return rows and digest of each table as a restore would have them, where the newest commit has a chain."""
    shown = [sys.executable, "-m", "ett", "checkpoint", "show", str(job.job_dir / "checkpoints"), "--digest", "--json"]
    facts = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)["data"]
    assert len({file["seq"] for file in facts["chain"]}) > 1
    return {table["name"]: {"rows": table["rows"], "digest": table["digest"]} for table in facts["tables"]}


@pytest.mark.parametrize(
    "background",
    [pytest.param((), marks=pytest.mark.campaign, id="waiting"), pytest.param(BACKGROUND, id="background")],
)
def test_a_job_that_saves_what_changed_ends_with_the_bits_of_one_that_saves_all(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended], background: tuple[str, ...]
) -> None:
    whole = uninterrupted(2)
    flags = ("--nproc", "2", "--set", "checkpoint.policy=adaptive", "--set", "checkpoint.interval=2 steps")
    assert job.run(*flags, *background, *kills(random.Random(8), 2, whole.last_step), RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "failed", "completed"]
    assert digests(job) == whole.facts["tables"]
    assert Ended(job).losses == whole.losses
    assert Ended(job).facts["auc"] == whole.facts["auc"]


@pytest.mark.parametrize("point", ["ckpt_after_shard_write", "ckpt_before_commit"])
def test_a_rank_that_dies_within_a_save_beside_training_loses_nothing(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended], point: str
) -> None:
    whole = uninterrupted(2)
    fault = ("--chaos", f"kill:rank=1,step={3 * INTERVAL},point={point}")
    assert job.run("--nproc", "2", *BACKGROUND, *fault, RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
    assert job.records("restore")[-1].data["step"] in (2 * INTERVAL, 3 * INTERVAL)
    assert Ended(job).losses == whole.losses
    assert Ended(job).facts == whole.facts


def test_a_job_that_is_stopped_ends_with_its_save_beside_training(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended]
) -> None:
    # A save that takes longer than the budget is skipped where the next is due, and here each step has one.
    settings = ("checkpoint.interval=1 steps", "checkpoint.stall_budget_s=300")
    flags = ("--nproc", "2", *BACKGROUND, *(word for setting in settings for word in ("--set", setting)))
    gate = Gate(job.folder / "gate", rank=1, step=10)
    supervisor = job.start(*flags, *gate.flags, RECIPE, **gate.environ)
    gate.wait_for_rank()
    # As a scheduler that tells every process of a job some time before it takes the host; each rank hears of it twice.
    for pid in (supervisor.pid, *job.processes(1)):
        os.kill(pid, signal.SIGUSR1)
    gate.open()
    assert supervisor.wait(timeout=LONGEST_S) == 143
    last_steps = {r.rank: r.data["step"] for r in job.records("step")}
    commits = [r.data["step"] for r in job.records("ckpt_commit")]
    assert last_steps[0] == last_steps[1] == commits[-1]
    assert commits == list(range(1, commits[-1] + 1))
    assert [r.data["signal"] for r in job.records("preempt_notice")] == [signal.SIGUSR1]
    (end,) = job.ends()
    assert (end["reason"], end["saved_step"], end["unsaved_steps"]) == ("preempted", commits[-1], 0)
    assert f"all that it trained is saved (step {commits[-1]})" in job.err
    assert job.run(*flags, RECIPE) == 0, job.err
    assert Ended(job).losses == uninterrupted(2).losses
    assert Ended(job).facts == uninterrupted(2).facts


DDP = ("dense.parallel=ddp", "dense.precision=bfloat16", "train.accumulate=3")
FSDP = ("dense.parallel=fsdp", "dense.precision=bfloat16")


@pytest.mark.parametrize(
    ("world_size", "settings"),
    [(2, DDP), (3, FSDP), *(pytest.param(*rest, marks=pytest.mark.campaign) for rest in ((3, DDP), (2, FSDP)))],
)
def test_a_restored_job_of_another_dense_part_ends_with_the_same_bits(
    job: LaunchedJob, tmp_path_factory: pytest.TempPathFactory, world_size: int, settings: tuple[str, ...]
) -> None:
    flags = ("--nproc", str(world_size), *(word for setting in settings for word in ("--set", setting)))
    whole = LaunchedJob(tmp_path_factory.mktemp("whole"))
    assert whole.run(*flags, RECIPE) == 0, whole.err
    assert job.run(*flags, *kill(random.Random(5), world_size, Ended(whole).last_step), RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
    assert job.records("restore")
    assert Ended(job).metrics == Ended(whole).metrics
    assert Ended(job).facts == Ended(whole).facts


def test_a_restored_job_of_a_sequence_model_ends_with_the_same_bits(
    job: LaunchedJob, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = ("data.generate.rows=1500", "train.batch_size=100", "checkpoint.interval=4 steps", "dense.parallel=ddp")
    flags = ("--nproc", "2", *(word for setting in settings for word in ("--set", setting)))
    whole = LaunchedJob(tmp_path_factory.mktemp("whole"))
    assert whole.run(*flags, SEQUENCE) == 0, whole.err
    assert job.run(*flags, *kill(random.Random(6), 2, Ended(whole).last_step), SEQUENCE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
    assert job.records("restore")
    assert Ended(job).metrics == Ended(whole).metrics
    assert Ended(job).facts == Ended(whole).facts


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_have_the_same_bits_whatever_sums_their_dense_gradients(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended], way: str
) -> None:
    flags = ("--nproc", "2", "--set", f"dense.parallel={way}")
    fault = ("--max-restarts", "0", "--chaos", f"kill:rank=0,step={2 * INTERVAL + 2}")
    assert job.run(*flags, *fault, RECIPE) == 137
    other = ("--set", "dense.parallel=buckets") if way == "fsdp" else ()  # what was saved is whole
    assert job.run(*flags, *other, RECIPE) == 0, job.err
    assert job.records("restore")[-1].data["step"] == 2 * INTERVAL
    assert Ended(job).losses == uninterrupted(2).losses
    assert Ended(job).facts == uninterrupted(2).facts


def test_ranks_that_outlive_another_one_end_with_the_same_bits(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended]
) -> None:
    flags = ("--nproc", "2", "--restart", "inprocess", "--chaos", "kill:rank=1,step=14")
    assert job.run(*flags, *BACKGROUND, RECIPE) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["completed"]
    assert {(r.rank, r.pid) for r in job.records("step") if r.rank == 0 and r.gen == 1} == {
        (0, JobFolder(job.job_dir).read_workers(1)[0].pid)
    }
    assert len({r.pid for r in job.records("step")}) == 3  # rank 0, and both processes of rank 1
    (restore,) = job.records("restore")
    assert (restore.data["scope"], restore.data["kept_bytes"] > 0) == ("partial", True)
    assert Ended(job).losses == uninterrupted(2).losses
    assert Ended(job).facts == uninterrupted(2).facts


def test_a_spare_that_becomes_the_lost_rank_ends_with_the_same_bits(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended]
) -> None:
    gate = Gate(job.folder / "gate", rank=1, step=14)
    flags = ("--nproc", "2", "--restart", "inprocess", "--set", "recovery.spares=1")
    supervisor = job.start(*flags, *gate.flags, RECIPE, **gate.environ)
    gate.wait_for_rank()
    wait_until(lambda: spares_of(supervisor.pid), "a spare, once every rank has made a step")
    (spare,) = spares_of(supervisor.pid)
    os.kill(JobFolder(job.job_dir).read_workers(1)[1].pid, signal.SIGKILL)
    gate.open()
    assert supervisor.wait(timeout=LONGEST_S) == 0, job.err
    assert [(r.rank, r.data["worker_pid"], r.data["spare"]) for r in job.records("rank_replaced")] == [(1, spare, True)]
    assert {r.pid for r in job.records("step") if (r.rank, r.gen) == (1, 1)} == {spare}
    assert Ended(job).losses == uninterrupted(2).losses
    assert Ended(job).facts == uninterrupted(2).facts
    assert not job.processes(1)
    assert not spares_of(supervisor.pid)


def spares_of(supervisor: int) -> list[int]:
    """Return the process ids of a supervisor's spares, of those too that have become ranks."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            words, parent = (path / "cmdline").read_bytes().split(b"\0"), (path / "stat").read_text().rpartition(")")[2]
            if b"ett.spare_process" in words and int(parent.split()[1]) == supervisor:
                found.append(int(path.name))
    return found


def test_a_job_of_which_one_rank_was_told_to_stop_goes_on_to_the_same_bits(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended]
) -> None:
    gate = Gate(job.folder / "gate", rank=1, step=10)
    supervisor = job.start("--nproc", "2", *gate.flags, RECIPE, **gate.environ)
    gate.wait_for_rank()
    os.kill(JobFolder(job.job_dir).read_workers(1)[1].pid, signal.SIGTERM)
    gate.open()
    assert supervisor.wait(timeout=LONGEST_S) == 143
    last_steps = {r.rank: r.data["step"] for r in job.records("step")}
    assert last_steps[0] == last_steps[1] == job.records("ckpt_commit")[-1].data["step"]
    assert job.run("--nproc", "2", RECIPE) == 0, job.err
    assert Ended(job).losses == uninterrupted(2).losses
    assert Ended(job).facts == uninterrupted(2).facts


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_another_world_size_goes_on_without_a_lost_or_repeated_sample(
    job: LaunchedJob, uninterrupted: Callable[[int], Ended], before: int, after: int
) -> None:
    whole = uninterrupted(2)
    fault = ("--max-restarts", "0", "--chaos", f"kill:rank=0,step={2 * INTERVAL + 2}")
    assert job.run("--nproc", str(before), *fault, RECIPE) == 137
    assert job.run("--nproc", str(after), RECIPE) == 0, job.err
    ended = Ended(job)
    assert job.records("restore")[-1].data["step"] == 2 * INTERVAL
    assert (ended.facts["step"], ended.facts["cursor"]) == (whole.facts["step"], whole.facts["cursor"])
    assert list(ended.losses) == list(whole.losses)
    # Dropout draws by rank, so the losses are others; a wrong row or a lost state would be far away.
    assert all(abs(ended.losses[step] - whole.losses[step]) < 0.1 for step in whole.losses)
