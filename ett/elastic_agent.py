"""TorchElastic's local agent, overridden where a job's life is decided: how workers start, are watched and come back.

Ranks and spawning are torch's; the rendezvous is `ett/one_host_rendezvous.py`. Importing this imports torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException

from ett import worker
from ett.exit_order import ExitOrder
from ett.failure import RankExit, first_failure
from ett.generation import Generation
from ett.one_host_rendezvous import ADDRESS, OneHostRendezvous, local_store
from ett.outcome import Outcome
from ett.replaced_rank import ReplacedRank
from ett.spares import Spares
from ett.stop_signals import NOTICE_CODES
from ett.supervisor import JobSupervisor
from ett.world import compile_workers

MONITOR_INTERVAL_S = 0.05
# After one rank's failure the others can only end: time to see their broken connections and print why.
SURVIVORS_GRACE_S = 3
CAUSE_S = 3.0  # for a rank to say why that has left its peers already
TEARDOWN_S = 15.0  # for it to end then: Python takes itself down, with torch for half a second on an idle host
SURVIVORS_JOIN_S = 120.0  # for a rank that lives on to leave its collective and come to the next generation
UNKILLABLE_AFTER_S = 10.0  # a killed process that is still there is in uninterruptible sleep
HOST_LOOK_INTERVAL_S = 5.0  # between two looks at a host that is not well
PREEMPTED_CODE = 128 + signal.SIGTERM


@dataclass(kw_only=True, slots=True)
class _Replacing:
    """A generation that is being formed."""

    generation: Generation
    failed: list[RankExit]  # why
    order: list[int]  # in which they ended
    replaced: list[int]  # torch's local ranks; those of `local_ranks` are still to be started
    local_ranks: list[int]
    survivors: list[int]  # ranks that have to come over, as they are counted in this generation
    start_at_s: float  # monotonic
    join_until_s: float


class _Stopped(Exception):
    """Leaves torch's loop once the workers were told to stop and are gone."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.status)
        self.outcome = outcome


