"""The end of a program that ended by itself: its last step was the last, and what it saved after it was final."""

from __future__ import annotations

import sys

from ett.hooks.save_hook import SaveHook
from ett.hooks.session import HookSession
from ett.hooks.step_hook import StepHook


class ProgramEnd:
    """Runs when the interpreter ends. Nobody knows the exit code there: where the supervisor sees one that is not 0,
    the inferred `train_end` counts for nothing (docs/zero_code.md).
    """

    def __init__(self, session: HookSession, steps: StepHook, saves: SaveHook) -> None:
        self._session, self._steps, self._saves = session, steps, saves

    def note(self) -> None:
        session = self._session
        session.work()
        self._steps.intervals.flush()
        session.close_idle(session.now_ns())
        self._saves.settle(is_last=True)
        end_ns = self._steps.intervals.last_end_ns
        if end_ns is None or not session.is_on("train_end") or getattr(sys, "last_value", None) is not None:
            return
        session.run.infer_train_end(end_ns)
        for begin_ns, until_ns in self._steps.saves_since_step:
            # Later in the log and of the same begin as the `ckpt_save`, so it wins (rule R5).
            session.end_span(session.begin_span("final_save", begin_ns, inferred=True), until_ns)
