"""What all hooks of one process share: its recorder, which hooks are on, and the spans that they write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from ett.hooks.module_watch import ModuleWatch
from ett.tracker import Run

# What the program says itself by an explicit call (`Run.said`), and the hook that then says nothing.
STANDS_DOWN_FOR: dict[str, tuple[str, ...]] = {
    "imports": ("span imports",),
    "device_init": ("span device_init",),
    "process_group": ("span process_group",),
    "model_build": ("span model_build",),
    "compile": ("span compile",),
    "recompiles": (),  # a program does not say why torch compiles again
    "steps": ("step",),
    "samples": ("step",),
    "data": ("step", "span data_stall"),
    "eval": ("span eval",),
    "saves": ("committed", "span ckpt_save"),
    "loads": ("restored", "span restore"),
    "transformers": (),  # what it says, it says through the hooks above
    "train_end": ("train_end",),
}


class HookSession:
    """One process's hooks.

    Attributes:
        run: the recorder; hooks write by `emit`, so that `run.said` holds only what the program said.
        watch: tells of imports.
        covered_ns: the time in spans of hooks so far, on any thread; grows.
        idle_closers: called before a span of another kind begins and at exit: what is open by inference ends there.
    """

    def __init__(
        self, run: Run, hooks: Iterable[str], watch: ModuleWatch, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.run, self.watch, self.now_ns = run, watch, now_ns
        self.covered_ns = 0
        self.idle_closers: list[Callable[[int], None]] = []
        self.on_work: Callable[[], None] | None = None  # called once, by the first hook that sees more than imports
        self._hooks = frozenset(hooks)
        self._is_live = run.is_recording
        self._said = run.said
        self._num_spans = 0
        os.register_at_fork(after_in_child=self._stop)

    def is_on(self, hook: str) -> bool:
        """Return whether the hook may write: it was not turned off, and the program does not say the same itself."""
        if not self._is_live or hook not in self._hooks:
            return False
        said = self._said
        return not said or said.isdisjoint(STANDS_DOWN_FOR[hook])

    def work(self) -> None:
        """Note that the program does more than import: see `on_work`."""
        if self.on_work is not None and self._is_live:
            ended, self.on_work = self.on_work, None
            ended()
            self.run.start_beating()

    def close_idle(self, now_ns: int) -> None:
        """End what is only open because nothing else was seen to begin."""
        for close in self.idle_closers:
            close(now_ns)

    def begin_span(self, name: str, at_ns: int | None = None, **fields: Any) -> OpenSpan:
        """Write a span's begin, now or at `at_ns`, and return it for `end_span`."""
        self._num_spans += 1
        begin_ns = self.now_ns() if at_ns is None else at_ns
        span = OpenSpan(f"h{self._num_spans}", name, begin_ns)
        self.run.emit_at(begin_ns, "span_begin", id=span.id, name=name, blocking=True, **fields)
        return span

    def end_span(self, span: OpenSpan, at_ns: int | None = None, **fields: Any) -> None:
        end_ns = max(span.begin_ns, self.now_ns() if at_ns is None else at_ns)
        self.covered_ns += end_ns - span.begin_ns
        self.run.emit_at(end_ns, "span_end", id=span.id, name=span.name, blocking=True, **fields)

    def _stop(self) -> None:
        """In a forked child: the log's file belongs to the parent."""
        self._is_live = False


class OpenSpan:
    """A span of a hook; `id` is told from the recorder's own, which are numbers."""

    __slots__ = ("begin_ns", "id", "name")

    def __init__(self, span_id: str, name: str, begin_ns: int) -> None:
        self.id, self.name, self.begin_ns = span_id, name, begin_ns
