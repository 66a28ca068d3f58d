"""Saves that come to nothing: each is logged, counted and recorded; training goes on, until a third in a row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ett.checkpoint.due import DueSteps
from ett.checkpoint.ranks import Ranks
from ett.checkpoint.run_record import RunRecord
from ett.checkpoint.stall_budget import OVER_BUDGET, StallBudget
from ett.errors import ConfigError, Conflict, EttError, LostPeer

log = logging.getLogger(__name__)
FAILED_SAVES_IN_A_ROW = 3
Result = TypeVar("Result")


class FailedSaves:
    """Counts on the thread that trains, alike on every rank.

    One that exceeds the stall budget, or would, is skipped rather than failed, and counted by itself: `StallBudget`.
    """

    def __init__(self, run: RunRecord, ranks: Ranks, due: DueSteps, budget: StallBudget) -> None:
        self._run, self._ranks, self._due = run, ranks, due
        self.budget = budget
        self._in_a_row = 0

    def attempt(
        self, step: int, cursor: int, work: Callable[[], Result], *, may_block: bool = True, is_said: bool = False
    ) -> Result | None:
        """Do a part of a save; one that fails is counted. Args: see `count`."""
        try:
            return work()
        except (Conflict, ConfigError, LostPeer):
            raise
        except EttError as err:
            self.count(step, cursor, err, may_block=may_block, is_said=is_said)
            return None

    def count(self, step: int, cursor: int, err: EttError, *, may_block: bool = True, is_said: bool = False) -> None:
        """Count and record what a save came to, and log it.

        Args:
            may_block: False where it comes to nothing so as not to hold training, which is no failure.
            is_said: its own thread has logged it.
        Raises: err: if it is the third failure in a row.
        """
        if not is_said:
            self.say(step, err, may_block=may_block)
        self._due.failed()
        is_skipped = _is_skipped(err, may_block)
        if is_skipped:
            self.budget.num_over = in_a_row = self.budget.num_over + 1
        else:
            self._in_a_row = in_a_row = self._in_a_row + 1
            self.budget.num_over = 0
        if self._ranks.rank == 0:
            self._run.emit("ckpt_abandoned", step=step, cursor=cursor, code=err.code, in_a_row=in_a_row)
        if not is_skipped and in_a_row >= FAILED_SAVES_IN_A_ROW:
            raise err

    def say(self, step: int, err: BaseException, *, may_block: bool) -> None:
        """Log what a save came to that is not counted yet; by any thread."""
        if _is_skipped(err, may_block):
            log.warning("step %d is not saved (%d in a row): %s", step, self.budget.num_over + 1, err)
        else:
            what = err if isinstance(err, EttError) else repr(err)
            log.error("the save at step %d failed (%d in a row): %s", step, self._in_a_row + 1, what)

    def forgive(self) -> None:
        """Begin to count anew: a save has succeeded."""
        self._in_a_row = self.budget.num_over = 0


def _is_skipped(err: BaseException, may_block: bool) -> bool:
    return isinstance(err, EttError) and err.code == OVER_BUDGET and not may_block
