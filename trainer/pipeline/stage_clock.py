"""Runs stages when what they wait for has ended, and keeps what happened when, for a trace that a browser shows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ett.trainer.pipeline.stages import Edge, Stage, stages


class PipelineClosedError(Exception):
    """What a stage waits for will not come: training has ended. Ends the other thread; no user meets it."""


@dataclass(frozen=True, slots=True)
class StageRun:
    stage: str
    batch: int
    asked_ns: int  # when its thread came to it; from then to the begin it waited
    begin_ns: int
    end_ns: int


class StageClock:
    """What has ended of which batch; batches count from 1.

    Args:
        depth: as of `stages`.
        trace_batches: of how many first batches the runs are kept.
    """

    def __init__(self, depth: int, trace_batches: int = 0) -> None:
        self.depth, self._trace_batches = depth, trace_batches
        self.graph: dict[str, Stage] = {stage.name: stage for stage in stages(depth)}
        self.runs: list[StageRun] = []
        self._ended = dict.fromkeys(self.graph, 0)  # the last batch of which each stage has ended
        self._changed = threading.Condition()
        self._is_finished = self._is_aborted = False
        self._failure: BaseException | None = None  # of a stage on a thread of this clock's
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="ett-update")  # its thread starts with the first work

    @contextmanager
    def run(self, stage: str, batch: int) -> Iterator[None]:
        """Wait for what the graph says, then run the body as this stage of the batch.

        Raises: PipelineClosedError: instead of waiting for what will not come. What a stage of `start` raised.
        """
        asked_ns = time.monotonic_ns()
        with self._changed:
            self._changed.wait_for(lambda: self._is_finished or self._failure or self._may_run(stage, batch))
            if self._failure is not None:
                raise self._failure
            if self._is_aborted or not self._may_run(stage, batch):
                raise PipelineClosedError
        with self._noted(stage, batch, asked_ns):
            yield

    def start(self, stage: str, batch: int, work: Callable[[], None]) -> None:
        """Run work, whose stage may run now, on the stage's own thread beside the calling one.

        It runs whatever comes meanwhile; its error rises at the next stage that a thread comes to, or in `finish`.
        """
        assert self._may_run(stage, batch), (stage, batch)
        asked_ns = time.monotonic_ns()
        if self.graph[stage].thread == "train":
            with self._noted(stage, batch, asked_ns):
                work()
            return

        def run() -> None:
            with self._noted(stage, batch, asked_ns):
                work()

        self._beside.submit(run).add_done_callback(self._note_failure)

    def _note_failure(self, done: Future[None]) -> None:
        with self._changed:
            self._failure = self._failure or done.exception()
            self._changed.notify_all()

    def finish(self, *, abort: bool) -> None:
        """Let nobody wait any longer, and end what was started.

        Args: abort: an error is on its way: nobody begins a stage that could run.
        Raises: unless aborted, what a stage of `start` raised.
        """
        with self._changed:
            self._is_finished, self._is_aborted = True, abort
            self._changed.notify_all()
        self._beside.shutdown()
        if self._failure is not None and not abort:
            raise self._failure

    @contextmanager
    def _noted(self, stage: str, batch: int, asked_ns: int) -> Iterator[None]:
        begin_ns = time.monotonic_ns()
        yield
        with self._changed:
            self._ended[stage] = batch
            if batch <= self._trace_batches:
                self.runs.append(StageRun(stage, batch, asked_ns, begin_ns, time.monotonic_ns()))
            self._changed.notify_all()

    def _may_run(self, stage: str, batch: int) -> bool:
        return all(self._ended[edge.stage] >= batch - edge.batches_before for edge in self.graph[stage].after)


def write_trace(clock: StageClock, path: Path) -> None:
    """Write the runs for Perfetto or chrome://tracing: a row a thread, an arrow to each stage from what it awaited."""
    threads = {thread: i for i, thread in enumerate(sorted({stage.thread for stage in clock.graph.values()}))}
    events = [_event("M", "thread_name", tid, 0, args={"name": thread}) for thread, tid in threads.items()]
    runs = {(run.stage, run.batch): run for run in clock.runs}
    for run in clock.runs:
        stage = clock.graph[run.stage]
        tid, begin_us = threads[stage.thread], run.begin_ns / 1e3
        args = {"batch": run.batch, "waited_us": (run.begin_ns - run.asked_ns) / 1e3}
        events.append(_event("X", run.stage, tid, begin_us, dur=(run.end_ns - run.begin_ns) / 1e3, args=args))
        for edge in stage.after:
            before = runs.get((edge.stage, run.batch - edge.batches_before))
            if before is not None:
                name = f"{_named(edge, run.batch)} before {run.stage} {run.batch}"
                from_tid, from_us = threads[clock.graph[edge.stage].thread], before.end_ns / 1e3
                events.append(_event("s", name, from_tid, from_us, id=name, cat="after"))
                events.append(_event("f", name, tid, begin_us, id=name, cat="after", bp="e"))
    path.write_text(json.dumps({"traceEvents": events}))


def _event(kind: str, name: str, tid: int, at_us: float, **more: object) -> dict[str, object]:
    return {"ph": kind, "pid": 0, "tid": tid, "name": name, "ts": at_us, **more}


def _named(edge: Edge, batch: int) -> str:
    return f"{edge.stage} {batch - edge.batches_before}"
