"""Which rows are in which global batch, and which of them a rank reads.

The order of samples is a pure function of (files, seed, epoch, window_rows, lanes): windows of `window_rows` rows in
file order, the training rows of each shuffled by a mix of seed, epoch and row number, `lanes` windows merged. It
depends on no world size, batch size, number of readers or depth of reading ahead. A batch may span windows, never
epochs; the last of an epoch may be short. A batch's rows stand lane by lane, and rank k of w has the k-th of w equal
slices: with as many lanes as ranks, a rank reads its own windows.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from ett.errors import ConfigError, DataError
from ett.trainer.data.columns import Columns, join_rows
from ett.trainer.data.lanes import GlobalBatch, Group, merged_positions
from ett.trainer.data.order import is_held_out, shuffled
from ett.trainer.data.position import Bookmark, Cursor, Position
from ett.trainer.data.row_source import Rows, RowSource, W

_ROWS_NAMED = 10  # skipped rows of one window that are logged one by one
_log = logging.getLogger(__name__)


class OrderSettings(Protocol):
    @property
    def window_rows(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def shuffle(self) -> bool: ...
    @property
    def heldout_share(self) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the order of samples is a function of, beside the files and the epoch."""

    seed: int
    window_rows: int = 65536
    lanes: int = 1
    shuffle: bool = True
    heldout_share: float = 0.0

    @staticmethod
    def of(settings: OrderSettings, seed: int) -> Order:
        """Return the order that a recipe's section names."""
        return Order(
            seed=seed,
            window_rows=settings.window_rows,
            lanes=settings.lanes,
            shuffle=settings.shuffle,
            heldout_share=settings.heldout_share,
        )


@dataclass(frozen=True, slots=True)
class Share(Generic[W]):
    """What one rank reads of one global batch."""

    rows: tuple[Rows[W], ...]  # one after another
    checked: tuple[Rows[W], ...]  # that this rank checks for all: they are in no batch
    global_size: int  # samples of all ranks
    after: Cursor  # where the next batch begins


