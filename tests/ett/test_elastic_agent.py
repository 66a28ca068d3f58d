"""The agent's own decisions, without processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import WorkerState

from ett import elastic_agent
from ett.elastic_agent import SupervisedAgent
from ett.failure import RankExit
from ett.generation import Generation
from ett.hang import Hang
from ett.host_health import Finding, give_up
from ett.outcome import Outcome
from ett.restart import RestartDecision
from ett.spares import Spares
from ett.world import World

NO_PROCESS = 2**22 + 1  # above the largest pid of Linux


class Job:
    """What the agent tells its supervisor."""

    may_shrink = False

    def __init__(self, hang: Hang | None = None) -> None:
        self.world = self.first_world = World((0,))
        self.stop = SimpleNamespace(requested=None)
        self.hang, self.failures, self.said = hang, [], []  # type: Hang | None, list[Any], list[str]
        self.losses: list[tuple[list[RankExit], list[int]]] = []
        self.num_completed, self.lives_on = 0, False
        self.lost_a_peer: set[int] = set()  # ranks that say so
        self.found: list[tuple[Finding, ...]] = []  # of this host, look by look
        self.recovery = SimpleNamespace(health_wait_s=0.0)

    def look_at_host(self, *, is_thorough: bool, meanwhile: Callable[[], None]) -> tuple[Finding, ...]:
        meanwhile()
        return self.found.pop(0) if self.found else ()

    def give_up_host(self, findings: tuple[Finding, ...], waited_s: float) -> RestartDecision:
        return give_up(findings, waited_s)

    def end_prepared_attempt(self) -> None: ...

    def beat(self) -> None: ...

    def is_training(self) -> bool:
        return False

    def end_children(self) -> None: ...

    def can_live_on(self, survivors: list[int]) -> bool:
        return self.lives_on

    def lose_ranks(self, exits: list[RankExit], order: list[int]) -> Outcome:
        self.losses.append((exits, order))
        decision = RestartDecision(restart=True, delay_s=0.0, rule="restart", why="restart 1 of 3")
        return Outcome(status="failed", failure=exits[0], decision=decision)

    def begin_generation(self, port: int, world: World) -> Generation:
        return Generation(number=1, environ={}, places=world.places)

    def have_joined(self, ranks: list[int]) -> bool:
        return False

    def only_lost_a_peer(self, gone: RankExit) -> bool:
        return gone.rank in self.lost_a_peer

    def find_hang(self) -> Hang | None:
        return self.hang

    def say(self, text: str) -> None:
        self.said.append(text)

    def complete_attempt(self) -> None:
        self.num_completed += 1

    def fail_attempt(self, exits: list[RankExit], order: list[int], unkillable: list[int]) -> str:
        self.failures.append((exits, order, unkillable))
        return "failed"


class Process:
    def __init__(self, *codes: int | None) -> None:
        self.pid, self._codes = NO_PROCESS, list(codes)

    def poll(self) -> int | None:
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]


def agent_of(job: Job, monkeypatch: pytest.MonkeyPatch, *processes: Process) -> SupervisedAgent:
    agent = object.__new__(SupervisedAgent)
    job.world = job.first_world = World(tuple(range(len(processes))))
    agent._job, agent._order, agent._replacing = job, None, None  # type: ignore[assignment]
    workers = [SimpleNamespace(global_rank=r, local_rank=r) for r in range(len(processes))]
    agent._worker_group = SimpleNamespace(workers=workers)
    handlers = {r: SimpleNamespace(proc=process) for r, process in enumerate(processes)}
    agent._pcontext = SimpleNamespace(close=lambda *_: None, subprocess_handlers=handlers)  # type: ignore[assignment]
    agent._spares = Spares(0, Path("/nowhere"), job.say)
    monkeypatch.setattr(agent, "_allow_restart", lambda: None)
    monkeypatch.setattr(elastic_agent, "UNKILLABLE_AFTER_S", 0.0)
    return agent


def test_a_rank_that_fails_while_we_look_is_seen_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    agent = agent_of(job, monkeypatch, Process(None, -9), Process(None, 0))
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.HEALTHY
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED
    assert job.failures == [([RankExit(rank=0, code=-9)], [], [])]


def test_an_attempt_is_complete_when_every_rank_ended_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    agent = agent_of(job, monkeypatch, Process(0), Process(None, 0))
    states = [agent._monitor_workers(agent._worker_group).state for _ in range(2)]
    assert (states, job.num_completed) == ([WorkerState.HEALTHY, WorkerState.SUCCEEDED], 1)


def test_row_32_a_worker_that_the_kernel_holds_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hang = Hang(rank=1, idle_s=700, limit_s=600, phase="step", last_step=7, state="waits in the kernel (D)")
    job = Job(hang)
    agent = agent_of(job, monkeypatch, Process(None, None, None, -9), Process(None))
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED
    assert job.failures == [([RankExit(rank=1, code=-signal.SIGKILL, hang=hang)], [], [1])]
    assert job.said == [
        f"process {NO_PROCESS} hangs in the kernel and cannot be ended: its device is lost to this host"
    ]
    assert list(agent._handlers()) == [0]


@pytest.mark.parametrize(("code", "is_failure"), [(1, True), (-9, True), (143, False), (-15, False), (-10, False)])
def test_row_34_a_stop_in_the_poll_of_a_failure_does_not_hide_it(
    monkeypatch: pytest.MonkeyPatch, code: int, is_failure: bool
) -> None:
    job = Job()
    job.stop.requested = signal.SIGTERM
    agent = agent_of(job, monkeypatch, Process(code), Process(0))
    monkeypatch.setattr(agent, "_stop_workers_for", lambda *_: Outcome(status="preempted"))
    if is_failure:
        assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED
        assert job.failures[0][0] == [RankExit(rank=0, code=code)]
    else:
        with pytest.raises(elastic_agent._Stopped):
            agent._monitor_workers(agent._worker_group)


def test_ranks_that_were_told_to_stop_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.lives_on = True
    agent = agent_of(job, monkeypatch, Process(143), Process(None))
    monkeypatch.setattr(agent, "_stop_workers_for", lambda *_: Outcome(status="preempted"))
    with pytest.raises(elastic_agent._Stopped):
        agent._monitor_workers(agent._worker_group)


@pytest.mark.parametrize("exits", [(0, -9), (-9, -9)])
def test_a_rank_that_is_done_or_alone_needs_the_whole_attempt(
    monkeypatch: pytest.MonkeyPatch, exits: tuple[int, int]
) -> None:
    job = Job()
    agent = agent_of(job, monkeypatch, *map(Process, exits))
    job.lives_on = exits[0] == 0  # a supervisor lets nobody live on where there is nobody
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED


def test_where_survivors_do_not_come_the_attempt_ends_by_the_rank_that_was_lost_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job()
    job.lives_on = True
    agent = agent_of(job, monkeypatch, Process(1), Process(1), Process(None, None, -9))
    agent._order = SimpleNamespace(ended=[1, 0])  # type: ignore[assignment]
    monkeypatch.setattr(agent, "_watch_order", lambda: setattr(agent, "_order", None))
    monkeypatch.setattr(elastic_agent, "SURVIVORS_JOIN_S", -1.0)
    monkeypatch.setattr(agent, "_replace", lambda *_: None)
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.HEALTHY
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED
    (failed, order, _), lost = job.failures[0], job.losses[0]
    assert (failed, order) == lost == ([RankExit(rank=0, code=1), RankExit(rank=1, code=1)], [1, 0])


@pytest.mark.parametrize(("lost_a_peer", "named"), [({0}, 1), (set(), 0)])
def test_a_survivor_that_ends_because_of_the_lost_rank_is_no_failure_of_its_own(
    lost_a_peer: set[int], named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    job.lives_on, job.lost_a_peer = True, lost_a_peer
    agent = agent_of(job, monkeypatch, Process(None, 1), Process(-9))
    monkeypatch.setattr(agent, "_watch_order", lambda: None)
    monkeypatch.setattr(agent, "_replace", lambda *_: None)
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.HEALTHY
    assert agent._monitor_workers(agent._worker_group).state == WorkerState.FAILED
    (failed, _, _) = job.failures[0]
    assert [gone.rank for gone in failed] == [named]


FULL = Finding(check="job_folder", took_s=0.0, fact="/j has 0 bytes free", do="free space")


def test_a_host_that_is_not_well_ends_the_job_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    agent = agent_of(job, monkeypatch, Process(1))
    failed = RankExit(rank=0, code=1)
    agent.outcome, job.found = Outcome(status="failed", failure=failed), [(FULL,)]
    with pytest.raises(elastic_agent._Stopped) as stopped:
        agent._await_host(is_thorough=False)
    outcome = stopped.value.outcome
    assert (outcome.status, outcome.failure, outcome.do) == ("failed", failed, "free space")
    assert outcome.decision is not None
    assert (outcome.decision.restart, outcome.decision.rule) == (False, "unhealthy_host")
    assert "job_folder: /j has 0 bytes free" in outcome.decision.why


@pytest.mark.parametrize(("num_fruitless", "is_thorough"), [(0, False), (1, False), (2, True)])
def test_a_second_failure_without_a_commit_is_worth_a_look_at_everything(
    num_fruitless: int, is_thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(Job(), monkeypatch, Process(1))
    decision = RestartDecision(restart=True, delay_s=0.0, rule="restart", why="", num_fruitless=num_fruitless)
    agent.outcome = Outcome(status="failed", failure=RankExit(rank=0, code=1), decision=decision)
    looks: list[bool] = []

    def look(*, is_thorough: bool) -> None:
        looks.append(is_thorough)
        raise elastic_agent._Stopped(agent.outcome)

    monkeypatch.setattr(agent, "_await_host", look)
    with pytest.raises(elastic_agent._Stopped):
        agent._restart_workers(agent._worker_group)
    assert looks == [is_thorough]


def test_a_stop_ends_a_look_at_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    agent = agent_of(job, monkeypatch, Process(1))
    job.stop.requested = signal.SIGTERM
    with pytest.raises(elastic_agent._Stopped) as stopped:
        agent._await_host(is_thorough=True)
    assert stopped.value.outcome == Outcome(status="preempted")


def test_a_host_that_gets_well_in_time_is_restarted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_agent, "HOST_LOOK_INTERVAL_S", 0.0)
    job = Job()
    agent = agent_of(job, monkeypatch, Process(1))
    job.found, job.recovery.health_wait_s = [(FULL,), (FULL,)], 600.0
    agent._await_host(is_thorough=False)
    assert job.said == ["this host is not well: job_folder: /j has 0 bytes free; free space; looked at again"] * 2
