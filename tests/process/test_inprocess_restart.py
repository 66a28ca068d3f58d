"""A rank is lost and the others live on: their processes stay, the result is that of a run that nobody touched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launched_job import PROGRAMS, LaunchedJob, NewJob
from wait import LONGEST_S, best_of_three

from ett.event_schema import NS

pytestmark = pytest.mark.process
OUTLIVES = str(PROGRAMS / "outlives.py")
GLOO_WAITS_S = 1800  # torch's own: how long a survivor stays in a collective whose connections are open


def weights(job: LaunchedJob) -> set[str]:
    return set(re.findall(r"weights (\[.*\])", job.out))


def pids(job: LaunchedJob, generation: int) -> dict[int, int]:
    """Process id by rank of the ranks that began a generation."""
    found = re.findall(rf"\[rank(\d+)\] pid (\d+) generation {generation} ", job.out)
    return {int(rank): int(pid) for rank, pid in found}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    job = LaunchedJob(tmp_path_factory.mktemp("whole"))
    assert job.run("--nproc", "3", OUTLIVES) == 0, job.err
    (value,) = weights(job)
    return {value}


def test_the_others_keep_their_processes_and_the_result_is_the_same_to_the_bit(
    job: LaunchedJob, undisturbed: set[str]
) -> None:
    flags = ("--nproc", "3", "--max-restarts", "2", "--restart", "inprocess", "--chaos", "kill:rank=1,step=11")
    assert job.run(*flags, OUTLIVES) == 0, job.err
    before, after = pids(job, 0), pids(job, 1)
    assert sorted(after) == [0, 1, 2]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != before[1]
    assert weights(job) == undisturbed
    assert [end["reason"] for end in job.ends()] == ["completed"]
    assert {(r.rank, r.gen) for r in job.records("step") if r.data["step"] == 20} == {(0, 1), (1, 1), (2, 1)}
    assert [(r.rank, r.data["cursor"]) for r in job.records("restore")] == [(0, 8 * 24)]


@pytest.mark.parametrize("lost", [0, 2])
def test_whichever_of_three_ranks_is_lost_the_two_others_come_back_at_once(
    job: LaunchedJob, undisturbed: set[str], lost: int
) -> None:
    """torch keeps the old group in defaults of its own: its connections stayed open, and one survivor in all_reduce."""
    flags = ("--nproc", "3", "--max-restarts", "2", "--restart", "inprocess", "--chaos", f"kill:rank={lost},step=11")
    assert job.run(*flags, OUTLIVES) == 0, job.err
    assert {rank for rank, pid in pids(job, 1).items() if pid == pids(job, 0)[rank]} == {0, 1, 2} - {lost}
    assert weights(job) == undisturbed
    steps = sorted(r.mono_ns for r in job.records("step") if r.gen == 1)
    (fault,) = job.records("fault")
    assert steps[0] - fault.mono_ns < GLOO_WAITS_S / 10 * NS


def test_a_script_that_destroys_its_group_itself_comes_back_at_once(job: LaunchedJob, undisturbed: set[str]) -> None:
    """The defaults of torch's functions hold the group all the same."""
    script = job.folder / "destroys.py"
    body = Path(OUTLIVES).read_text().replace("def train() -> None:\n", "def train() -> None:\n" + _TRIES, 1)
    script.write_text(body.replace("    dist.destroy_process_group()\n\n\ntrain()", _DESTROYS))
    flags = ("--nproc", "3", "--max-restarts", "2", "--restart", "inprocess", "--chaos", "kill:rank=0,step=11")
    assert job.run(*flags, "destroys.py") == 0, job.err
    assert weights(job) == undisturbed
    assert [end["reason"] for end in job.ends()] == ["completed"]


_TRIES = "    try:\n        body()\n    finally:\n        dist.destroy_process_group()\n\n\ndef body() -> None:\n"
_DESTROYS = "\n\ntrain()"


def test_a_group_that_the_script_holds_ends_the_attempt_at_once(job: LaunchedJob) -> None:
    script = job.folder / "holds.py"
    made = '        dist.init_process_group("gloo")\n'
    script.write_text(Path(OUTLIVES).read_text().replace(made, made + "    held.append(dist.group.WORLD)\n"))
    script.write_text(script.read_text().replace("run = ett.init()\n", "run = ett.init()\nheld = []\n"))
    flags = ("--nproc", "3", "--max-restarts", "2", "--restart", "inprocess", "--chaos", "kill:rank=0,step=11")
    assert job.run(*flags, "holds.py") == 0, job.err
    assert "something still holds it" in job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]