class SupervisedAgent(LocalElasticAgent):
    """Reports to a JobSupervisor and does what its restart policy says."""

    def __init__(
        self, job: JobSupervisor, spares: Spares, spec: WorkerSpec, logs: LogsSpecs, prefix: str | None
    ) -> None:
        super().__init__(spec, logs, log_line_prefix_template=prefix)
        self._shutdown_timeout = int(job.recovery.grace_s) + 1  # no argument of every torch that we run on
        self._job, self._spares = job, spares
        self._order: ExitOrder | None = None
        self._replacing: _Replacing | None = None
        self._generation_store: object = None  # kept alive: the ranks of a generation meet at it
        self.outcome = Outcome(status="succeeded")

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._check_stop_between_attempts()
        self._job.begin_attempt(os.environ)
        with taking_spares(self._spares):
            ids: dict[int, Any] = super()._start_workers(worker_group)
        pids = {self._rank(local_rank): pid for local_rank, pid in ids.items()}
        self._order, self._replacing = ExitOrder(pids), None
        self._job.watch(pids)
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._job.beat()
        exits = self._exits(worker_group)
        is_failed = any(gone.code != 0 for gone in exits)
        stop = self._job.stop.requested
        if stop is not None and not (is_failed and self._failed_by_itself(exits)):
            raise _Stopped(self._stop_workers_for(stop, worker_group))
        if is_failed:
            lived_on = self._live_on(exits) if stop is None else None
            return lived_on or self._fail(exits, worker_group)
        if self._replacing is not None and (ended := self._go_on_replacing(self._replacing, exits)) is not None:
            return ended
        if len(exits) == self._job.world.size:
            assert self._pcontext is not None
            self._pcontext.close(signal.SIGKILL, 1)
            self._job.complete_attempt()
            self.outcome = Outcome(status="succeeded")
            values = {worker.global_rank: None for worker in worker_group.workers}  # torch asks for all that it started
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        hang = self._job.find_hang()
        if hang is not None:
            unkillable = self._end_workers(signal.SIGKILL, 0.0)
            return self._end_attempt([RankExit(rank=hang.rank, code=-signal.SIGKILL, hang=hang)], [], unkillable)
        if not exits and self._replacing is None:
            self._spares.tend(self._job.is_training)
        return RunResult(state=WorkerState.HEALTHY)

    def _failed_by_itself(self, exits: list[RankExit]) -> bool:
        """True where a rank had failed before anybody told it to stop: a stop in the same poll must not hide that."""
        return first_failure(exits, self._exit_order()).code not in NOTICE_CODES

    def _fail(self, exits: list[RankExit], worker_group: WorkerGroup) -> RunResult:
        failed = [gone for gone in exits if gone.code != 0]
        codes = {gone.code for gone in failed}
        if PREEMPTED_CODE in codes <= NOTICE_CODES:
            # The ranks were told by somebody else, agreed on a step and saved: that is no failure.
            raise _Stopped(self._stop_workers_for(signal.SIGTERM, worker_group))
        failed = self._with_their_cause(failed, worker_group)
        order, now = self._exit_order(), self._replacing
        if now is not None and all(map(self._job.only_lost_a_peer, failed)):
            failed, order = now.failed, now.order  # theirs is the end that these felt: that is no second failure
        return self._end_attempt(failed, order, self._end_workers(signal.SIGTERM, SURVIVORS_GRACE_S))

    def _with_their_cause(self, failed: list[RankExit], worker_group: WorkerGroup) -> list[RankExit]:
        """Return the ranks that failed; where all only lost a peer, wait a moment for the one whose end they felt."""
        begun_s = time.monotonic()
        while all(map(self._job.only_lost_a_peer, failed)) and (running := self._running()):
            longest_s = TEARDOWN_S if any(map(self._job.states_an_error, running)) else CAUSE_S
            if time.monotonic() - begun_s >= longest_s:
                break
            time.sleep(MONITOR_INTERVAL_S)
            failed = [gone for gone in self._exits(worker_group) if gone.code != 0]
        return failed

    def _live_on(self, exits: list[RankExit]) -> RunResult | None:
        """Let the other ranks begin the next generation, if they can; None where the attempt has to end."""
        failed = [gone for gone in exits if gone.code != 0]
        lost = {self._local_rank(gone.rank) for gone in failed}
        left = sorted(set(self._handlers()) - {self._local_rank(gone.rank) for gone in exits})
        is_stopping = any(gone.code == PREEMPTED_CODE for gone in failed)
        if is_stopping or len(failed) < len(exits) or not self._can_live_on(lost, left):
            return None
        order = self._exit_order()
        outcome = self._job.lose_ranks(failed, order)
        decision = outcome.decision
        if decision is None or not decision.restart:
            return None
        for local_rank in lost:
            del self._handlers()[local_rank]
        store, world = local_store(), outcome.world or self._job.world
        generation, self._generation_store = self._job.begin_generation(store.port, world), store
        replaced = [local_rank for local_rank in lost if self._place(local_rank) in world.places]
        said = f" ({outcome.cause})" if outcome.cause else ""
        after = f", after {decision.delay_s:.1f} s" if replaced else ""
        others = f"{len(left)} {'rank lives' if len(left) == 1 else 'ranks live'} on"
        self._job.say(f"{outcome.failure}{said}; {decision.why}: {others}{after}")
        now_s = time.monotonic()
        self._replacing = _Replacing(
            generation=generation,
            failed=failed,
            order=order,
            replaced=replaced,
            local_ranks=list(replaced),
            survivors=[self._rank(local_rank) for local_rank in left],
            start_at_s=now_s + decision.delay_s,
            join_until_s=now_s + SURVIVORS_JOIN_S,
        )
        self._watch_order()
        return RunResult(state=WorkerState.HEALTHY)

    def _can_live_on(self, lost: set[int], left: list[int]) -> bool:
        """Return whether the ranks that are left can go on without the lost ones, all as torch's local ranks."""
        now = self._replacing
        if now is None:
            return self._job.can_live_on([self._rank(local_rank) for local_rank in left])
        # Those that live on are on their way. With one of them lost as well it is better to begin from nothing, and
        # so it is where a new rank failed at its start and may not be left out.
        return self._job.may_shrink and bool(left) and lost <= set(now.replaced)

    def _go_on_replacing(self, now: _Replacing, exits: list[RankExit]) -> RunResult | None:
        """Start the new ranks when their wait is over; end the attempt where a survivor does not come."""
        if now.local_ranks and time.monotonic() >= now.start_at_s:
            for local_rank in now.local_ranks:
                self._replace(local_rank, now.generation)
            self._watch_order()
            now.local_ranks.clear()
        has_come = self._job.have_joined(now.survivors)
        if has_come and not now.local_ranks:
            self._replacing = None if self._job.have_joined([self._rank(n) for n in now.replaced]) else now
        elif not has_come and (time.monotonic() > now.join_until_s or exits):
            self._job.say(f"not every rank came to generation {now.generation.number}: the attempt ends")
            return self._end_attempt(now.failed, now.order, self._end_workers(signal.SIGTERM, SURVIVORS_GRACE_S))
        return None

    def _replace(self, local_rank: int, generation: Generation) -> None:
        context: Any = self._pcontext
        command = [context.entrypoint, *map(str, context.args[local_rank])]
        environ = {**context.envs[local_rank], **generation.environ_at(self._place(local_rank))}
        files = context.stdouts[local_rank], context.stderrs[local_rank]
        spare = self._spares.take(environ, *files)
        started = spare or ReplacedRank.start(command, environ, *files)
        self._handlers()[local_rank] = started
        self._worker_group.workers[local_rank].id = started.proc.pid
        self._job.watch_replacement(self._rank(local_rank), started.proc.pid, is_spare=spare is not None)

    def _end_attempt(self, failed: list[RankExit], order: list[int], unkillable: list[int]) -> RunResult:
        self.outcome = self._job.fail_attempt(failed, order, unkillable)
        self._allow_restart()
        return RunResult(state=WorkerState.FAILED)

    def _end_workers(self, first: signal.Signals, grace_s: float) -> list[int]:
        """Send `first` to every worker, SIGKILL after the grace time; return ranks that not even that could end.

        A process in uninterruptible sleep is not waited for: torch would wait without a limit, and nothing of ours
        would say why.
        """
        handlers = self._handlers()
        for signum, wait_s in ((first, grace_s), (signal.SIGKILL, UNKILLABLE_AFTER_S)):
            for handler in handlers.values():
                if handler.proc.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(handler.proc.pid, signum)
            until_s = time.monotonic() + wait_s
            while self._num_running() and time.monotonic() < until_s:
                time.sleep(MONITOR_INTERVAL_S)
        left = [local_rank for local_rank, handler in handlers.items() if handler.proc.poll() is None]
        ranks = [self._rank(local_rank) for local_rank in left]
        for local_rank in left:
            pid = handlers.pop(local_rank).proc.pid
            self._job.say(f"process {pid} hangs in the kernel and cannot be ended: its device is lost to this host")
        self._job.end_children()
        assert self._pcontext is not None
        self._pcontext.close(signal.SIGKILL, 1)
        return ranks

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        decision = self.outcome.decision
        assert decision is not None
        said = f" ({self.outcome.cause})" if self.outcome.cause else ""
        self._job.say(f"{self.outcome.failure}{said}; {decision.why}, after {decision.delay_s:.1f} s")
        self._pause(decision.delay_s)
        self._await_host(is_thorough=decision.num_fruitless > 1)
        self._job.prepare_attempt()
        worker_group.spec.local_world_size = self._job.next_world.size
        super()._restart_workers(worker_group)

    def _await_host(self, *, is_thorough: bool) -> None:
        """Return once this host has what an attempt needs; end the job where it has not in time.

        Args: is_thorough: the last attempts came to nothing, so that a look at everything is worth its time.
        """
        begun_s, job = time.monotonic(), self._job
        while ill := job.look_at_host(is_thorough=is_thorough, meanwhile=self._go_on_waiting):
            waited_s = time.monotonic() - begun_s
            if waited_s >= job.recovery.health_wait_s:
                decision = job.give_up_host(ill, waited_s)
                raise _Stopped(replace(self.outcome, decision=decision, do="; ".join(found.do for found in ill)))
            for found in ill:
                job.say(f"this host is not well: {found.check}: {found.fact}; {found.do}; looked at again")
            self._pause(HOST_LOOK_INTERVAL_S)

    def _pause(self, wait_s: float) -> None:
        """Wait between two attempts, for as long as nobody tells the job to stop."""
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s:
            self._go_on_waiting()
            time.sleep(min(MONITOR_INTERVAL_S, max(0.0, until_s - time.monotonic())))

    def _go_on_waiting(self) -> None:
        self._check_stop_between_attempts()
        self._job.beat()

    def _allow_restart(self) -> None:
        decision = self.outcome.decision
        assert decision is not None
        # torch counts its restarts down from max_restarts, and workers see how far it got; ours is the same count.
        num_restarts = self._job.attempt - self._job.first_attempt
        left = self._worker_group.spec.max_restarts - num_restarts
        self._remaining_restarts = max(1, left) if decision.restart else 0

    def _check_stop_between_attempts(self) -> None:
        if self._job.stop.requested is not None:
            self._job.end_prepared_attempt()
            raise _Stopped(Outcome(status="preempted"))

    def _stop_workers_for(self, signum: int, worker_group: WorkerGroup) -> Outcome:
        """Tell every worker once, wait for the grace time, end what is left."""
        job = self._job
        job.notice_preemption(signum)
        job.say(f"stopping: each worker has {job.recovery.grace_s:g} s to save and end")
        assert self._pcontext is not None
        for pid in self._pcontext.pids().values():
            self._tell(pid)
        until_s = time.monotonic() + job.recovery.grace_s
        while self._num_running() and time.monotonic() < until_s and not job.stop.is_urgent:
            job.beat()
            time.sleep(MONITOR_INTERVAL_S)
        self._end_workers(signal.SIGKILL, 0.0)
        return job.preempt_attempt(self._exits(worker_group), self._exit_order())

    def _tell(self, pid: int) -> None:
        try:
            if self._job.plan.kind == "command":
                os.killpg(pid, signal.SIGTERM)  # a shell would keep it from the program that it runs
            else:
                os.kill(pid, signal.SIGTERM)  # a data loader's children must live until the save is done
        except ProcessLookupError:
            return  # ended by itself

    def _exits(self, worker_group: WorkerGroup) -> list[RankExit]:
        if self._pcontext is None:
            return []
        found = []
        for local_rank, handler in self._handlers().items():
            code = handler.proc.poll()
            if code is not None:
                place, pid = self._place(local_rank), handler.proc.pid
                found.append(RankExit(rank=self._rank(local_rank), code=code, local_rank=place, pid=pid))
        return found

    def _place(self, local_rank: int) -> int:
        """Return what the rank's LOCAL_RANK says; torch counts from 0 to the attempt's size and leaves out none."""
        return self._job.first_world.places[local_rank]

    def _rank(self, local_rank: int) -> int:
        return self._job.world.rank_at(self._place(local_rank))

    def _local_rank(self, rank: int) -> int:
        return self._job.first_world.rank_at(self._job.world.places[rank])

    def _watch_order(self) -> None:
        self._order = ExitOrder({self._rank(n): handler.proc.pid for n, handler in self._handlers().items()})

    def _num_running(self) -> int:
        return len(self._running())

    def _running(self) -> list[int]:
        """Return the places of the processes that still run."""
        return [self._place(n) for n, handler in self._handlers().items() if handler.proc.poll() is None]

    def _handlers(self) -> dict[int, Any]:
        handlers: dict[int, Any] = getattr(self._pcontext, "subprocess_handlers", {})
        return handlers

    def _exit_order(self) -> list[int]:
        return [] if self._order is None else list(self._order.ended)


