"""The one interface of all tiers: rows of raw bytes, reached by id, for one table on one rank."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ett.trainer.sparse.hashing import Ids

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class RowStore(Protocol):
    """Ids of one call are distinct. Where `write` raises, each of its rows is as it was or as it was to be.

    A store holds training state between two checkpoints and nothing longer: it starts empty, and a restart fills it
    from the checkpoint.
    """

    row_bytes: int

    def __len__(self) -> int:
        """Return the number of rows."""

    def read(self, ids: Ids, out: Bytes) -> Mask:
        """Copy the rows of ids (int64 [N]) to out, [N, row_bytes]; return which are there, and leave the others.

        Raises: CorruptState: a row is not the one that was written. Unreachable: it cannot be read.
        """

    def write(self, ids: Ids, rows: Bytes) -> None:
        """Add or replace rows. Raises: Unreachable: no space is left, or nobody answers."""

    def free(self, ids: Ids) -> None:
        """Forget rows; an unknown id is none."""

    def contains(self, ids: Ids) -> Mask:
        """Return which ids have a row, without reading it."""

    def ids(self) -> Ids:
        """Return the ids of all rows, ascending."""

    def clear(self) -> None:
        """Forget all rows."""

    def close(self) -> None:
        """Give back what lies outside this process; no call is possible afterwards."""
