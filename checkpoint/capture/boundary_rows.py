"""A table that knows by itself what changes, and keeps its rows by itself: one in device memory.

Nobody can be called there before a row changes: what happens on the device happens in the order of a stream, long after
it was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table_segments import Bytes
from ett.checkpoint.tracked_table import Slots, TrackedTable
from ett.errors import EttError

_BLOCK_BYTES = 4 << 20  # rows come by the thousand, of all tables of a block
Bits = NDArray[np.uint8]  # of slots, eight a byte, the first in the lowest bit; whole words of 32 bits


@dataclass(frozen=True, slots=True)
class DeviceStaging:
    """Memory for rows that change before they are written: of the host, and of the device for those on their way."""

    pool: StagingPool
    device_bytes: int


def device_staging(host_bytes: int, device_bytes: int) -> DeviceStaging:
    """Return memory for all tables on a rank's device; none of it is taken before it is used."""
    # Beyond the limit goes what was in the ring when a writer began to wait for it, and when training had to.
    return DeviceStaging(StagingPool(host_bytes, 2 * device_bytes, _BLOCK_BYTES), device_bytes)


class BoundaryRows(Protocol):
    """A table as of a step boundary. The thread that trains makes it; those that save use it, several at a time."""

    def changed(self) -> Bits:
        """Return which rows had changed since the boundary before, or since tracking began; waits for the device."""

    def put_back(self) -> None:
        """Have those rows counted as changed again: no checkpoint has them."""

    def want_only(self, wanted: Bits) -> None:
        """Keep no others from now on; until this is called every row is kept that changes."""

    def read(self, slots: Slots, columns: tuple[Bytes, ...]) -> None:
        """Copy wanted rows as they were at the boundary, each once.

        Args: slots: int64 [N], distinct; columns: uint8 [N, row_bytes] a group.
        Raises: CorruptState: rows that were kept have been lost.
        """

    @property
    def counts(self) -> CaptureCounts:
        """Return what was done for this table so far."""

    def give_up(self, err: EttError) -> None:
        """Keep nothing any more, and have `read` raise; by any thread, while others read."""

    def close(self) -> None:
        """Keep nothing any more, and give memory back: nobody reads any more."""

    @property
    def failure(self) -> EttError | None:
        """Return why rows of this boundary cannot be read any more."""


@runtime_checkable
class SelfKeepingTable(TrackedTable, Protocol):
    """A TrackedTable that tells nobody of updates before a step boundary."""

    def at_boundary(self, staging: DeviceStaging | None, patience: Patience) -> BoundaryRows:
        """Begin the next interval, on the thread that trains, between two steps and within the lock.

        Args:
            staging: keep rows there before they change, until `close`; None: training waits meanwhile.
            patience: of training, of all tables, with staging memory that is full; then the save fails.
        Raises: ConfigError: the device has no such memory.
        """
