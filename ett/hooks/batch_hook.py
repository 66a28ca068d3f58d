"""Batches of torch.utils.data.DataLoader -> samples of steps, spans `data_warmup`, `data_stall` and `eval`.

An iteration that begins while gradients are off (`torch.no_grad`, `inference_mode`) is an evaluation, and so is one
over other data than was trained on while a module of the program is in `eval()`: inferred, both. It lasts from its
first fetch to its end, or until training goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ett.hooks.around import patch
from ett.hooks.batch_size import batch_size
from ett.hooks.save_hook import SaveHook
from ett.hooks.session import HookSession, OpenSpan
from ett.hooks.step_hook import StepHook

# A shorter wait, or one of a smaller share of the last step, is the step's own: its records would cost more.
STALL_NS, STALL_SHARE = 10_000_000, 0.1


class _Stream:
    """One pass over a loader."""

    __slots__ = ("ahead", "data_id", "has_trained", "is_eval", "num_batches", "num_to_skip", "reads_ahead")

    def __init__(self, data_id: int, is_eval: bool) -> None:
        self.data_id, self.is_eval = data_id, is_eval
        self.has_trained = False
        self.num_batches = 0
        self.reads_ahead = False  # the program gets a batch when the next one was fetched (`accelerate_hook.py`)
        self.num_to_skip = 0  # batches that are fetched and not given to the program
        self.ahead: tuple[int | None] | None = None  # size of the batch that was fetched and not yet given


class BatchHook:
    """Follows every DataLoader iterator of the process.

    Attributes:
        is_told_eval: an evaluation of which the program's own trainer tells: no batch of it is looked at.
    """

    def __init__(self, session: HookSession, steps: StepHook, saves: SaveHook) -> None:
        self._session, self._steps, self._saves = session, steps, saves
        self._streams: weakref.WeakKeyDictionary[Any, _Stream] = weakref.WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], _Stream] = (lambda: None, _Stream(0, False))  # of the last fetch
        self._trained_data: set[int] = set()
        self._evaluated: weakref.ref[Any] | None = None  # the module whose eval() was called last
        self._eval_span: OpenSpan | None = None
        self._weak_eval: tuple[int, int] | None = None  # (begin, last seen) of a pass that may be an evaluation
        self._training: _Stream | None = None  # the pass that the batches of the next step come from
        self._not_trained: _Stream | None = None  # the last one that was taken for an evaluation
        self._torch: Any = None
        self._is_fetching = False
        self.is_told_eval = False
        self._read_ahead: int | None = None  # the next pass reads ahead, after so many batches that are skipped
        session.idle_closers.append(self._end_eval)

    def install(self, torch: Any) -> None:
        self._torch = torch
        patch([torch.utils.data.dataloader._BaseDataLoaderIter], "__next__", self._before, self._after)
        patch([torch.nn.Module], "eval", self._note_eval, lambda *_: None)

    def announce_read_ahead(self, num_skipped: int) -> None:
        """The pass that begins next is read one batch ahead, and its first batches are not given to the program."""
        self._read_ahead = num_skipped

    def trained(self) -> None:
        """A step was taken on what was fetched."""
        stream, self._training = self._training, None
        if stream is None:  # then what was read last was no evaluation
            stream, self._not_trained = self._not_trained, None
            self._weak_eval = None
            self._end_eval(self._session.now_ns())
        if stream is not None and not stream.has_trained:
            stream.has_trained, stream.is_eval = True, False
            self._trained_data.add(stream.data_id)

    def _note_eval(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._evaluated = weakref.ref(args[0])

    def _before(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, _Stream, int, OpenSpan | None] | None:
        session, iterator = self._session, args[0]
        if self._is_fetching or self.is_told_eval:  # a loader that reads another one: the outer one is the program's
            return None
        now_ns = session.now_ns()
        if session.on_work is not None:
            session.work()
        if self._saves.waiting:
            self._saves.settle()
        last, stream = self._last
        if last() is not iterator:
            known = self._streams.get(iterator)
            if known is None:
                known = self._streams[iterator] = self._new_stream(iterator, now_ns)
            stream = known
            self._last = (weakref.ref(iterator), stream)
        span = None
        if not stream.is_eval:
            if self._eval_span is not None or self._weak_eval is not None:
                self._end_eval(now_ns)
            intervals = self._steps.intervals
            intervals.fetching(now_ns)
            if intervals.last_end_ns is None and not intervals.has_begun and session.is_on("data"):
                span = session.begin_span("data_warmup", now_ns)
        self._is_fetching = True
        if session.run.has_faults:
            session.run.at("data", session.run.position[0] + 1)
        return iterator, stream, now_ns, span

    def _after(self, token: tuple[Any, _Stream, int, OpenSpan | None], batch: object, is_there: bool) -> None:
        iterator, stream, begin_ns, span = token
        self._is_fetching = False
        session = self._session
        now_ns = session.now_ns()
        if span is not None:
            session.end_span(span, now_ns)
        if not is_there:
            self._exhausted(iterator, stream, now_ns)
            return
        stream.num_batches += 1
        if stream.is_eval:
            self._not_trained = stream
            if self._weak_eval is not None:
                self._weak_eval = (self._weak_eval[0], now_ns)
            return
        if span is None and now_ns - begin_ns >= STALL_NS:
            self._note_stall(begin_ns, now_ns)
        if stream.reads_ahead:
            self._give(stream, now_ns)
            stream.ahead = (batch_size(batch),)
        else:
            self._training = stream
            self._steps.intervals.fetched(now_ns, batch_size(batch))

    def _give(self, stream: _Stream, now_ns: int) -> None:
        """The program gets the batch that was read ahead."""
        ahead, stream.ahead = stream.ahead, None
        if ahead is None:
            return
        if stream.num_to_skip:
            stream.num_to_skip -= 1
            return
        self._training = stream
        self._steps.intervals.fetched(now_ns, *ahead)

    def _new_stream(self, iterator: Any, now_ns: int) -> _Stream:
        stream = _Stream(id(getattr(iterator, "_dataset", None)), is_eval=False)
        session = self._session
        if self._read_ahead is not None:
            stream.reads_ahead, stream.num_to_skip, self._read_ahead = True, self._read_ahead, None
        if not session.is_on("eval"):
            return stream
        if not self._torch.is_grad_enabled():
            stream.is_eval = True
            if self._eval_span is None:
                self._steps.intervals.flush()
                self._eval_span = session.begin_span("eval", now_ns, inferred=True)
        elif self._is_evaluating() and self._trained_data and stream.data_id not in self._trained_data:
            stream.is_eval = True
            self._steps.intervals.flush()
            self._weak_eval = self._weak_eval or (now_ns, now_ns)
        return stream

    def _is_evaluating(self) -> bool:
        module = None if self._evaluated is None else self._evaluated()
        return module is not None and not module.training

    def _exhausted(self, iterator: Any, stream: _Stream, now_ns: int) -> None:
        del self._streams[iterator]  # a loader with persistent workers uses the iterator again
        self._last = (lambda: None, stream)
        if stream.is_eval:
            if self._weak_eval is not None:
                self._weak_eval = (self._weak_eval[0], now_ns)
            self._not_trained = None
            self._end_eval(now_ns)
        elif stream.reads_ahead:
            self._give(stream, now_ns)
        elif not stream.has_trained and stream.num_batches > 1 and self._training is stream:
            self._steps.intervals.forget_batches()  # a pass for statistics, say
            self._training = None

    def _end_eval(self, now_ns: int) -> None:
        """An evaluation is over at the latest when something else begins."""
        session = self._session
        if self._eval_span is not None:
            span, self._eval_span = self._eval_span, None
            session.end_span(span, now_ns)
        if self._weak_eval is not None:
            (begin_ns, end_ns), self._weak_eval = self._weak_eval, None
            session.end_span(session.begin_span("eval", begin_ns, inferred=True), end_ns)

    def _note_stall(self, begin_ns: int, end_ns: int) -> None:
        session, intervals = self._session, self._steps.intervals
        wait_ns = end_ns - begin_ns
        if wait_ns >= STALL_SHARE * intervals.last_duration_ns and session.is_on("data"):
            session.end_span(session.begin_span("data_stall", begin_ns), end_ns)