@contextlib.contextmanager
def taking_spares(spares: Spares) -> Iterator[None]:
    """Let torch take spares for the ranks that it starts within, as far as they go."""
    torch_agent: Any = api
    start = torch_agent.get_subprocess_handler

    def take_or_start(**given: Any) -> Any:
        # A job's first attempt finds none.
        return spares.take(given["env"], given["stdout"], given["stderr"]) or start(**given)

    torch_agent.get_subprocess_handler = take_or_start
    try:
        yield
    finally:
        torch_agent.get_subprocess_handler = start


class _AttemptLogs(LogsSpecs):
    """Each rank's output goes to logs/<attempt>/ and, as it comes, to this process's own."""

    def __init__(self, job: JobSupervisor) -> None:
        super().__init__()
        self._job = job

    @property
    def root_log_dir(self) -> str:
        return str(self._job.folder.path / "logs")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        folder = self._job.folder.logs(self._job.attempt)
        errors = self._paths(folder, envs, "error.json")
        for local_rank, path in errors.items():
            envs[local_rank]["TORCHELASTIC_ERROR_FILE"] = path
            envs[local_rank]["LOCAL_RANK"] = str(self._job.world.places[local_rank])
        out, err = self._paths(folder, envs, "log"), self._paths(folder, envs, "err")
        return LogsDest(stdouts=out, stderrs=err, tee_stdouts=dict(out), tee_stderrs=dict(err), error_files=errors)

    @staticmethod
    def _paths(folder: Path, envs: dict[int, dict[str, str]], suffix: str) -> dict[int, str]:
        return {local_rank: str(folder / f"rank{env['RANK']}.{suffix}") for local_rank, env in envs.items()}


