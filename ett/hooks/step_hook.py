"""torch.optim.Optimizer.step -> step records, through torch's own global hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ett.hooks.around import quiet
from ett.hooks.positions import Positions
from ett.hooks.session import HookSession
from ett.hooks.step_intervals import Interval, StepIntervals


class StepHook:
    """Writes a record for each step; `intervals` is also told of batches (`ett/hooks/batch_hook.py`).

    Attributes:
        num_steps: written by this hook.
        on_record: called after each.
        is_led: a trainer says which batches make a step and when it is complete (`ett/hooks/trainer_hook.py`).
        saves_since_step: (begin, end) of the saves since then, on the monotonic clock.
    """

    def __init__(self, session: HookSession, positions: Positions) -> None:
        self._session, self._positions = session, positions
        self.intervals = StepIntervals(self._record, self._begin, lambda: session.covered_ns)
        self.num_steps = 0
        self.is_led = False
        self.saves_since_step: list[tuple[int, int]] = []
        self.on_record: Callable[[], None] = lambda: None
        self._is_positioned = False
        self._first_begin_ns: int | None = None
        self._pre_hook: Any = None

    def install(self, torch: Any) -> None:
        from torch.optim import optimizer  # the module; torch.optim has no such attribute

        self._pre_hook = optimizer.register_optimizer_step_pre_hook(quiet(self._before))
        optimizer.register_optimizer_step_post_hook(quiet(self._after))

    def _before(self, optimizer: object, args: object, kwargs: object) -> None:
        """Only the first step of all needs its begin: of a loop without batches nothing else is seen before it."""
        session = self._session
        session.work()
        session.close_idle(session.now_ns())
        self._first_begin_ns = session.now_ns()
        self._pre_hook.remove()

    def _after(self, optimizer: object, args: object, kwargs: object) -> None:
        session = self._session
        if not self.is_led and session.is_on("steps"):
            now_ns = session.now_ns()
            self.intervals.stepped(self._first_begin_ns or now_ns, now_ns, id(optimizer))

    def _begin(self, begin_ns: int) -> None:
        if self._session.is_on("steps"):
            self._position()
            run = self._session.run
            run.emit("step_begin", step=run.position[0] + 1, b_mono=begin_ns)
            if not self.num_steps:
                run.at("step", run.position[0] + 1)

    def _record(self, interval: Interval) -> None:
        session = self._session
        begin_ns, end_ns, samples = interval
        if not self._is_positioned:
            self._position()
        run = session.run
        if samples is None or not session.is_on("samples"):
            run.record_step(begin_ns, end_ns, 1, samples_inferred=True)
        else:
            run.record_step(begin_ns, end_ns, samples)
        self.num_steps += 1
        self.on_record()
        if self.saves_since_step:
            self.saves_since_step.clear()
        if run.has_faults:
            run.at("step", run.position[0] + 1)

    def _position(self) -> None:
        """Before the first step: take over the position of rank 0's load, or say that nobody knows where this is."""
        if not self._is_positioned:
            self._is_positioned = True
            self._positions.settle()
