"""The rows of a table in device memory as they are at a step boundary, while training goes on changing them.

The table keeps a row before an update changes it; the writer reads the others, in id order.
"""

from __future__ import annotations

from ett.checkpoint.capture.boundary_rows import BoundaryRows
from ett.checkpoint.capture.capture_counts import CaptureCounts
from ett.checkpoint.capture.row_capture import Path
from ett.checkpoint.policy.row_map import RowMap
from ett.checkpoint.table_segments import Bytes, Ids, TableSpec
from ett.checkpoint.tracked_table import Slots, TrackedTable
from ett.errors import CorruptState, EttError


class DeviceCapture:
    """One checkpoint of one table, whose number of rows is fixed; made at the boundary."""

    def __init__(self, spec: TableSpec, table: TrackedTable, rows: BoundaryRows) -> None:
        self._spec, self._table, self._rows = spec, table, rows
        self._failure: EttError | None = None
        self.is_over = False  # nothing is kept any more

    @property
    def counts(self) -> CaptureCounts:
        return self._rows.counts

    def grow(self, num_slots: int) -> None:
        return None

    def keep(self, slots: Slots, ids: Ids, path: Path) -> None:
        return None

    def came(self, slots: Slots) -> None:
        return None

    def want_only(self, wanted: RowMap) -> None:
        self._rows.want_only(wanted.as_bytes())

    def touched(self, slots: Slots) -> None:
        """Give up: nobody knows whether rows were read before they were written to."""
        if len(slots):
            self.give_up(
                CorruptState(
                    f"rows of table {self._spec.name} were written to while a checkpoint of them was on its way",
                    expected="changes by the table's own update, or no checkpoint on its way",
                    do="set checkpoint.background = false for a model whose rows are changed by other code",
                )
            )

    def give_up(self, err: EttError) -> None:
        """Have the save fail: training goes on, and nothing more is kept."""
        self._failure, self.is_over = self._failure or err, True
        self._rows.give_up(err)

    def gather(self, ids: Ids, columns: tuple[Bytes, ...]) -> None:
        """Copy rows as they were at the boundary; by several threads, with other ids each.

        Args: ids: int64 [N], ascending. columns: uint8 [N, row_bytes] a group.
        Raises: CorruptState: the device has lost rows, or some were written to untold.
        """
        self.check()
        self._rows.read(self._table.slots_of(ids), columns)

    def check(self) -> None:
        """Raises: CorruptState: rows were written to untold; whatever the save was given up for."""
        failure = self._failure or self._rows.failure
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Keep nothing any more."""
        self.is_over = True
        self._rows.close()
