"""`run = ett.init()`: what a training process says about its own time, written to the job's event log.

Inside `ett launch` every call appends a record; elsewhere the same calls do nothing. No call raises into training or
waits for a stuck disk (`ett/event_log.py`). Needs no torch. A process that was forked from a rank (a data loader's
worker) records nothing unless it calls `ett.init()` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, SupportsInt

from ett.clock import Clock, LateClock
from ett.event_log import EventWriter
from ett.event_schema import SPAN_COMPONENTS
from ett.ring_writer import RingWriter
from ett.seams import SEAMS, load
from ett.stack_dumps import answer_stack_signal, stacks_name

HEARTBEAT_INTERVAL_S = 10.0
STEP_BEGIN_AFTER_NS = 1_000_000_000  # a step that begins this long after the last one says so at its begin


class FaultInjection(Protocol):
    def begin(self, emit: Callable[..., None]) -> None:
        """Records of faults go to `emit` from now on."""

    def fire(self, point: str, step: int) -> None:
        """Fail this process here, where the plan says so."""

    def wrap(self, store: Any, tier: str) -> Any:
        """Return a checkpoint store with the plan's faults in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """Who this process is in its job, as the supervisor said in the environment."""

    job: str = ""  # empty outside `ett launch`
    attempt: int = 0
    job_dir: Path | None = None
    rank: int = 0
    world_size: int = 1
    gen: int = 0  # the generation of the attempt in which it started
    parent_wall_ns: int = 0  # the supervisor's wall clock when it started this process; 0 if unknown
    rings: Path | None = None  # where a supervisor drains rings (ett/ring_writer.py); None: write to the log itself

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> RunIdentity:
        rank, world_size = _count(environ.get("RANK", "0")), _count(environ.get("WORLD_SIZE", "1"))
        job, job_dir = environ.get("ETT_JOB", ""), environ.get("ETT_JOB_DIR", "")
        if not job or not job_dir:
            return cls(rank=rank, world_size=world_size)
        return cls(
            job=job,
            attempt=_count(environ.get("ETT_ATTEMPT", "1")),
            job_dir=Path(job_dir),
            rank=rank,
            world_size=world_size,
            gen=_count(environ.get("ETT_GEN", "0")),
            parent_wall_ns=_count(environ.get("ETT_PARENT_WALL_NS", "0")),
            rings=Path(environ["ETT_RING"]) if environ.get("ETT_RING") else None,
        )


