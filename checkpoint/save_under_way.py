"""The save that is written beside training, one at most: how long it is waited for, and when it is given up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ett.checkpoint.at_exit import end_with_program
from ett.checkpoint.background_save import BackgroundSave
from ett.checkpoint.commit import Commit
from ett.checkpoint.failed_saves import FailedSaves
from ett.checkpoint.policy.table_saves import TableSaves
from ett.checkpoint.save import SavePlace, Triggered
from ett.checkpoint.stall_budget import over_budget
from ett.errors import EttError

log = logging.getLogger(__name__)
STOP_S = 5.0  # that whoever stops waits for a save that is under way
END_S = 600.0  # that whoever restores, saves or closes does
EXIT_S = 30.0  # that a program that ends without `close` does


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """A save that was waited for until it had committed."""

    commit: Commit
    held_s: float  # for which it held training
    stall_s: float  # with what somebody who asked for its commit waited


class SaveUnderWay:
    """For the thread that trains. What a save came to counts when it is collected, so that ranks count alike."""

    def __init__(self, place: SavePlace, tables: TableSaves, failed: FailedSaves) -> None:
        """Args: place: of the thread that trains."""
        self._place, self._tables, self._failed = place, tables, failed
        self.running: BackgroundSave | None = None
        # Before its step boundary, for room in the buffer and for rows to be those of a whole step; and at later ones.
        self._waited_s = 0.0
        end_with_program(self)

    def begin(self, taken: Triggered, work: Callable[[BackgroundSave], Commit], *, waited_s: float) -> None:
        """Have a save done beside training, and return when training may go on from its step boundary.

        Args: work: writes and commits, with the save as its boundary. waited_s: by training before the boundary.
        Raises: Unreachable: tables that nobody keeps are not written in time; whatever is read of them then is of no
            boundary.
        """
        with self._tables.given_back_on_error():  # Ctrl-C
            may_block, step = self._failed.budget.may_block, taken.step
            say = partial(self._failed.say, step, may_block=may_block)
            self.running = BackgroundSave(step, taken.cursor, work, may_block=may_block, say=say)
        self._waited_s = waited_s
        self._pass_boundary(self.running)

    def has_ended_for(self, step: int, cursor: int) -> bool:
        """Wait for it as long as the budget allows, and return whether it has ended; collective if there is one.

        Else the save of `step` is skipped. One under way that might hold training, and in that time does nothing at
        all, is given up.
        """
        running, may_block, limit_s = self.running, self._failed.budget.may_block, self._failed.budget.limit_s
        if running is None:
            return True
        began_ns, before = self._place.clock.mono_ns(), self._done_by(running)
        with self._place.run.span("ckpt_save"):
            ended = running.wait(limit_s)
            told = self._place.ranks.gather([ended, ended or self._done_by(running) != before])
        self._waited_s += (self._place.clock.mono_ns() - began_ns) / 1e9
        if all(has_ended for has_ended, _ in told):
            return True
        err = over_budget(f"the save at step {running.step} is still under way after training waited {limit_s:.3g} s")
        is_stuck = may_block and not any(goes_on for _, goes_on in told)
        if is_stuck:
            self.give_up(running, err)
        self._failed.count(step, cursor, err, may_block=is_stuck)
        return False

    def collect(self) -> Collected | None:
        """Wait for it, and return what it came to; None: there is none, or it has come to nothing.

        Raises: Unreachable: it does not end; what it raised, if that ends training.
        """
        running = self.running
        if running is None:
            return None
        began_ns = self._place.clock.mono_ns()
        with self._place.run.span("ckpt_save"):
            if not running.wait(END_S):  # whoever is interrupted in it, by Ctrl-C, has it under way still
                self.give_up(running, over_budget(f"the save at step {running.step} has not ended in {END_S:g} s"))
                running.check()
            self.running = None
            if running.came_to_nothing:
                return None
            commit = self._failed.attempt(
                running.step, running.cursor, running.result, may_block=running.may_block, is_said=True
            )
        if commit is None:
            return None
        held_s = commit.stats["stall_s"] + self._waited_s
        stall_s = held_s + (self._place.clock.mono_ns() - began_ns) / 1e9
        return Collected(commit=commit, held_s=held_s, stall_s=stall_s)

    def is_of(self, step: int) -> bool:
        return self.running is not None and self.running.step == step

    def has_settled(self, timeout_s: float) -> bool:
        """Return whether none is under way any more, after waiting for one for a time."""
        return self.running is None or self.running.wait(timeout_s)

    def give_up(self, running: BackgroundSave, err: EttError) -> None:
        """Have a save come to nothing, unless it is being committed: training waits for none of it any more."""
        running.given_up = running.given_up or err
        self._tables.give_up(err)

    def end_with_program(self) -> None:
        """Wait for it when nobody has called `close`, half a minute, or give it up."""
        running = self.running
        if running is None or running.wait(0):
            return
        log.info("the program ends: it waits for the save at step %d", running.step)
        if running.wait(EXIT_S):
            return
        self.give_up(running, over_budget(f"the program ended {EXIT_S:g} s ago, and has waited for it"))
        running.wait(STOP_S)
        log.warning("the save at step %d was not committed before the program ended", running.step)

    def _pass_boundary(self, running: BackgroundSave) -> None:
        """Wait until the tables that nobody keeps are written, if there are any."""
        if not self._tables.has_untracked:
            return
        has_passed = False
        try:
            has_passed = all(self._place.ranks.gather(running.wait_for_boundary(END_S)))
        finally:
            if not has_passed:  # also by Ctrl-C: whatever it reads from now on is of no boundary
                what = f"the save at step {running.step} has not written the tables that training waits for"
                self.give_up(running, over_budget(f"{what} in {END_S:g} s"))
        if not has_passed:
            running.check()

    def _done_by(self, running: BackgroundSave) -> tuple[int, int]:
        """Return what grows while a save goes on."""
        return len(running.written), self._place.buffers.num_lent
