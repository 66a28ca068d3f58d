"""Batches of Criteo rows: global batches in one order on every rank, this rank's slice of each, and an exact cursor.

The order is a pure function of (files, seed, epoch): windows of `window_rows` lines in file order, the training rows
of a window shuffled by a mix of seed, epoch and row number. It does not depend on the world size. A batch may span
windows, never epochs; the last of an epoch may be short, and a rank's slice of it empty.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ett.errors import ConfigError, CorruptState, DataError
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo_lines import CriteoLines, dense_features, describe_fault, parse_lines
from ett.trainer.data.order import is_held_out, shuffled
from ett.trainer.data.text_source import BEGINNING, Position, TextSource, Window

_STATE_VERSION = 1
_LINES_NAMED = 10  # skipped lines of one window that are logged one by one
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's slice of a global batch: labels float32 [b], dense float32 [b, 13], ids int64 [26, b].

    `global_size` is the number of samples of all ranks, at least 1; b may be 0.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    global_size: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the next sample is: `taken` training rows of the window that begins at `start` are consumed."""

    epoch: int = 0
    start: Position = BEGINNING
    taken: int = 0
    bad_lines: int = 0  # of this epoch, before the window


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a window that are wanted, in their order."""

    window: Window
    lines: CriteoLines
    picked: NDArray[np.int64]  # indices into lines
    bad_before: int  # malformed lines of the epoch before this window


class CriteoReader:
    """Iterates over this rank's slices of all remaining global batches, `epochs` passes in all.

    Args:
        config: what to read.
        path: where it is (config.path, or the generated file).
        batch_size: samples of all ranks in a batch.
        seed: of the order.
        epochs: passes over the training rows.
    """

    def __init__(
        self,
        config: DataConfig,
        path: str,
        *,
        batch_size: int,
        seed: int,
        epochs: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"train.batch_size is {batch_size}", expected="at least 1")
        self._config, self._source = config, TextSource(path)
        self._batch_size, self._seed, self._epochs = batch_size, seed, epochs
        self._rank, self._world_size = rank, world_size
        self._place = _Place()
        self.cursor = 0  # samples of all ranks consumed by the batches that were yielded
        self.skipped_lines = 0  # malformed ones of this epoch, in the windows read so far

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches after the cursor, which moves with each; a new iterator goes on where one stopped."""
        while (epoch := self._place.epoch) < self._epochs:
            is_fresh, before = self._place == _Place(epoch=epoch), self.cursor
            yield from self._epoch_batches()
            if is_fresh and self.cursor == before:
                raise DataError(
                    f"{self._source.files[0].path}: no row to train on",
                    expected="at least one well-formed line that is not held out",
                    do="check data.path, data.heldout_share and data.max_bad_lines",
                )
            self._place = _Place(epoch=epoch + 1)

    def heldout_batches(self, batch_size: int) -> Generator[Batch, None, None]:
        """Yield this rank's slices of the held-out rows in file order; the cursor does not move."""
        if not self._config.heldout_share:
            return
        held: list[CriteoLines] = []
        for rows in self._windows(_Place(), held_out=True):
            held.append(_take(rows.lines, rows.picked))
            while sum(len(part.labels) for part in held) >= batch_size:
                merged = _merge(held)
                yield self._slice(_cut(merged, 0, batch_size))
                held = [_cut(merged, batch_size, len(merged.labels))]
        merged = _merge(held)
        if len(merged.labels):
            yield self._slice(merged)

    def state_dict(self) -> dict[str, Any]:
        """Return the exact place as JSON values; it holds for any rank and world size."""
        place = self._place
        start = place.start
        return {
            "version": _STATE_VERSION,
            "cursor": self.cursor,
            "epoch": place.epoch,
            "taken": place.taken,
            "bad_lines": place.bad_lines,
            "window": [start.file, start.offset, start.first_line, start.first_row],
            "order": self._order(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the place of `state_dict()`.

        Raises: CorruptState: unknown version. ConfigError: other files, seed or window: the place means nothing.
        """
        if state.get("version") != _STATE_VERSION:
            raise CorruptState(f"reader state version {state.get('version')!r}", expected=str(_STATE_VERSION))
        change = self._change_since(state["order"])
        if change:
            raise ConfigError(
                f"the job was saved with {change}",
                expected="the same files, seed and window: a cursor has no meaning in another order",
                do="restore the input, or start a new job (another --job) on the new one",
                code="F004",
            )
        self.cursor = int(state["cursor"])
        start = Position(*map(int, state["window"]))
        self._place = _Place(int(state["epoch"]), start, int(state["taken"]), int(state["bad_lines"]))

    def _order(self) -> dict[str, Any]:
        return {
            "train.seed": self._seed,
            "data.shuffle": self._config.shuffle,
            "data.window_rows": self._config.window_rows,
            "data.heldout_share": self._config.heldout_share,
            "file_bytes": [file.num_bytes for file in self._source.files],
            "file_edges": self._source.file_edges,
        }

    def _change_since(self, saved: Mapping[str, Any]) -> str:
        """Return what makes this order another than the saved one; empty if nothing does."""
        now, files = self._order(), self._source.files
        before = saved["file_bytes"]
        for key in now:
            if not key.startswith("file_") and saved.get(key) != now[key]:
                return f"{key} = {saved.get(key)!r}, now it is {now[key]!r}"
        for num_bytes, file in zip(before, files, strict=False):
            if num_bytes != file.num_bytes:
                return f"{num_bytes} bytes of data where {file.path} now has {file.num_bytes}"
        if len(before) != len(files):
            return f"{len(before)} data files, now data.path holds {len(files)}, the last {files[-1].path}"
        for was, edge, file in zip(saved.get("file_edges", ()), now["file_edges"], files, strict=False):
            if was != edge:
                return f"other content in {file.path}, of the same size"
        return ""

    def _epoch_batches(self) -> Iterator[Batch]:
        epoch, begin = self._place.epoch, self._place.taken
        parts: list[CriteoLines] = []
        missing = self._batch_size
        for rows in self._windows(self._place, held_out=False):
            window = rows.window
            start = Position(window.file, window.offset, window.first_line, window.first_row)
            while begin < len(rows.picked):
                end = min(begin + missing, len(rows.picked))
                parts.append(_take(rows.lines, rows.picked[begin:end]))
                missing, begin = missing - (end - begin), end
                if not missing:
                    yield self._advance(parts, _Place(epoch, start, end, rows.bad_before))
                    parts, missing = [], self._batch_size
            begin = 0
        if parts:
            yield self._advance(parts, _Place(epoch=epoch + 1))

    def _advance(self, parts: list[CriteoLines], place: _Place) -> Batch:
        merged = _merge(parts)
        self.cursor += len(merged.labels)
        self._place = place
        return self._slice(merged)

    def _windows(self, place: _Place, *, held_out: bool) -> Iterator[_Rows]:
        bad_lines = place.bad_lines
        for window, lines in self._parsed_windows(place.start):
            bad = np.flatnonzero(lines.states)
            self._check_bad(window, lines, bad, bad_lines)
            numbers = window.first_row + np.arange(window.num_lines, dtype=np.int64)
            wanted = (is_held_out(numbers, self._config.heldout_share) == held_out) & (lines.states == 0)
            picked = numbers[wanted]
            if self._config.shuffle and not held_out:
                picked = shuffled(picked, self._seed, place.epoch)
            if not held_out:
                self.skipped_lines = bad_lines + len(bad)
                self._log_skipped(window, lines, bad)
            yield _Rows(window, lines, picked - window.first_row, bad_lines)
            bad_lines += len(bad)

    def _parsed_windows(self, start: Position) -> Iterator[tuple[Window, CriteoLines]]:
        """Yield windows with their columns; a thread reads and parses one window ahead of its use."""

        def load() -> tuple[Window, CriteoLines] | None:
            window = next(windows, None)
            return None if window is None else (window, parse_lines(window.block, window.num_lines))

        # The thread is joined before the file is closed under it.
        with closing(self._source.windows(self._config.window_rows, start)) as windows:
            with ThreadPoolExecutor(1, thread_name_prefix="ett-read") as pool:
                ahead = pool.submit(load)
                while (loaded := ahead.result()) is not None:
                    ahead = pool.submit(load)
                    yield loaded

    def _check_bad(self, window: Window, lines: CriteoLines, bad: NDArray[np.int64], bad_before: int) -> None:
        allowed = self._config.max_bad_lines
        if bad_before + len(bad) <= allowed:
            return
        fact, expected = self._describe(window, lines, int(bad[allowed - bad_before]))
        skipped = f" ({allowed} malformed lines before it were skipped)" if allowed else ""
        raise DataError(
            f"{fact}{skipped}",
            expected=expected,
            do="correct the line, or raise data.max_bad_lines to count and skip such lines",
        )

    def _log_skipped(self, window: Window, lines: CriteoLines, bad: NDArray[np.int64]) -> None:
        if self._rank != 0:  # every rank reads the same lines
            return
        for index in bad[:_LINES_NAMED].tolist():
            _log.warning("%s; the line is skipped (data.max_bad_lines)", self._describe(window, lines, index)[0])
        if len(bad) > _LINES_NAMED:
            _log.warning("%d more malformed lines after it are skipped", len(bad) - _LINES_NAMED)

    def _describe(self, window: Window, lines: CriteoLines, index: int) -> tuple[str, str]:
        """Return `file:line: fault` of a malformed line of a window, and what was expected."""
        text = window.block.split(b"\n", index + 1)[index]
        fact, expected = describe_fault(int(lines.states[index]), text)
        return f"{self._source.files[window.file].path}:{window.first_line + index + 1}: {fact}", expected

    def _slice(self, lines: CriteoLines) -> Batch:
        size = len(lines.labels)
        begin, end = self._rank * size // self._world_size, (self._rank + 1) * size // self._world_size
        return Batch(
            labels=lines.labels[begin:end].copy(),
            dense=dense_features(lines.counts[begin:end]),
            ids=np.ascontiguousarray(lines.ids[begin:end].T),
            global_size=size,
        )


def _take(lines: CriteoLines, index: NDArray[np.int64]) -> CriteoLines:
    return CriteoLines(lines.labels[index], lines.counts[index], lines.ids[index], lines.states[index])


def _cut(lines: CriteoLines, begin: int, end: int) -> CriteoLines:
    part = slice(begin, end)
    return CriteoLines(lines.labels[part], lines.counts[part], lines.ids[part], lines.states[part])


def _merge(parts: list[CriteoLines]) -> CriteoLines:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return parse_lines(b"", 0)
    return CriteoLines(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.states for part in parts]),
    )
