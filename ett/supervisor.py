"""The supervisor of one job: records its life, asks the restart policy, and keeps no truth that the log does not hold.

TorchElastic starts and watches the processes (`ett/elastic_agent.py`); what it reports is written down here. Killed
and started again, `run_job` replays the log, proves that the old processes are gone, and goes on with the next attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ett.clock import Clock, SystemClock
from ett.event_log import EventWriter, own_place
from ett.failure import FINAL_CODES, RankExit, first_failure, named_cause
from ett.generation import FOLDER_VARIABLE, Generation, GenerationFolder, generation_environ
from ett.hang import Hang
from ett.hang_watch import HangWatch
from ett.host_health import AttemptNeeds, Finding, HostChecks, give_up, look_fields, unwell
from ett.job_folder import JobFolder, read_json
from ett.job_history import JobHistory, has_stepped, read_history, saved_steps
from ett.launch_plan import LaunchPlan, versions
from ett.memory_kills import num_memory_kills
from ett.otel.trace_ids import attempt_place, needs_own_trace, parse_traceparent
from ett.outcome import Outcome
from ett.planned_faults import PlannedFaults
from ett.process_identity import ProcessIdentity
from ett.rank_failure import RankFailure
from ett.rank_words import RankWords
from ett.restart import AttemptFacts, RecoverySettings, RestartDecision, RestartPolicy, recovery_config
from ett.ring_drain import RingDrain
from ett.seams import SEAMS, load
from ett.section import build_section
from ett.shown_text import shown
from ett.stop_signals import NOTICE_CODES, StopSignals
from ett.store_uri import is_local
from ett.worker_sessions import GuardianPipe, end_old_workers
from ett.world import Places, World, places_after

POLICY_VERSION = 1
HEARTBEAT_INTERVAL_S = 10.0


class JobSupervisor:
    """Writes the supervisor's records of one job; the holder of the job's lease has exactly one."""

    def __init__(self, plan: LaunchPlan, folder: JobFolder, stop: StopSignals, clock: Clock | None = None) -> None:
        self.plan, self.folder, self.stop = plan, folder, stop
        self._clock = clock or SystemClock()
        self.recovery: RecoverySettings = build_section(recovery_config(), plan.recovery, "recovery")
        self._policy: RestartPolicy = load(SEAMS["restart_policy"])
        self.attempt = self.first_attempt = self.generation = 0
        self._places = self._places_after(())
        self.world = self.first_world = self._places.whole  # of the newest generation, and of the attempt's first one
        self._writer = self._open_writer()
        self._rings = RingDrain(folder.path)
        self._guardian = GuardianPipe(folder)
        self._last_beat_s = time.monotonic()
        self._workers: dict[int, ProcessIdentity] = {}
        self._hang_watch: HangWatch | None = None
        self._num_memory_kills = num_memory_kills()  # when the attempt began
        self._is_prepared = False
        self._has_committed = False  # in this launch
        self._has_ever_committed = False  # in any launch of the job
        self._sections = read_json(folder.recipe_file)  # now: later its disk may hang
        self._noted_checks: set[str] = set()  # of this host, and told
        self._submitted_wall_ns = self._clock.wall_ns()

    def open(self, history: JobHistory) -> None:
        """Write down that the job is here, and how attempts ended that no supervisor saw the end of.

        Raises: Conflict: a process of an earlier attempt cannot be ended.
        """
        if not history.is_submitted:
            plan = self.plan
            launcher = parse_traceparent(os.environ.get("TRACEPARENT", ""))
            self._emit(
                "job_submitted",
                att=0,
                team=plan.team,
                owner=plan.owner,
                model=plan.model,
                config_hash=plan.config_hash,
                versions=versions(),
                source={name: value for name, value in plan.source.items() if value != ""} or None,
                traceparent=launcher.traceparent if launcher is not None else None,
            )
        self._submitted_wall_ns = history.submitted_wall_ns or self._submitted_wall_ns
        for number in history.open_attempts:
            end_old_workers(self.folder, number)
            cause = history.lost_cause(number, *own_place())
            self._emit(
                "attempt_ended", att=number, reason="failed", inferred=True, cause=cause or None, **{"class": "unknown"}
            )
        self._rings.start()
        self.attempt = history.last_attempt
        self._has_ever_committed = bool(history.committed_attempts)
        self.prepare_attempt()
        self.first_attempt = self.attempt

    def prepare_attempt(self) -> None:
        """Take the next attempt's number; what follows until its start is provision, not waiting."""
        self.attempt = self.folder.take_attempt(at_least=self.attempt + 1)
        self._is_prepared = True
        self._emit("allocated", att=self.attempt, nodes=1)

    def end_prepared_attempt(self) -> None:
        """Give back what was allocated for an attempt that will not start; nothing where there is none."""
        if self._is_prepared:
            self._is_prepared = False
            self._emit_end("preempted")

    def begin_attempt(self, environ: dict[str, str] | os._Environ[str]) -> None:
        """Write down the attempt before its processes exist, and put into `environ` what they must know."""
        if not self._is_prepared:
            self.prepare_attempt()
        self._is_prepared = False
        self._set_generation(0)
        self.folder.logs(self.attempt).parent.mkdir(exist_ok=True)  # not its parents: a folder that is gone stays gone
        self.folder.logs(self.attempt).mkdir(exist_ok=True)
        self.world = self.first_world = self.next_world
        self._num_memory_kills = num_memory_kills()
        own_trace = self._needs_own_trace()
        self._emit(
            "attempt_started",
            att=self.attempt,
            nodes=1,
            world=self.world.size,
            policy_version=POLICY_VERSION,
            own_trace=own_trace or None,
        )
        environ.update(self._worker_environment())
        # Spans that a script makes itself join the attempt's.
        environ["TRACEPARENT"] = attempt_place(self.folder.name, self.attempt, has_own_trace=own_trace).traceparent

    @property
    def next_world(self) -> World:
        """The world of the next attempt."""
        return self._places.whole

    @property
    def may_shrink(self) -> bool:
        """Whether a rank that cannot come back may be left out."""
        return self._places.may_shrink

    def watch(self, pids: Mapping[int, int]) -> None:
        """Take note of the attempt's processes, by rank, once they run."""
        self._workers = {rank: ProcessIdentity.of(pid) for rank, pid in pids.items()}
        self._guardian.watch(self.attempt, self._workers.values())
        self.folder.write_workers(self.attempt, self._workers)
        self._hang_watch = HangWatch(self.folder, self.attempt, self.recovery)

    def watch_replacement(self, rank: int, pid: int, *, is_spare: bool) -> None:
        """Take note of the process that a lost rank was replaced by."""
        self._emit("rank_replaced", att=self.attempt, rank=rank, worker_pid=pid, spare=is_spare)
        self._workers[rank] = ProcessIdentity.of(pid)
        self._guardian.watch(self.attempt, [self._workers[rank]])
        self.folder.write_workers(self.attempt, self._workers)

    @property
    def num_spares(self) -> int:
        """How many processes wait to be a rank: of a recipe alone, whose imports we know."""
        return self.recovery.spares if self.plan.kind == "recipe" else 0

    def look_at_host(self, *, is_thorough: bool, meanwhile: Callable[[], None] = lambda: None) -> tuple[Finding, ...]:
        """Return what of this host is not as the next attempt needs it, and write that down."""
        check_host: HostChecks = load(SEAMS["host_checks"])
        needs = AttemptNeeds(
            sections=self._sections,
            is_thorough=is_thorough,
            has_committed=self._has_committed or (self._has_ever_committed and self.plan.resume != "never"),
            places=self.next_world.places,
            fewest=min(self.plan.fewest, self.next_world.size),
        )
        found = check_host(self.folder.path, needs, self.recovery, meanwhile)
        for finding in found:
            if finding.note and finding.check not in self._noted_checks:
                self._noted_checks.add(finding.check)
                self.say(f"this host: {finding.check}: {finding.note}")
        if found:
            self._emit("host_check", att=0, after=self.attempt, **look_fields(found))
        return unwell(found)

    @property
    def has_buffer(self) -> bool:
        """Whether commits lie on a disk of this host before they are where another host finds them."""
        uri = self._sections.get("checkpoint", {}).get("uri", "")
        return bool(uri) and not is_local(uri)

    def give_up_host(self, findings: tuple[Finding, ...], waited_s: float) -> RestartDecision:
        """Write down that no attempt follows on this host."""
        decision = give_up(findings, waited_s)
        self._emit_decision(decision, self.next_world)
        return decision

    def is_training(self) -> bool:
        """Return whether every rank of the attempt has completed a step, as far as the log says."""
        pids = [identity.pid for identity in self._workers.values()]
        return bool(pids) and all(has_stepped(self.folder.events, self.attempt, pid) for pid in pids)

    def find_hang(self) -> Hang | None:
        """Return the rank that stopped making progress, once no rank can be expected to; stacks are on the disk."""
        hang = None if self._hang_watch is None else self._hang_watch.poll(self._workers, self._rings.flush)
        if hang is not None:
            self.say(f"{hang}; the stacks of {len(hang.stacks)} ranks: {self.folder.logs(self.attempt)}/rank*.stacks")
        return hang

    def end_children(self) -> None:
        """End what the attempt's workers left running."""
        self._guardian.end_all()

    def complete_attempt(self) -> None:
        self._emit_end("completed", exit_code=0)

    def fail_attempt(self, exits: Sequence[RankExit], order: Sequence[int], unkillable: Sequence[int] = ()) -> Outcome:
        """Write down how the attempt failed and what follows; `decision.restart` says whether another one does.

        Args:
            unkillable: ranks whose processes the kernel does not let go.
        """
        failure = self._failure(exits, order)
        first, held = failure.gone.rank, list(unkillable) or None
        self._emit_end("failed", first_failing_rank=first, unkillable=held, **failure.fields())
        history = self._replay()
        if not history.ended:
            raise self.folder.gone()
        lives = history.since(self.first_attempt)
        decision, self._places = self._policy(lives, self.recovery), self._places_after(lives)
        self._emit_decision(decision, self.next_world)
        path = str(self.folder.path / failure.tail) if failure.tail else ""
        return Outcome(status="failed", failure=failure.gone, decision=decision, cause=failure.said, log_tail=path)

    def can_live_on(self, survivors: Sequence[int]) -> bool:
        """Return whether these ranks can go on without those that ended: all take part in the newest generation."""
        if self.recovery.restart != "inprocess" or not survivors:
            return False
        return all(self._generations.has_joined(self.generation, rank) for rank in survivors)

    def lose_ranks(self, exits: Sequence[RankExit], order: Sequence[int]) -> Outcome:
        """Write down at once that ranks ended while others live on, and what follows for them."""
        failure, now_s = self._failure(exits, order), self._clock.wall_ns() / 1e9
        ranks = [other.rank for other in exits]
        self._emit("fault", att=self.attempt, rank=failure.gone.rank, ranks=ranks, **failure.fields())
        for other in exits:
            self._guardian.end_rank(self._local_rank(other), self._workers.pop(other.rank).pid)
        history = self._replay()
        has_new_commit = (self.attempt, self.generation) in history.fruitful
        facts = failure.facts(self.folder.name, self.attempt, self.generation, now_s, has_new_commit=has_new_commit)
        lives = (*history.since(self.first_attempt), facts)
        decision, smaller = self._policy(lives, self.recovery), failure.smaller
        if decision.restart:
            self._places = self._places_after(lives)
            self._emit_decision(decision, smaller or self.world, scope="inprocess")
        return Outcome(status="failed", failure=failure.gone, decision=decision, cause=failure.said, world=smaller)

    def begin_generation(self, port: int, world: World) -> Generation:
        """Tell the ranks that live on, and the new ones, who they are and where they meet: at a store on `port`."""
        self._set_generation(self.generation + 1)
        if world != self.world:
            places = self.world.places
            self._workers = {world.rank_at(places[rank]): worker for rank, worker in self._workers.items()}
            self.folder.write_workers(self.attempt, self._workers)
            self.world = world
        environ = generation_environ(self.generation, port, self._worker_environment())
        generation = Generation(number=self.generation, environ=environ, places=world.places)
        self._generations.announce(generation)
        return generation

    def have_joined(self, ranks: Sequence[int]) -> bool:
        return all(self._generations.has_joined(self.generation, rank) for rank in ranks)

    def preempt_attempt(self, exits: Sequence[RankExit], order: Sequence[int]) -> Outcome:
        """Write down that the attempt was told to stop and did; or that it was done before it could."""
        if self.plan.kind == "recipe" and len(exits) == self.world.size and not any(gone.code for gone in exits):
            self.complete_attempt()  # our own workers end with 0 only when nothing is left to do
            return Outcome(status="succeeded")
        failed = [gone for gone in exits if gone.code != 0 and gone.code not in NOTICE_CODES]
        gone = first_failure(failed, order) if failed else None
        self._rings.flush()
        saved = saved_steps(self.folder.events, self.attempt)
        told = {} if gone is None else gone.fields() | {"first_failing_rank": gone.rank}
        if saved is not None:
            told |= {"saved_step": saved.step, "unsaved_steps": saved.num_unsaved}
        self._emit_end("preempted", **told)
        return Outcome(status="preempted", failure=gone, saved=saved)

    def notice_preemption(self, signum: int) -> None:
        self._emit("preempt_notice", att=self.attempt, signal=signum, grace_s=self.recovery.grace_s)

    def is_refused(self, outcome: Outcome) -> bool:
        """Return whether this launch ended by an error that any attempt of it would meet, before it saved anything."""
        return outcome.decision is not None and outcome.decision.rule == "final_error" and not self._has_committed

    def end_job(self, status: Literal["succeeded", "failed", "cancelled"]) -> None:
        self._emit("job_ended", att=0, status=status)

    def tell_publisher(self, to: str, pid: int | None) -> None:
        """Record that a process publishes the job's last commit; or could not be started."""
        self._emit("publish_started", att=0, to=to, publisher_pid=pid, ok=pid is not None)

    def unfired_faults(self) -> list[str]:
        """Return one line for each fault of --chaos that never happened."""
        if not self.plan.chaos:
            return []
        self._rings.flush()
        return self._faults.unfired(self.attempt)

    def beat(self) -> None:
        """Write heartbeats when due: one for each live rank, or the supervisor's own between attempts.

        They are written beside this thread: it must see a rank's end, and a signal, while the disk is stuck.
        """
        now_s = time.monotonic()
        if now_s - self._last_beat_s < HEARTBEAT_INTERVAL_S:
            return
        self._last_beat_s = now_s
        alive = {rank: identity.pid for rank, identity in self._workers.items() if identity.is_alive}
        attempt, is_between = self.attempt, not self._workers
        self._rings.later(lambda: self._write_heartbeats(attempt, alive, is_between))

    def _write_heartbeats(self, attempt: int, pids: Mapping[int, int], is_between: bool) -> None:
        for rank, pid in pids.items():
            self._emit("heartbeat", att=attempt, rank=rank, worker_pid=pid)
        if is_between:
            self._emit("heartbeat", att=0, dropped=self._writer.dropped)

    def close(self) -> None:
        """End every process that a worker left behind, and the guardian; write down what the ranks still said."""
        self._guardian.close()
        if left := self._rings.stop():
            self.say(f"the records of {left} processes could not be written in time; the job's next launch writes them")
        self._writer.close()

    def say(self, text: str) -> None:
        # Whoever read our output may be gone (`ett launch … | head`); the job goes on.
        with contextlib.suppress(OSError):
            sys.stderr.write(f"ett: {shown(text)}\n")
            sys.stderr.flush()

    @property
    def _generations(self) -> GenerationFolder:
        return GenerationFolder(self.folder.attempt(self.attempt))

    def _set_generation(self, number: int) -> None:
        """Records say which generation they are of, and a file has one: the next one gets a file of its own."""
        if number != self.generation:
            self._writer.close()
            self.generation = number
            self._writer = self._open_writer()

    def _open_writer(self) -> EventWriter:
        common = {"job": self.folder.name, "gen": self.generation}
        return EventWriter(self.folder.events / "0", "sup", common, clock=self._clock, wait_s=None)

    def only_lost_a_peer(self, gone: RankExit) -> bool:
        """Return whether a rank ended by an error that says no more than that another one is gone."""
        if gone.hang is not None or gone.signal is not None:
            return False
        return self._words.only_lost_a_peer(self._local_rank(gone))

    def states_an_error(self, place: int) -> bool:
        """Return whether the rank at a place of the host has named an error, other than that a peer is gone."""
        return self._words.state_an_error(place)

    def _failure(self, exits: Sequence[RankExit], order: Sequence[int]) -> RankFailure:
        """Return what is known of the rank that failed first; the job's folder keeps what it said last."""
        gone = self._first_to_fail(exits, order)
        place, worker = self._local_rank(gone), self._workers.get(gone.rank)
        pid = gone.pid or (0 if worker is None else worker.pid)
        lines = self._words.last_of(place)
        tail = self._words.keep(lines)
        stepped, smaller = self._after_failure(place, pid)
        return RankFailure(
            gone=gone,
            lines=tuple(lines),
            tail=tail,
            cause=self._cause(gone, lines),
            is_final=self._is_final(gone),
            place=place,
            pid=pid,
            has_stepped=stepped,
            smaller=smaller,
        )

    def _first_to_fail(self, exits: Sequence[RankExit], order: Sequence[int]) -> RankExit:
        """Return the first that failed by itself: a rank that unwinds closes its connections before it ends."""
        by_themselves = [gone for gone in exits if gone.code != 0 and not self.only_lost_a_peer(gone)]
        return first_failure(by_themselves or exits, order)

    def _is_final(self, gone: RankExit) -> bool:
        # A program of the user may give such a code any meaning; it is restarted like any other.
        return self.plan.kind == "recipe" and gone.code in FINAL_CODES

    @property
    def _words(self) -> RankWords:
        return RankWords(self.folder.logs(self.attempt), self.first_world)

    @property
    def _faults(self) -> PlannedFaults:
        return PlannedFaults(self.plan.chaos, self.folder.events, self.first_attempt or self.attempt)

    def _cause(self, gone: RankExit, lines: Sequence[str]) -> str:
        """Return a short name of what is known to have ended the rank, "" where nobody knows."""
        if self.plan.chaos:
            self._rings.flush()
            if self._faults.have_ended(gone, self.attempt, self.generation):
                return "injected_fault"
        if gone.hang is not None:
            return "hang"
        if gone.signal == signal.SIGKILL:
            before, now = self._num_memory_kills, num_memory_kills()
            return "out_of_memory" if before is not None and now is not None and now > before else ""
        return named_cause(gone, lines)

    def _local_rank(self, gone: RankExit) -> int:
        return self.world.places[gone.rank] if gone.local_rank is None else gone.local_rank

    def _after_failure(self, place: int, pid: int) -> tuple[bool | None, World | None]:
        """Return whether the process at a place had made a step, and the smaller world to go on with.

        None and None where the world may not shrink.
        """
        if not self.may_shrink:
            return None, None
        lives = self._replay().since(self.first_attempt)
        told = next((facts for facts in lives if (facts.attempt, facts.pid) == (self.attempt, pid)), None)
        if told is not None:  # its ranks could not live on after all
            return told.has_stepped, None if told.shrinks_to is None else self.world.without(place)
        is_step_known = has_stepped(self.folder.events, self.attempt, pid)
        return is_step_known, None if is_step_known else self._places_after(lives).smaller_world(place, self.world)

    def _places_after(self, lives: Sequence[AttemptFacts]) -> Places:
        return places_after(lives, num_places=self.plan.nproc, fewest=self.plan.fewest)

    def _replay(self) -> JobHistory:
        self._rings.flush()
        history = read_history(self.folder.events)
        self._has_committed = any(number >= self.first_attempt for number in history.committed_attempts)
        self._has_ever_committed = self._has_ever_committed or self._has_committed
        return history

    def _emit_decision(self, decision: RestartDecision, world: World, scope: str | None = None) -> None:
        self._emit(
            "restart_decision",
            att=self.attempt,
            restart=decision.restart,
            scope=scope,
            world=world.size if decision.restart else None,
            delay_s=round(decision.delay_s, 3),
            rule=decision.rule,
            why=decision.why,
        )

    def _worker_environment(self) -> dict[str, str]:
        return {
            "ETT_JOB": self.folder.name,
            "ETT_ATTEMPT": str(self.attempt),
            "ETT_JOB_DIR": str(self.folder.path),
            "ETT_TEAM": self.plan.team,
            "ETT_OWNER": self.plan.owner,
            "ETT_GRACE_S": str(self.recovery.grace_s),
            "ETT_CHAOS": str(self._faults),
            # A chosen step is where this launch begins; what it commits itself comes after it.
            "ETT_RESUME": "auto" if self._has_committed else self.plan.resume,
            # A job that has committed must find a checkpoint: training never starts over by itself.
            "ETT_HAS_COMMITTED": "1" if self._has_ever_committed else "",
            "ETT_FROM": json.dumps(self.plan.source) if self.plan.source else "",
            "ETT_PARENT_WALL_NS": str(self._clock.wall_ns()),
            **self._rings.environ,
            **self.plan.environment(os.environ),
            **self._generations_environ(),
        }

    def _generations_environ(self) -> dict[str, str]:
        if self.recovery.restart != "inprocess":
            return {}
        return {FOLDER_VARIABLE: str(self.folder.attempt(self.attempt))}

    def _needs_own_trace(self) -> bool:
        trace_per_attempt = self.plan.telemetry.get("trace_per_attempt", "auto")
        return needs_own_trace(self._clock.wall_ns() - self._submitted_wall_ns, trace_per_attempt)

    def _emit_end(self, reason: str, **fields: Any) -> None:
        self._emit("attempt_ended", att=self.attempt, reason=reason, **fields)
        self._workers = {}
        if self._hang_watch is not None:
            self._hang_watch.forget_empty_stacks()
            self._hang_watch = None

    def _emit(self, ev: str, *, att: int, **fields: Any) -> None:
        self._writer.emit(ev, att=att, **{key: value for key, value in fields.items() if value is not None})


def end_complete_job(folder: JobFolder) -> None:
    """Write the job's end for a supervisor that died between its last attempt's end and this."""
    writer = EventWriter(folder.events / "0", "sup", {"job": folder.name}, wait_s=None)
    writer.emit("job_ended", att=0, status="succeeded", inferred=True)
    writer.close()