class DataSource(Generic[W]):
    """The seam between input and training: a plan of what to read, made without reading it, and the reading.

    Args:
        rows: the format's rows.
        batch_size: samples of all ranks in a batch.
        epochs: passes over the training rows.
        max_bad_rows: malformed rows of an epoch that are skipped. Where some may be, every rank reads every row: each
            that is skipped moves all that follow. Where none may be, each row is checked by one rank.
    """

    def __init__(
        self, rows: RowSource[W], order: Order, *, batch_size: int, epochs: int = 1, max_bad_rows: int = 0
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"train.batch_size is {batch_size}", expected="at least 1")
        self._rows, self.order = rows, order
        self._batch_size, self._epochs, self._max_bad_rows = batch_size, epochs, max_bad_rows
        self.files, self.columns = rows.files, rows.columns
        self.skipped_rows = 0  # malformed ones of the epoch, in the windows planned so far

    def plan(self, cursor: Cursor, rank: int, world: int) -> Generator[Share[W], None, None]:
        """Yield this rank's share of every global batch after the cursor.

        Raises: DataError: an epoch without a row to train on, or more malformed rows than are allowed.
        """
        samples, bookmark = cursor.samples, cursor.bookmark or self._locate(cursor.samples)
        while bookmark.epoch < self._epochs:
            is_fresh, before = bookmark == Bookmark(epoch=bookmark.epoch), samples
            with closing(self._groups(bookmark, rank, heldout=False)) as groups:
                for share in self._shares(groups, samples, bookmark, rank, world):
                    samples = share.after.samples
                    yield share
            if is_fresh and samples == before:
                raise DataError(
                    f"{self.files[0].path}: no row to train on",
                    expected="at least one well-formed row that is not held out",
                    do="check data.path, data.heldout_share and data.max_bad_lines",
                )
            bookmark = Bookmark(epoch=bookmark.epoch + 1)

    def plan_heldout(self, batch_size: int, rank: int, world: int) -> Generator[Share[W], None, None]:
        """Yield this rank's share of batches of the held-out rows, in file order."""
        if not self.order.heldout_share:
            return
        with closing(self._groups(Bookmark(), rank, heldout=True)) as groups:
            for batch, _ in _batches(groups, 0, batch_size):
                yield Share(batch.slice_of(rank, world), (), batch.size, Cursor())

    def read(self, share: Share[W]) -> Columns:
        """Return the columns of a share's rows. Raises: DataError: one is malformed, and none may be skipped."""
        parts = [self._checked(rows) for rows in share.rows]
        for rows in share.checked:
            self._checked(rows)
        return join_rows(parts) if parts else self._rows.empty()

    def locate(self, samples: int) -> Cursor:
        """Return the cursor of so many consumed samples with its bookmark, found by counting rows."""
        return Cursor(samples, self._locate(samples))

    def _locate(self, samples: int) -> Bookmark:
        bookmark, total = self._find_in_epoch(0, samples)
        if bookmark is None:
            epoch, rest = divmod(samples, max(total, 1))
            bookmark, _ = self._find_in_epoch(min(epoch, self._epochs), rest if epoch < self._epochs else 0)
        return bookmark or Bookmark(epoch=self._epochs)

    def _find_in_epoch(self, epoch: int, samples: int) -> tuple[Bookmark | None, int]:
        """Return the bookmark of the sample of that number in an epoch, or None and the epoch's number of samples."""
        if samples == 0:
            return Bookmark(epoch), 0
        seen = 0
        with closing(self._groups(Bookmark(epoch), 1, heldout=False)) as groups:
            for group in groups:
                if samples < seen + group.num_rows:
                    return Bookmark(epoch, group.start, samples - seen, group.bad_before), 0
                seen += group.num_rows
        return None, seen

    def _shares(
        self, groups: Iterable[Group[W]], samples: int, bookmark: Bookmark, rank: int, world: int
    ) -> Generator[Share[W], None, None]:
        unchecked: list[Rows[W]] = []
        watched = self._watched(groups, unchecked, rank, world)
        for batch, end in _batches(watched, bookmark.taken, self._batch_size):
            samples += batch.size
            after = Bookmark(bookmark.epoch + 1) if end is None else Bookmark(bookmark.epoch, *end)
            checked, unchecked[:] = tuple(unchecked), []
            yield Share(batch.slice_of(rank, world), checked, batch.size, Cursor(samples, after))
        for rows in unchecked:
            self._checked(rows)

    def _watched(
        self, groups: Iterable[Group[W]], unchecked: list[Rows[W]], rank: int, world: int
    ) -> Generator[Group[W], None, None]:
        """Pass groups on, and note this rank's part of the rows that no batch of theirs will hold."""
        for group in groups:
            if self.order.heldout_share and not self._max_bad_rows and self._rows.reads_single_rows:
                for lane in group.lanes:
                    held = np.flatnonzero(self._is_held_out(lane.window))
                    unchecked.append(
                        Rows(lane.window, held[rank * len(held) // world : (rank + 1) * len(held) // world])
                    )
            yield group

    def _groups(self, bookmark: Bookmark, rank: int, *, heldout: bool) -> Generator[Group[W], None, None]:
        bad_rows, lanes = bookmark.bad_rows, 1 if heldout else self.order.lanes
        with closing(self._rows.windows(self.order.window_rows, bookmark.start)) as windows:
            while together := list(islice(windows, lanes)):
                before, wanted = bad_rows, []
                for window in together:
                    is_wanted = self._is_held_out(window) == heldout
                    if self._max_bad_rows:
                        states = self._rows.states(window)
                        self._refuse_more(window, states, bad_rows)
                        is_wanted &= states == 0
                        bad_rows += int(np.count_nonzero(states))
                        if not heldout:
                            self.skipped_rows = bad_rows
                            if rank == 0:
                                self._log_skipped(window, states)
                    wanted.append(Rows(window, self._in_order(window, is_wanted, bookmark.epoch, heldout)))
                positions = tuple(merged_positions([len(rows.numbers) for rows in wanted]))
                yield Group(together[0].start, tuple(wanted), positions, before)

    def _is_held_out(self, window: W) -> NDArray[np.bool_]:
        if not self.order.heldout_share:
            return np.zeros(window.num_rows, np.bool_)
        return is_held_out(_numbers(window), self.order.heldout_share)

    def _in_order(self, window: W, is_wanted: NDArray[np.bool_], epoch: int, heldout: bool) -> NDArray[np.int64]:
        if heldout or not self.order.shuffle:
            return np.flatnonzero(is_wanted)
        numbers = _numbers(window)[is_wanted]
        return shuffled(numbers, self.order.seed, epoch) - window.start.first_row

    def _checked(self, rows: Rows[W]) -> Columns:
        columns, states = self._rows.take(rows.window, rows.numbers)
        if not self._max_bad_rows:
            whole = states if self._rows.reads_single_rows else self._rows.states(rows.window)
            if whole.any():  # the first one of the window is named, whichever rank found which
                self._refuse_more(rows.window, self._rows.states(rows.window), 0)
        return columns

    def _refuse_more(self, window: W, states: NDArray[np.int64], bad_before: int) -> None:
        """Raise DataError where the window holds more malformed rows than are left to skip."""
        allowed, bad = self._max_bad_rows, np.flatnonzero(states)
        if bad_before + len(bad) <= allowed:
            return
        fault = self._rows.fault(window, int(bad[allowed - bad_before]))
        skipped = f" ({allowed} malformed lines before it were skipped)" if allowed else ""
        raise DataError(
            f"{fault.where}: {fault.fact}{skipped}",
            expected=fault.expected,
            do="correct the line, or raise data.max_bad_lines to count and skip such lines",
        )

    def _log_skipped(self, window: W, states: NDArray[np.int64]) -> None:
        bad = np.flatnonzero(states).tolist()
        for row in bad[:_ROWS_NAMED]:
            fault = self._rows.fault(window, row)
            _log.warning("%s: %s; the line is skipped (data.max_bad_lines)", fault.where, fault.fact)
        if len(bad) > _ROWS_NAMED:
            _log.warning("%d more malformed lines after it are skipped", len(bad) - _ROWS_NAMED)


def _numbers(window: Any) -> NDArray[np.int64]:
    first: int = window.start.first_row
    return np.arange(first, first + window.num_rows, dtype=np.int64)


_End = tuple[Position, int, int]


def _batches(
    groups: Iterable[Group[W]], taken: int, batch_size: int
) -> Generator[tuple[GlobalBatch[W], _End | None], None, None]:
    """Yield (a global batch, where it ends: start of the group, rows taken of it, malformed ones before it).

    The end is None after a batch that is short because the epoch is over.
    """
    batch, begin = GlobalBatch[W](), taken
    for group in groups:
        while begin < group.num_rows:
            end = min(begin + batch_size - batch.size, group.num_rows)
            batch.add(group.between(begin, end))
            begin = end
            if batch.size == batch_size:
                yield batch, (group.start, end, group.bad_before)
                batch = GlobalBatch[W]()
        begin = 0
    if batch.size:
        yield batch, None