class _NoPrefix(str):
    """An empty prefix that torch takes for one: a false one means its default, "[rank0]:"."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


def run_agent(job: JobSupervisor) -> Outcome:
    """Run the job's attempts until it succeeds, gives up or is told to stop."""
    plan = job.plan
    _quieten_torch()
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # the others are ours
    if plan.nproc > 1:
        # As torchrun does: ranks that each use every core are slower than one thread each.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        workers = compile_workers(len(os.sched_getaffinity(0)), plan.nproc)
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(workers))
    shim = ("-I", "-S", worker.__file__, str(os.getpid()), *plan.program())
    spec = WorkerSpec(
        role="rank",
        local_world_size=plan.nproc,
        entrypoint=sys.executable,
        args=tuple(arg.replace("$", "$$") for arg in shim),  # torch reads "$$" as "$" and "${local_rank}" as a number
        rdzv_handler=OneHostRendezvous(f"{job.folder.name}-{uuid.uuid4().hex[:8]}"),
        max_restarts=job.recovery.max_restarts,
        monitor_interval=MONITOR_INTERVAL_S,
        local_addr=ADDRESS,
    )
    prefix = "[rank${rank}] " if plan.nproc > 1 else _NoPrefix()
    spares = Spares(job.num_spares, job.folder.path / "logs" / "spares.log", job.say)
    agent = SupervisedAgent(job, spares, spec, _AttemptLogs(job), prefix)
    try:
        agent.run()
    except _Stopped as stopped:
        return stopped.outcome
    except SignalException as err:  # SIGQUIT, which is left to torch: it has ended the workers
        job.say(f"{err.sigval.name}: the workers were ended")
        return job.preempt_attempt([], [])
    finally:
        spares.close()
        spec.rdzv_handler.shutdown()
    return agent.outcome


def _quieten_torch() -> None:
    """Keep torch's own account of failures from the terminal: the supervisor says the same in one line."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
