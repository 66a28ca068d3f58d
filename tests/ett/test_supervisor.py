"""What the supervisor writes down, without processes; those are in tests/process/test_supervisor.py."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ett.errors import NotFound
from ett.event_reader import read_folder
from ett.failure import RankExit
from ett.generation import GenerationFolder
from ett.host_health import Finding
from ett.job_folder import JobFolder, write_json
from ett.job_history import SavedSteps, read_history
from ett.launch_plan import LaunchPlan
from ett.memory_kills import num_memory_kills
from ett.outcome import Outcome
from ett.stop_signals import StopSignals
from ett.supervisor import JobSupervisor
from ett.tracker import Run, RunIdentity
from ett.world import World, places_after

PLAN = LaunchPlan(kind="script", target="train.py", cwd="/", nproc=2, team="ads", recovery={"max_restarts": 2})
NO_PROCESS = 2**22 + 1  # above the largest pid of Linux
BOTH_DONE = [RankExit(rank=0, code=0), RankExit(rank=1, code=0)]


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    made = JobFolder(tmp_path / "jobs" / "j")
    made.create()
    return made


@pytest.fixture
def job(folder: JobFolder) -> Iterator[JobSupervisor]:
    supervisor = JobSupervisor(PLAN, folder, StopSignals())
    supervisor.open(read_history(folder.events))
    yield supervisor
    supervisor.close()


def begin(job: JobSupervisor) -> dict[str, str]:
    environ: dict[str, str] = {}
    job.begin_attempt(environ)
    return environ


def kinds(folder: JobFolder) -> list[tuple[str, int]]:
    records = sorted(read_folder(folder.path).records, key=lambda record: record.mono_ns)
    return [(record.ev, record.att) for record in records]


def end_of(folder: JobFolder) -> dict[str, Any]:
    (end,) = (record for record in read_folder(folder.path).records if record.ev == "attempt_ended")
    return dict(end.data)


def commit(folder: JobFolder, environ: dict[str, str], cursor: int) -> None:
    run = Run(RunIdentity.from_environ(environ | {"RANK": "0"}))
    run.committed(cursor, cursor, "file:///x")
    run.close()


def test_an_attempt_is_written_down_before_its_processes_exist(job: JobSupervisor, folder: JobFolder) -> None:
    begin(job)
    assert kinds(folder) == [("job_submitted", 0), ("allocated", 1), ("attempt_started", 1)]
    assert folder.attempts() == [1]


def test_a_failure_is_followed_by_the_policys_decision(job: JobSupervisor, folder: JobFolder) -> None:
    begin(job)
    outcome = job.fail_attempt([RankExit(rank=1, code=-9), RankExit(rank=0, code=1)], order=[1, 0])
    assert outcome.decision is not None
    assert outcome.decision.restart
    assert kinds(folder)[-2:] == [("attempt_ended", 1), ("restart_decision", 1)]
    end = end_of(folder)
    assert (end["reason"], end["exit_code"], end["signal"], end["class"]) == ("failed", 137, 9, "infra")
    assert end["first_failing_rank"] == 1


@pytest.mark.parametrize(
    "lost",
    ["RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer", "error[ETT-S004]: rank 1 is gone"],
)
def test_a_rank_that_only_lost_a_peer_is_not_the_first_to_fail(
    lost: str, job: JobSupervisor, folder: JobFolder
) -> None:
    begin(job)
    for rank, said in enumerate([lost, "ValueError: no such column"]):
        (folder.logs(1) / f"rank{rank}.err").write_text(f"{said}\n")
    job.fail_attempt([RankExit(rank=0, code=1), RankExit(rank=1, code=1)], order=[0, 1])
    assert (end_of(folder)["first_failing_rank"], end_of(folder)["cause"]) == (1, "value_error")


@pytest.mark.parametrize(
    ("fault", "of_rank", "cause"),
    [
        ("raise:rank=each,step=4,point=step,attempt=1", 0, "injected_fault"),
        ("raise:rank=each,step=4,point=step,attempt=1", 1, "value_error"),  # it happened to another rank
        ("raise:rank=each,step=5,point=step,attempt=1", 0, "value_error"),  # none of this launch's
        ("slow:rank=each,step=3,point=step,attempt=1", 0, "value_error"),  # ends nobody
    ],
)
def test_a_fault_that_the_failed_rank_recorded_is_the_cause(
    fault: str, of_rank: int, cause: str, folder: JobFolder
) -> None:
    plan = replace(PLAN, chaos=("raise:rank=each,step=4", "slow:rank=each,step=3"))
    job = JobSupervisor(plan, folder, StopSignals())
    job.open(read_history(folder.events))
    environ = begin(job)
    run = Run(RunIdentity.from_environ(environ | {"RANK": str(of_rank)}))
    run.emit("fault_injected", fault=fault, kind=fault.partition(":")[0], point="step", step=4)
    run.close()
    (folder.logs(1) / "rank0.err").write_text("".join(f"line {n}\n" for n in range(30)) + "ValueError: no\n")
    job.fail_attempt([RankExit(rank=0, code=1)], order=[0])
    job.close()
    assert end_of(folder)["cause"] == cause


def test_where_all_lost_a_peer_the_first_of_them_is_named(job: JobSupervisor, folder: JobFolder) -> None:
    begin(job)
    for rank in (0, 1):
        (folder.logs(1) / f"rank{rank}.err").write_text("error[ETT-S004]: another rank is gone\n")
    job.fail_attempt([RankExit(rank=0, code=6), RankExit(rank=1, code=6)], order=[1, 0])
    assert end_of(folder)["first_failing_rank"] == 1


def test_a_codeword_of_ours_is_final_for_our_own_program_only(folder: JobFolder) -> None:
    for kind in ("recipe", "script"):
        job = JobSupervisor(replace(PLAN, kind=kind), folder, StopSignals())  # type: ignore[arg-type]
        job.open(read_history(folder.events))
        begin(job)
        decision = job.fail_attempt([RankExit(rank=0, code=3)], order=[0]).decision
        job.close()
        assert decision is not None
        assert decision.restart == (kind == "script")


def test_a_new_supervisor_says_what_no_supervisor_saw_the_end_of(job: JobSupervisor, folder: JobFolder) -> None:
    begin(job)
    second = JobSupervisor(PLAN, folder, StopSignals())
    second.open(read_history(folder.events))
    second.close()
    assert kinds(folder)[3:] == [("attempt_ended", 1), ("allocated", 2)]
    end = {"reason": "failed", "class": "unknown", "inferred": True, "cause": "supervisor_lost"}
    assert end_of(folder) == end


def test_an_attempt_of_another_boot_was_lost_with_its_host(folder: JobFolder) -> None:
    began = JobSupervisor(PLAN, folder, StopSignals())
    began.open(read_history(folder.events))
    begin(began)
    began.close()
    history = read_history(folder.events)
    host, boot = history.places[1]
    assert history.lost_cause(1, host, boot) == "supervisor_lost"
    assert history.lost_cause(1, host, "another boot") == "host_restarted"
    assert history.lost_cause(1, "another host", boot) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "lines", "cause"),
    [
        (1, ["Traceback (most recent call last):", "ValueError: no such column"], "value_error"),
        (1, ["[rank0]: torch.OutOfMemoryError: CUDA out of memory."], "out_of_memory_error"),
        (1, ["[rank0]: torch.distributed.DistBackendError: NCCL error"], "dist_backend_error"),
        (1, ["OSError: [Errno 28] No space left on device: '/x'"], "disk_full"),
        (8, ["error[ETT-C008]: segment 3 is torn"], "ett-c008"),
        (3, ["ValueError: one that was handled"], None),  # the code is the program's own
        (-9, ["ValueError: one that was handled"], None),
        (1, ["bye"], None),
        (-9, ["ett chaos: kill:rank=0,step=4,point=step,attempt=1"], None),  # anybody can say so
    ],
)
def test_the_end_names_the_cause_where_it_is_known(
    code: int, lines: list[str], cause: str | None, folder: JobFolder
) -> None:
    job = JobSupervisor(replace(PLAN, chaos=("kill:rank=0,step=4",)), folder, StopSignals())
    job.open(read_history(folder.events))
    begin(job)
    (folder.logs(1) / "rank0.err").write_text("\n".join([*lines, ""]))
    job.fail_attempt([RankExit(rank=0, code=code)], order=[0])
    job.close()
    assert end_of(folder).get("cause") == cause


def test_a_folder_that_is_deleted_while_an_attempt_starts_stays_deleted(job: JobSupervisor, folder: JobFolder) -> None:
    shutil.rmtree(folder.path)
    with pytest.raises(NotFound, match="is gone"), folder.expected():
        begin(job)
        job.watch({0: NO_PROCESS})
    assert not folder.logs(1).exists()


def test_a_kill_is_the_memory_killers_only_where_the_kernel_counted_one(
    job: JobSupervisor, folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr("ett.supervisor.num_memory_kills", lambda: next(counts))
    begin(job)
    job.fail_attempt([RankExit(rank=0, code=-9)], order=[0])
    assert end_of(folder)["cause"] == "out_of_memory"


@pytest.mark.parametrize(
    ("line", "file", "text", "count"),
    [
        ("0::/job", "job/memory.events", "low 0\noom 1\noom_kill 3\n", 3),
        ("4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", 5),
        ("4:memory:/job", "memory/job/memory.oom_control", "oom_kill_disable 0\n", None),
        ("1:cpu:/job", "job/memory.events", "oom_kill 3\n", None),
    ],
)
def test_the_kernels_count_is_read_from_either_kind_of_control_group(
    line: str, file: str, text: str, count: int | None, tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(f"{line}\n")
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert num_memory_kills(tmp_path / "cgroup", tmp_path) == count


def test_a_program_that_stopped_is_preempted(job: JobSupervisor, folder: JobFolder) -> None:
    begin(job)
    assert job.preempt_attempt(BOTH_DONE, order=[]) == Outcome(status="preempted")
    assert end_of(folder) == {"reason": "preempted"}


def test_our_own_trainer_that_had_nothing_left_to_do_has_succeeded(folder: JobFolder) -> None:
    job = JobSupervisor(replace(PLAN, kind="recipe"), folder, StopSignals())
    job.open(read_history(folder.events))
    begin(job)
    assert job.preempt_attempt(BOTH_DONE, order=[]) == Outcome(status="succeeded")
    assert end_of(folder)["reason"] == "completed"
    job.close()


def train(environ: dict[str, str], *, until: int, saves: int) -> None:
    """Steps of rank 0, and a commit after one of them."""
    run = Run(RunIdentity.from_environ(environ))
    for step in range(1, until + 1):
        with run.step(samples=1):
            pass
        if step == saves:
            run.committed(step, step, "file:///c")
    run.close()


@pytest.mark.parametrize(("code", "exit_code"), [(-signal.SIGKILL, 137), (-signal.SIGUSR1, None), (143, None)])
def test_what_a_stopped_job_had_saved_is_said_also_where_the_grace_time_was_too_short(
    job: JobSupervisor, folder: JobFolder, code: int, exit_code: int | None
) -> None:
    train(begin(job), until=7, saves=4)
    job.notice_preemption(signal.SIGUSR1)
    outcome = job.preempt_attempt([RankExit(rank=0, code=code), RankExit(rank=1, code=143)], order=[0, 1])
    assert outcome.saved == SavedSteps(4, 3)
    assert (None if outcome.failure is None else outcome.failure.exit_code) == exit_code
    end = end_of(folder)
    assert (end["reason"], end["saved_step"], end["unsaved_steps"]) == ("preempted", 4, 3)


def test_a_save_that_failed_while_stopping_is_the_outcome(job: JobSupervisor) -> None:
    begin(job)
    outcome = job.preempt_attempt([RankExit(rank=0, code=143), RankExit(rank=1, code=6)], order=[1, 0])
    assert (outcome.status, outcome.failure) == ("preempted", RankExit(rank=1, code=6))


def test_a_chosen_step_holds_until_this_launch_has_a_commit_of_its_own(folder: JobFolder) -> None:
    job = JobSupervisor(replace(PLAN, resume="120"), folder, StopSignals())
    job.open(read_history(folder.events))
    resumes = []
    for cursor in (None, 5, None):
        environ = begin(job)
        resumes.append(environ["ETT_RESUME"])
        if cursor is not None:
            commit(folder, environ, cursor)
        job.fail_attempt([RankExit(rank=0, code=-9)], order=[0])
    job.close()
    assert resumes == ["120", "120", "auto"]


@pytest.mark.parametrize(("kind", "expected"), [("recipe", 2), ("script", 0)])
def test_spares_wait_only_for_ranks_of_a_recipe(folder: JobFolder, kind: Any, expected: int) -> None:
    job = JobSupervisor(replace(PLAN, kind=kind, recovery={"spares": 2}), folder, StopSignals())
    job.close()
    assert job.num_spares == expected


@pytest.fixture
def shrinking(folder: JobFolder) -> Iterator[JobSupervisor]:
    plan = replace(PLAN, nproc=3, nproc_min=1, recovery={"max_restarts": 9, "restart": "inprocess"})
    supervisor = JobSupervisor(plan, folder, StopSignals())
    supervisor.open(read_history(folder.events))
    yield supervisor
    supervisor.close()


def gone(pid: int, *, place: int = 1) -> list[RankExit]:
    return [RankExit(rank=place, code=-9, local_rank=place, pid=NO_PROCESS + pid)]


def test_a_place_that_fails_at_two_starts_is_left_out_of_the_next_attempt_as_the_log_says(
    shrinking: JobSupervisor, folder: JobFolder
) -> None:
    job = shrinking
    worlds = []
    for pid, place in ((1, 1), (2, 1), (3, 0)):
        begin(job)
        outcome = job.fail_attempt(gone(pid, place=place), order=[])
        worlds.append((job.next_world.places, outcome.decision and outcome.decision.rule))
    assert worlds == [((0, 1, 2), "restart"), ((0, 2), "shrink"), ((0, 2), "restart")]
    assert job.next_world == places_after(read_history(folder.events).since(1), num_places=3, fewest=1).whole


def test_a_rank_that_failed_is_judged_once_though_its_attempt_ends_as_well(shrinking: JobSupervisor) -> None:
    job = shrinking
    begin(job)
    job.watch({rank: NO_PROCESS + rank for rank in range(3)})
    assert job.lose_ranks(gone(1), order=[]).world is None
    job.begin_generation(1, job.world)
    job.watch_replacement(1, NO_PROCESS + 2, is_spare=False)
    assert job.lose_ranks(gone(2), order=[]).world == World((0, 2))
    job.begin_generation(2, World((0, 2)))
    job.fail_attempt(gone(2), order=[])  # the ranks that lived on did not come
    assert job.next_world == World((0, 2))


def test_an_error_that_ends_a_rank_and_then_its_attempt_is_one_failure(folder: JobFolder) -> None:
    job = JobSupervisor(replace(PLAN, recovery={"restart": "inprocess"}), folder, StopSignals())
    job.open(read_history(folder.events))
    begin(job)
    job.watch({0: NO_PROCESS, 1: NO_PROCESS + 1})
    (folder.logs(1) / "rank1.err").write_text("ValueError: no such column\n")
    failed = [RankExit(rank=1, code=1, local_rank=1, pid=NO_PROCESS + 1)]
    lost = job.lose_ranks(failed, order=[1]).decision
    job.begin_generation(1, job.world)
    ended = job.fail_attempt(failed, order=[]).decision  # the rank that lived on did not come
    job.close()
    assert lost is not None
    assert ended is not None
    assert (lost.restart, lost.why, ended) == (True, "restart 1 of 3", lost)
    (life,) = read_history(folder.events).since(1)
    assert (life.gen, life.pid, life.failure_class) == (0, NO_PROCESS + 1, "user")


def test_all_places_are_tried_again_once_a_rank_that_failed_had_made_a_step(shrinking: JobSupervisor) -> None:
    job = shrinking
    for pid in (1, 2):
        begin(job)
        job.fail_attempt(gone(pid), order=[])
    assert job.next_world == World((0, 2))
    train(begin(job), until=1, saves=0)
    job.fail_attempt([RankExit(rank=0, code=-9, local_rank=0, pid=os.getpid())], order=[])
    assert job.next_world == World((0, 1, 2))


def test_a_job_trains_once_every_rank_has_made_a_step(job: JobSupervisor, folder: JobFolder) -> None:
    environ = begin(job)
    job.watch({0: os.getpid()})
    assert not job.is_training()
    run = Run(RunIdentity.from_environ(environ))
    with run.step(samples=1):
        pass
    run.close()
    job._rings.flush()
    assert job.is_training()
    job.watch({0: os.getpid(), 1: NO_PROCESS})
    assert not job.is_training()


def test_a_look_at_the_host_is_in_the_log_and_belongs_to_no_attempt(folder: JobFolder) -> None:
    health = {"min_memory_bytes": 1 << 62}
    job = JobSupervisor(replace(PLAN, recovery={"health": health}), folder, StopSignals())
    job.open(read_history(folder.events))
    (found,) = job.look_at_host(is_thorough=False)
    decision = job.give_up_host((found,), 3.0)
    job.close()
    (look,) = (record for record in read_folder(folder.path).records if record.ev == "host_check")
    assert (look.att, look.data["after"], look.data["ok"]) == (0, 1, False)
    assert set(look.data["checks"]) == {"job_folder", "memory", "loopback"}
    assert look.data["failed"] == {"memory": found.fact}
    assert (decision.rule, kinds(folder)[-1]) == ("unhealthy_host", ("restart_decision", 1))


def test_a_lost_rank_whose_error_is_final_is_not_replaced(folder: JobFolder) -> None:
    job = JobSupervisor(replace(PLAN, kind="recipe", recovery={"restart": "inprocess"}), folder, StopSignals())
    job.open(read_history(folder.events))
    environ = begin(job)
    job.watch({0: NO_PROCESS, 1: NO_PROCESS + 1})
    assert environ["ETT_GENERATIONS"] == str(folder.attempt(1))
    assert not job.can_live_on([0])  # it has not said that it can
    GenerationFolder(folder.attempt(1)).join(0, 0)
    assert job.can_live_on([0])
    outcome = job.lose_ranks([RankExit(rank=1, code=3)], order=[1])
    job.close()
    assert outcome.decision is not None
    assert (outcome.decision.restart, outcome.decision.rule) == (False, "final_error")
    (fault,) = (record for record in read_folder(folder.path).records if record.ev == "fault")
    assert (fault.rank, fault.data["class"], fault.data["final"]) == (1, "user", True)


def test_what_is_only_noted_of_the_host_holds_up_nothing_and_is_said_once(
    job: JobSupervisor, folder: JobFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = (Finding(check="memory", took_s=0.0, note="could not be looked at"),)
    monkeypatch.setattr("ett.supervisor.load", lambda seam: lambda *_, **__: found)
    assert [job.look_at_host(is_thorough=False) for _ in range(2)] == [(), ()]
    assert capsys.readouterr().err == "ett: this host: memory: could not be looked at\n"
    looks = [record.data for record in read_folder(folder.path).records if record.ev == "host_check"]
    assert [(look["ok"], look["noted"]["memory"]) for look in looks] == [(True, found[0].note)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("resume", "is_well"), [("auto", False), ("never", True)])
def test_a_job_that_has_committed_needs_its_commits(folder: JobFolder, resume: str, is_well: bool) -> None:
    write_json(folder.recipe_file, {"checkpoint": {"uri": f"file://{folder.path}/c"}})
    job = JobSupervisor(replace(PLAN, resume=resume), folder, StopSignals())
    job.open(read_history(folder.events))
    assert job.look_at_host(is_thorough=False) == ()
    commit(folder, begin(job), 1)
    job.close()
    again = JobSupervisor(replace(PLAN, resume=resume), folder, StopSignals())
    again.open(read_history(folder.events))
    assert (again.look_at_host(is_thorough=False) == ()) == is_well
    commit(folder, begin(again), 2)  # in this launch: whatever it began from
    again.fail_attempt([RankExit(rank=0, code=-9)], order=[0])
    assert [found.check for found in again.look_at_host(is_thorough=False)] == ["checkpoints"]
    again.close()