def test_the_fault_is_written_within_a_second_and_counts_as_an_inprocess_restart(new_job: NewJob) -> None:
    jobs: list[LaunchedJob] = []

    def unknown_s() -> float:
        jobs.append(new_job())
        flags = ("--nproc", "2", "--max-restarts", "2", "--restart", "inprocess", "--chaos", "kill:rank=0,step=7")
        assert jobs[-1].run(*flags, OUTLIVES) == 0, jobs[-1].err
        (fault,) = jobs[-1].records("fault")
        assert (fault.rank, fault.gen, fault.data["class"], fault.data["signal"]) == (0, 0, "infra", 9)
        last_step_ns = max(r.mono_ns for r in jobs[-1].records("step") if r.gen == 0)
        return (fault.mono_ns - last_step_ns) / NS

    assert best_of_three(unknown_s, 1.0) < 1.0
    job = jobs[-1]
    (decision,) = job.records("restart_decision")
    assert (decision.data["scope"], decision.data["restart"]) == ("inprocess", True)
    out_before = len(job.out)
    assert job.start_ett("report", "j", "--json").wait(timeout=LONGEST_S) == 0
    data = json.loads(job.out[out_before:])["data"]
    assert data["interruptions"] == data["interruptions"] | {"failures": 1, "inprocess": 1, "preemptions": 0}
    assert sum(data["ns"].values()) == data["total_ns"]


def test_a_rank_that_is_lost_again_is_replaced_again(job: LaunchedJob) -> None:
    chaos = ("--chaos", "kill:rank=1,step=7", "--chaos", "kill:rank=0,step=15,gen=1")
    assert job.run("--nproc", "2", "--max-restarts", "2", "--restart", "inprocess", *chaos, OUTLIVES) == 0, job.err
    assert sorted(pids(job, 2)) == [0, 1]
    assert pids(job, 2)[1] == pids(job, 1)[1]
    assert len(job.records("fault")) == 2
    assert [end["reason"] for end in job.ends()] == ["completed"]


def test_the_budget_counts_lost_ranks(job: LaunchedJob) -> None:
    chaos = ("--chaos", "kill:rank=1,step=7", "--chaos", "kill:rank=1,step=9,gen=1")
    assert job.run("--nproc", "2", "--max-restarts", "1", "--restart", "inprocess", *chaos, OUTLIVES) == 121
    assert [end["reason"] for end in job.ends()] == ["failed"]
    assert job.records("restart_decision")[-1].data["rule"] == "budget"


def test_an_error_of_the_programs_own_is_raised_in_its_rank_alone(job: LaunchedJob) -> None:
    script = job.folder / "raises.py"
    script.write_text(Path(OUTLIVES).read_text().replace("        step += 1\n", _RAISES + "        step += 1\n"))
    assert job.run("--nproc", "2", "--max-restarts", "3", "--restart", "inprocess", "raises.py") == 0, job.err
    assert job.err.count("ValueError: of rank 1") == 2  # its traceback, and the supervisor's line
    (fault,) = job.records("fault")
    assert (fault.rank, fault.data["class"]) == (1, "user")


_RAISES = "        if (step, run.rank, run.generation) == (9, 1, 0):\n            raise ValueError('of rank 1')\n"


def test_a_script_that_does_not_take_part_is_restarted_whole(job: LaunchedJob) -> None:
    flags = ("--nproc", "2", "--max-restarts", "1", "--restart", "inprocess", "--chaos", "kill:rank=1,step=7")
    assert job.run(*flags, str(PROGRAMS / "steps.py"), "12", "0.01") == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
    assert not job.records("fault")


def test_outside_such_a_launch_the_function_is_just_called(job: LaunchedJob) -> None:
    flags = ("--nproc", "2", "--max-restarts", "1", "--chaos", "kill:rank=1,step=7")
    assert job.run(*flags, OUTLIVES) == 0, job.err
    assert [end["reason"] for end in job.ends()] == ["failed", "completed"]
