"""Any process killed at any moment: the log gives a defined and right answer, and nothing stays behind.

The answer is compared with two stopwatches that know nothing of ett: an observer that polls /proc, and the program's
own marks. Tolerance: one poll of the observer (250 ms), or what its longest poll really took on this machine.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched_job import NAME, PROGRAMS, LaunchedJob, Started
from wait import LONGEST_S, wait_until

from ett.accounting import JobAccount, account
from ett.event_reader import read_folder
from ett.event_schema import NS
from ett.job_folder import JobFolder
from ett.trainer.bench.job_observer import POLL_S, Observer

pytestmark = [pytest.mark.process, pytest.mark.slow]
PHASES = ("init", "compile", "step", "ckpt staging", "ckpt commit", "eval", "publish", "teardown")
VICTIMS = ("worker", "supervisor", "both")
DEATHS = ("SIGKILL", "SIGTERM", "SIGSTOP", "exit 0", "exit 1")
MATRIX = [(victim, phase, death) for victim in VICTIMS for phase in PHASES for death in DEATHS]
# Each victim with each death, and each phase, at least once.
SOME = {
    (victim, PHASES[(5 * v + d) % len(PHASES)], death)
    for v, victim in enumerate(VICTIMS)
    for d, death in enumerate(DEATHS)
}
STOPPED_S = 0.6
BEFORE_STEPS = ("init", "compile")  # nobody has asked for a stop yet: SIGTERM ends the process


@dataclass(frozen=True)
class Expected:
    """What `ett launch` exits with, and how the job's interruptions count; None: it depends on who was faster."""

    code: int | None
    failures: int | None = 0
    preemptions: int = 0
    is_resumed: bool = True


def expected(victim: str, phase: str, death: str) -> Expected:
    if death == "SIGSTOP":
        return Expected(0, is_resumed=False)  # stopped for a moment, then continued
    if victim == "worker":
        if death == "exit 0":
            return Expected(0, is_resumed=False)
        if death == "SIGTERM" and phase not in BEFORE_STEPS:
            return Expected(143, preemptions=1)
        return Expected(0, failures=1, is_resumed=False)  # started again by the supervisor
    if death == "SIGTERM":
        return Expected(143, preemptions=1)
    own_code = {"SIGKILL": -signal.SIGKILL, "exit 0": 0, "exit 1": 1}[death]
    return Expected(own_code, failures=None if victim == "both" else 1)


class Scene:
    """A launch whose supervisor and worker obey the test."""

    def __init__(self, job: LaunchedJob, phase: str) -> None:
        self.job, self.phase = job, phase
        self.arguments = ("--max-restarts", "1", str(PROGRAMS / "phases.py"), phase, str(job.folder))

    def start(self) -> Started:
        return self.job.start_program(
            str(PROGRAMS / "launcher_that_exits.py"),
            "launch",
            "--job",
            NAME,
            *self.arguments,
            EXIT_WITH=str(self.job.folder / "supervisor-exits"),
        )

    def reach_phase(self) -> int:
        """Return the worker's pid once it waits at the phase."""
        wait_until(lambda: f" at {self.phase}" in self.marks_text(), f"the worker at {self.phase}")
        folder = JobFolder(self.job.job_dir)
        wait_until(lambda: folder.read_workers(1), "the supervisor's note of its workers")
        return folder.read_workers(1)[0].pid

    def strike(self, victim: str, death: str, supervisor: int, worker: int) -> None:
        order = self.job.folder / "order"
        targets = {"worker": [worker], "supervisor": [supervisor], "both": [supervisor, worker]}[victim]
        if death.startswith("exit"):
            code = death.split()[1]
            if worker in targets:
                replace(order, death)
            if supervisor in targets:
                replace(self.job.folder / "supervisor-exits", code)
            return
        for pid in targets:
            signal_if_alive(pid, signal.Signals[death])
        if death == "SIGSTOP":
            threading.Event().wait(STOPPED_S)
            for pid in targets:
                os.kill(pid, signal.SIGCONT)
        if death == "SIGSTOP" or (death == "SIGTERM" and self.phase in BEFORE_STEPS):
            replace(order, "go")

    def marks_text(self) -> str:
        path = self.job.folder / "marks"
        return path.read_text() if path.exists() else ""

    def effective_ns(self, begin: str, end: str) -> int:
        """Time of the steps that went beyond all earlier ones, by the program's own marks of these names."""
        begins: dict[tuple[str, str], int] = {}
        high = total = 0
        for line in self.marks_text().splitlines():
            time_ns, attempt, what, *number = line.split()
            if what == begin:
                begins[attempt, number[0]] = int(time_ns)
            elif what == end and int(number[0]) > high:
                high = int(number[0])
                total += int(time_ns) - begins[attempt, number[0]]
        return total


def replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def signal_if_alive(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return  # the supervisor's death took it along


def compare(job: LaunchedJob, result: JobAccount, observer: Observer, scene: Scene) -> None:
    tolerance_ns = max(int(POLL_S * NS), observer.longest_gap_ns)
    offset_ns = next(r.wall_ns - r.mono_ns for r in job.records("job_submitted"))
    for timeline in result.timelines:
        attempt = timeline.attempt
        life = observer.lives.get(attempt.number)
        if attempt.start_ns is None or life is None:
            continue  # it lived for less than one poll
        assert abs(attempt.start_ns - offset_ns - life.first_ns) <= tolerance_ns + POLL_S * NS, attempt.number
        assert abs(attempt.end_ns - offset_ns - life.last_ns) <= tolerance_ns + POLL_S * NS, attempt.number
    effective_ns = sum(p.end_ns - p.begin_ns for p in result.pieces if p.component == "effective")
    # Between the marks within the steps and those around them, whatever a busy machine puts between two of them.
    least_ns, most_ns = scene.effective_ns("in", "out"), scene.effective_ns("begin", "end")
    assert least_ns - tolerance_ns <= effective_ns <= most_ns + tolerance_ns
    assert sum(p.end_ns - p.begin_ns for p in result.pieces) == result.window.end_ns - result.window.start_ns


def check_cell(job: LaunchedJob, victim: str, phase: str, death: str) -> None:
    scene, right = Scene(job, phase), expected(victim, phase, death)
    with Observer(str(job.job_dir)) as observer:
        supervisor = scene.start()
        worker = scene.reach_phase()
        scene.strike(victim, death, supervisor.pid, worker)
        code = supervisor.wait(timeout=LONGEST_S)
        assert right.code is None or code == right.code, job.err
        if right.is_resumed:
            assert job.run(*scene.arguments) == 0, job.err
    attempts = sorted({r.att for r in job.records("attempt_started")})
    assert [pid for attempt in attempts for pid in job.processes(attempt)] == []
    log = read_folder(job.job_dir)
    result = account(log, as_of_ns=max(r.wall_ns for r in log.records) + NS)
    assert result is not None
    assert result.window.state == "SUCCEEDED"
    kinds = [interruption.kind for interruption in result.interruptions]
    assert right.failures is None or kinds.count("failure") == right.failures
    assert kinds.count("preemption") == right.preemptions
    compare(job, result, observer, scene)


@pytest.mark.parametrize(("victim", "phase", "death"), sorted(SOME))
def test_some_cells_of_the_kill_matrix(job: LaunchedJob, victim: str, phase: str, death: str) -> None:
    check_cell(job, victim, phase, death)


@pytest.mark.campaign
@pytest.mark.parametrize(("victim", "phase", "death"), sorted(set(MATRIX) - SOME))
def test_the_rest_of_the_kill_matrix(job: LaunchedJob, victim: str, phase: str, death: str) -> None:
    check_cell(job, victim, phase, death)


def test_the_subset_has_every_phase_and_every_victim_with_every_death() -> None:
    assert {phase for _, phase, _ in SOME} == set(PHASES)
    assert {(victim, death) for victim, _, death in SOME} == {(victim, death) for victim in VICTIMS for death in DEATHS}