class Run:
    """One process's recorder; made by `ett.init()`. Spans may be opened in any thread, steps in one.

    Attributes:
        rank, world_size: of this process, as torchrun counts them; 0 and 1 where nobody said.
        job, attempt, job_dir: "" , 0 and None outside `ett launch`.
        said: what the program says itself, such as "step" or "span eval"; a hook for the same stands down.
        before_work: called once, before its first step or span: what the hooks hold open until the program works.
        generation: of the attempt, from 0; a later one began when a rank was lost and others lived on.
    """

    def __init__(
        self,
        identity: RunIdentity,
        *,
        clock: Clock | None = None,
        faults: FaultInjection | None = None,
    ) -> None:
        self.rank, self.world_size = identity.rank, identity.world_size
        self.job, self.attempt, self.job_dir = identity.job, identity.attempt, identity.job_dir
        self.generation = identity.gen
        self._identity, self._clock = identity, clock or LateClock()
        self._faults = faults
        self._writer = _open_writer(identity, self._clock)
        self._spans = _SpanStack()
        self._span_ids = itertools.count(1)  # atomic: spans begin in any thread
        self.said: set[str] = set()
        self.before_work: Callable[[], None] | None = None
        self._completed_step, self._cursor = 0, 0
        self._samples = 0  # of this rank, in steps whose global count it does not know
        self._last_step_end_ns: int | None = None
        self._is_train_ended = False
        self._stop_requested = self._is_stop_watched = self._is_beating = False
        self._earlier_handler: Any = None
        self.emit("proc_start", parent_wall_ns=identity.parent_wall_ns, world=self.world_size)
        self._begin_faults()

    @property
    def is_recording(self) -> bool:
        return self._writer is not None

    @property
    def dropped(self) -> int:
        """Records that this process could not write."""
        return 0 if self._writer is None else self._writer.dropped

    @property
    def has_stepped(self) -> bool:
        """True once this process has completed a step; in a later generation: once it has again."""
        return self._last_step_end_ns is not None

    @property
    def stop_requested(self) -> bool:
        """True once this process got SIGTERM: save and end.

        A process that never asks dies of SIGTERM as usual; from the first question on, SIGTERM only sets this, however
        often it comes: a scheduler may tell every process of a job, and the supervisor then tells its ranks. Who does
        not end within the grace time is killed by the supervisor.
        """
        # Until somebody asks, SIGTERM keeps the meaning that it had: a handler of ours could not run while a process
        # waits in native code for its peers, and there is nothing to save yet.
        if not self._is_stop_watched and self.is_recording and threading.current_thread() is threading.main_thread():
            self._is_stop_watched = True
            self._earlier_handler = signal.signal(signal.SIGTERM, self._request_stop)
        return self._stop_requested

    def span(self, name: str, blocking: bool = True) -> AbstractContextManager[None]:
        """Record what this rank does inside the `with`; `blocking=False` for work beside training."""
        return self._span(_Span(self, name, blocking))

    def startup_node(
        self, node: str, span: str, after: Sequence[str], *, is_on_main: bool
    ) -> AbstractContextManager[None]:
        """As `span`, of a node of a start-up graph (`ett.recovery.startup`) that waited for the nodes of `after`."""
        return self._span(_Span(self, span, node={"node": node, "after": list(after), "main": is_on_main}))

    def _span(self, span: _Span) -> _Span:
        if span.name in SPAN_COMPONENTS:  # a program that makes up names without end costs no memory
            self.said.add(f"span {span.name}")
        self._work()
        return span

    def step(
        self, samples: int = 0, *, global_samples: int | None = None, step: int | None = None
    ) -> AbstractContextManager[None]:
        """Record one optimizer step; it counts when the `with` ends without an exception.

        Args:
            samples: those of this rank; ranks may differ, the log's reader sums them.
            global_samples: of all ranks, where it is known without asking them.
            step: the number that this step completes; else the last one + 1.
        """
        self.said.add("step")
        if self.before_work is not None:
            self._work()
        return _Step(self, samples, global_samples, step)

    def record_step(
        self,
        begin_ns: int,
        end_ns: int,
        samples: int,
        *,
        number: int | None = None,
        global_samples: int | None = None,
        **fields: Any,
    ) -> None:
        """Record a step that was timed elsewhere; times are the monotonic clock's, the rest is as in `step`."""
        number = self._completed_step + 1 if number is None else number
        self._last_step_end_ns, self._completed_step = end_ns, number
        writer, world = self._writer, self.world_size
        # This runs at every step: each way spells its record out, without a dictionary on the way.
        if global_samples is None:
            own = samples if type(samples) is int else _count(samples)
            self._samples += own
            if writer is not None:
                writer.emit("step", step=number, b_mono=begin_ns, e_mono=end_ns, world=world, samples=own, **fields)
            return
        c0 = self._cursor
        c1 = self._cursor = c0 + _count(global_samples)
        if writer is not None:
            writer.emit("step", step=number, b_mono=begin_ns, e_mono=end_ns, world=world, c0=c0, c1=c1, **fields)

    def restored(
        self,
        step: int,
        cursor: int,
        *,
        ckpt_id: str | None = None,
        scope: str = "full",
        fallback_from: str | None = None,
        verified: bool = True,
        read_bytes: int | None = None,
        kept_bytes: int | None = None,
        not_kept: Sequence[str] | None = None,
    ) -> None:
        """Say that the state of `step`, after `cursor` samples of all ranks, is loaded; every rank calls it.

        Args:
            scope: "partial" where some rows had stayed in memory, and were not read.
            read_bytes, kept_bytes: of all ranks' rows, those that were read and that had stayed.
            not_kept: tables with rows in memory that were read whole all the same, and why.
        """
        self.said.add("restored")
        self.move_to(step, cursor)
        fields = {"step": step, "cursor": cursor, "scope": scope, "verified": verified}
        sizes = _given(read_bytes=read_bytes, kept_bytes=kept_bytes, not_kept=not_kept)
        self._emit_on_rank_0("restore", fields | _given(id=ckpt_id, fallback_from=fallback_from) | sizes)

    def move_to(self, step: int, cursor: int) -> None:
        """Count on from `step` and `cursor` without a record of it."""
        self._completed_step, self._cursor, self._samples = _count(step), _count(cursor), 0

    @property
    def position(self) -> tuple[int, int]:
        """(last step, samples of all ranks before its end); takes the other ranks' samples for as many as its own."""
        return self._completed_step, self._cursor + self._samples * self.world_size

    def ckpt_begin(self, ckpt_id: str, step: int, cursor: int) -> None:
        self.said.add("committed")
        self._emit_on_rank_0("ckpt_begin", {"id": ckpt_id, "step": step, "cursor": cursor})

    def committed(
        self,
        step: int,
        cursor: int,
        uri: str,
        *,
        ckpt_id: str | None = None,
        num_bytes: int = 0,
        digest: str | None = None,
        tier: str = "local",
    ) -> None:
        """Say that a checkpoint exists for good; tier "local" survives a process, "remote" the loss of the host."""
        self.said.add("committed")
        fields = {"id": ckpt_id or f"step-{step}", "step": step, "cursor": cursor, "uri": uri}
        self._emit_on_rank_0("ckpt_commit", fields | {"bytes": num_bytes, "tier": tier} | _given(digest=digest))

    def train_end(self) -> None:
        """Say that the last step is done: what follows is shutdown."""
        self.said.add("train_end")
        if not self._is_train_ended:
            self._is_train_ended = True
            self.emit("train_end", step=self._completed_step)

    def infer_train_end(self, mono_ns: int) -> None:
        """As `train_end`, of a program that did not say it: its last step was done at `mono_ns`."""
        self._is_train_ended = True
        self.emit_at(mono_ns, "train_end", step=self._completed_step, inferred=True)

    def _work(self) -> None:
        noted, self.before_work = self.before_work, None
        if noted is not None:
            noted()

    def emit(self, ev: str, **fields: Any) -> None:
        """Append a record of any kind; its reader ignores kinds and fields that it does not know."""
        if self._writer is not None:
            self._writer.emit(ev, **fields)

    def emit_at(self, mono_ns: int, ev: str, **fields: Any) -> None:
        """As `emit`, for what happened at `mono_ns` and was noticed only now."""
        if isinstance(self._clock, LateClock):
            with self._clock.at(mono_ns):
                self.emit(ev, **fields)

    def at(self, point: str, step: int) -> None:
        """Fail here, where `--chaos` says so: a place between two actions whose order matters."""
        if self._faults is not None:
            self._faults.fire(point, step)

    def through_faults(self, store: Any, tier: str) -> Any:
        """Return a checkpoint store with the faults of `--chaos` in it; itself where there are none."""
        return store if self._faults is None else self._faults.wrap(store, tier)

    def _begin_faults(self) -> None:
        if self._faults is not None:
            self._faults.begin(self.emit)

    @property
    def has_faults(self) -> bool:
        """True where `--chaos` has something for this process, and `at` may not return."""
        return self._faults is not None

    def start_beating(self) -> None:
        """Start the thread of heartbeats, once."""
        if self.is_recording and not self._is_beating:
            self._is_beating = True
            threading.Thread(target=_beat, args=(self,), name="ett-heartbeat", daemon=True).start()

    def heartbeat(self) -> None:
        """Say that this process lives, its last step, and how many records it had to drop."""
        self.emit("heartbeat", step=self._completed_step, dropped=self.dropped)

    def begin_generation(self, number: int, environ: Mapping[str, str]) -> None:
        """Record for that generation from now on, as a process that has trained nothing yet (`ett.restartable`)."""
        if number == self.generation or self._writer is None:
            return
        if self._writer.dropped:
            self.heartbeat()
        earlier, self.generation = self._writer, number
        rank, world_size = _count(environ.get("RANK", self.rank)), _count(environ.get("WORLD_SIZE", self.world_size))
        self._identity = replace(self._identity, gen=number, rank=rank, world_size=world_size)
        if rank != self.rank and self.job_dir is not None:
            answer_stack_signal(self.job_dir / "logs" / str(self.attempt) / stacks_name(rank))
        self.rank, self.world_size = rank, world_size
        self._writer = _open_writer(self._identity, self._clock)
        earlier.close()
        self._faults = _faults(environ, self._identity)
        self._begin_faults()
        self._spans = _SpanStack()
        self._completed_step, self._cursor, self._last_step_end_ns = 0, 0, None
        self._is_train_ended = False

    def close(self) -> None:
        if self._writer is not None:
            if lost := self._writer.dropped:
                self.heartbeat()
                if self._writer.dropped > lost:  # the log cannot even say so
                    _say_lost(lost, self.rank)
            self._writer.close()
            self._writer = None

    def close_at_exit(self) -> None:
        """As `close`, when the interpreter ends: from here on it takes itself down, with torch for half a second on an
        idle host and for seconds on a busy one. That span stays open: the attempt's end closes it (R10)."""
        if self._is_train_ended:
            self.emit("span_begin", id=self._next_span_id(), name="teardown", blocking=True)
        self.close()

    def silence(self) -> None:
        """Record nothing from now on: this copy was made by a fork, and a file has one writer."""
        if isinstance(self._writer, RingWriter):
            self._writer.abandon()
        self._writer, self._faults = None, None

    def _request_stop(self, signum: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM; see `stop_requested`. A handler that the script had set before still runs."""
        self._stop_requested = True
        if callable(self._earlier_handler):
            self._earlier_handler(signum, frame)

    def unwatch_sigterm(self) -> None:
        """Give SIGTERM its earlier meaning back: a data loader's worker must end when it is told to."""
        if signal.getsignal(signal.SIGTERM) == self._request_stop:
            signal.signal(signal.SIGTERM, self._earlier_handler)

    def _emit_on_rank_0(self, ev: str, fields: dict[str, Any]) -> None:
        if self.rank == 0:
            self.emit(ev, **fields)

    def _next_span_id(self) -> int:
        return next(self._span_ids)


class _SpanStack(threading.local):
    def __init__(self) -> None:
        self.open_ids: list[int] = []


class _Span(AbstractContextManager[None]):
    __slots__ = ("_blocking", "_id", "_node", "_run", "name")

    def __init__(self, run: Run, name: str, blocking: bool = True, *, node: Mapping[str, object] | None = None) -> None:
        self._run, self.name, self._blocking, self._node, self._id = run, name, blocking, node, 0

    def __enter__(self) -> None:
        run = self._run
        open_ids = run._spans.open_ids
        parent, self._id = (open_ids[-1] if open_ids else None), run._next_span_id()
        open_ids.append(self._id)
        run.emit("span_begin", id=self._id, name=self.name, blocking=self._blocking, **_given(parent=parent))
        if self._node is not None:
            # A record of its own: a span with fields that no rule uses would be no plain record (ett/log_columns.py).
            run.emit("startup_node", id=self._id, **self._node)
        if run._faults is not None:
            run.at(self.name, run._completed_step)

    def __exit__(self, *exc: object) -> None:
        open_ids = self._run._spans.open_ids
        if self._id in open_ids:
            open_ids.remove(self._id)
        self._run.emit("span_end", id=self._id, name=self.name, blocking=self._blocking)


class _Step(AbstractContextManager[None]):
    __slots__ = ("_begin_ns", "_global_samples", "_number", "_run", "_samples")

    def __init__(self, run: Run, samples: int, global_samples: int | None, number: int | None) -> None:
        self._run, self._samples, self._global_samples, self._begin_ns = run, samples, global_samples, 0
        self._number = run._completed_step + 1 if number is None else _count(number)

    def __enter__(self) -> None:
        run = self._run
        self._begin_ns = run._clock.mono_ns()
        last_end_ns = run._last_step_end_ns
        if last_end_ns is None or self._begin_ns - last_end_ns > STEP_BEGIN_AFTER_NS:
            known = {} if self._global_samples is None else {"c0": run._cursor}
            run.emit("step_begin", step=self._number, b_mono=self._begin_ns, **known)
        run.at("step", self._number)

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is not None:
            return  # a step that raised is not done; the log shows it as open
        run = self._run
        end_ns = run._clock.mono_ns()
        run.record_step(self._begin_ns, end_ns, self._samples, number=self._number, global_samples=self._global_samples)


_runs: dict[int, Run] = {}  # by process id: at most one, so that a forked child's own init() makes its own
_init_lock = threading.Lock()


def init() -> Run:
    """Return this process's recorder, the same at every call; a recorder that does nothing outside `ett launch`.

    Inside a launch the first call writes `proc_start` and starts a heartbeat thread.
    """
    run = hooked_run()
    run.said.add("init")
    run.start_beating()
    return run


def hooked_run() -> Run:
    """As `init`, for hooks: nothing that the program can see is started."""
    with _init_lock:
        run = _runs.get(os.getpid())
        if run is None:
            run = _runs[os.getpid()] = _start(os.environ)
        return run


def _start(environ: Mapping[str, str]) -> Run:
    identity = RunIdentity.from_environ(environ)
    run = Run(identity, faults=_faults(environ, identity))
    if run.is_recording:
        atexit.register(run.close_at_exit)
        assert identity.job_dir is not None
        answer_stack_signal(identity.job_dir / "logs" / str(identity.attempt) / stacks_name(identity.rank))
        run.at("startup", 0)
    return run


def _faults(environ: Mapping[str, str], identity: RunIdentity) -> FaultInjection | None:
    chaos = environ.get("ETT_CHAOS", "") if identity.job else ""
    if not chaos:
        return None
    place = {name: getattr(identity, name) for name in ("rank", "world_size", "attempt", "gen")}
    faults: FaultInjection | None = load(SEAMS["faults"])(chaos, identity.job_dir, **place)
    return faults


def _beat(run: Run) -> None:
    never = threading.Event()
    while not never.wait(HEARTBEAT_INTERVAL_S) and run.is_recording:
        run.heartbeat()


def _forget_after_fork() -> None:
    for run in _runs.values():
        run.silence()
        run.unwatch_sigterm()
    _runs.clear()
    if _init_lock.locked():
        _init_lock.release()


os.register_at_fork(after_in_child=_forget_after_fork)


def _say_lost(count: int, rank: int) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no stderr, or one that is closed or full
        sys.stderr.write(f"ett: {count} records of rank {rank} could not be written: its time will look untracked\n")


def _open_writer(identity: RunIdentity, clock: Clock) -> EventWriter | RingWriter | None:
    if identity.job_dir is None:
        return None
    source = f"r{identity.rank}"
    common = {"job": identity.job, "att": identity.attempt, "gen": identity.gen, "rank": identity.rank}
    if identity.rings is not None:
        # No room for a ring, or a program that hides /dev/shm from its processes: the log itself is still there.
        with contextlib.suppress(OSError):
            return RingWriter(identity.rings, identity.job_dir, identity.attempt, source, common, clock=clock)
    return EventWriter(identity.job_dir / "events" / str(identity.attempt), source, common, clock=clock)


def _given(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _count(value: SupportsInt | str) -> int:
    """Return value as an int, 0 where it has none: a wrong count must not stop training."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
