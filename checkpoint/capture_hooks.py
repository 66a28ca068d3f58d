"""What a trainer tells a checkpoint that is being captured while training goes on: which rows come, and which change.

A table calls on the rank that has its rows. Calls come from several threads, one at a time, and in the order of
batches; what they do is on the path of training.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class CaptureHooks(Protocol):
    def announced(self, table: str, ids: Ids, batch: int) -> None:
        """Learn that a batch will look rows up, and most likely change them: ids are distinct and ascending.

        Args: batch: announced ones count from 1.
        """

    def before_update(self, table: str, ids: Ids) -> None:
        """Keep what is needed of rows that are about to change, come to exist or go; they are still as they were.

        Args: ids: distinct; each was announced or not.
        """


class NoCapture:
    """Nobody captures."""

    def announced(self, table: str, ids: Ids, batch: int) -> None:
        return None

    def before_update(self, table: str, ids: Ids) -> None:
        return None


NO_CAPTURE: CaptureHooks = NoCapture()


@runtime_checkable
class Capturable(Protocol):
    """A table that calls hooks; whoever captures sets them between two steps."""

    capture: CaptureHooks
