"""A rank's batches in order, from a cursor on, read ahead; the cursor moves with the batches that were taken."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Generic, TypeVar

from ett.errors import ConfigError, CorruptState
from ett.trainer.data.columns import Columns
from ett.trainer.data.data_source import DataSource, Share
from ett.trainer.data.position import Bookmark, Cursor, Position
from ett.trainer.data.read_ahead import read_ahead

_STATE_VERSION = 1
B = TypeVar("B")


class BatchStream(Generic[B]):
    """Iterates over this rank's slices of all remaining global batches.

    Args:
        assemble: makes a batch of a share's columns and the global batch's size; called in reading threads.
        readers, depth: threads that parse, and batches that are ready ahead; neither changes any batch.
    """

    def __init__(
        self,
        source: DataSource[Any],
        assemble: Callable[[Columns, int], B],
        *,
        rank: int = 0,
        world_size: int = 1,
        readers: int = 1,
        depth: int = 2,
    ) -> None:
        self.source = source
        self._assemble, self._rank, self._world_size = assemble, rank, world_size
        self._readers, self._depth = readers, depth
        self._at = Cursor.beginning()

    @property
    def cursor(self) -> int:
        """Samples of all ranks consumed by the batches that were yielded."""
        return self._at.samples

    @property
    def skipped_lines(self) -> int:
        """Malformed ones of this epoch, in the windows read so far."""
        return self.source.skipped_rows

    def __iter__(self) -> Iterator[B]:
        """Yield the batches after the cursor, which moves with each; a new iterator goes on where one stopped."""
        shares = self.source.plan(self._at, self._rank, self._world_size)
        with closing(self._read(shares)) as batches:
            for share, batch in batches:
                self._at = share.after
                yield batch

    def heldout_batches(self, batch_size: int) -> Generator[B, None, None]:
        """Yield this rank's slices of the held-out rows in file order; the cursor does not move."""
        with closing(self._read(self.source.plan_heldout(batch_size, self._rank, self._world_size))) as batches:
            for _, batch in batches:
                yield batch

    def seek(self, samples: int) -> None:
        """Go to where so many samples of all ranks are consumed; counts rows, and parses none of them."""
        if samples < 0:
            raise ConfigError(f"cursor {samples}", expected="the number of samples consumed so far, 0 or more")
        self._at = self.source.locate(samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the exact bookmark as JSON values; it holds for any rank and world size."""
        bookmark = self._at.bookmark or self.source.locate(self._at.samples).bookmark or Bookmark()
        start = bookmark.start
        return {
            "version": _STATE_VERSION,
            "cursor": self._at.samples,
            "epoch": bookmark.epoch,
            "taken": bookmark.taken,
            "bad_lines": bookmark.bad_rows,
            "window": [start.file, start.offset, start.first_line, start.first_row],
            "order": self._order(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict()` was taken.

        Raises: CorruptState: unknown version. ConfigError: other files, seed or window: it means nothing there.
        """
        if state.get("version") != _STATE_VERSION:
            raise CorruptState(f"reader state version {state.get('version')!r}", expected=str(_STATE_VERSION))
        change = self._change_since({"data.lanes": 1} | dict(state["order"]))
        if change:
            raise ConfigError(
                f"the job was saved with {change}",
                expected="the same files, seed and window: a cursor has no meaning in another order",
                do="restore the input, or start a new job (another --job) on the new one",
                code="F004",
            )
        start = Position(*map(int, state["window"]))
        bookmark = Bookmark(int(state["epoch"]), start, int(state["taken"]), int(state["bad_lines"]))
        self._at = Cursor(int(state["cursor"]), bookmark)

    def _read(self, shares: Generator[Share[Any], None, None]) -> Generator[tuple[Share[Any], B], None, None]:
        def read(share: Share[Any]) -> B:
            return self._assemble(self.source.read(share), share.global_size)

        return read_ahead(shares, read, threads=self._readers, depth=self._depth)

    def _order(self) -> dict[str, Any]:
        order, files = self.source.order, self.source.files
        return {
            "train.seed": order.seed,
            "data.shuffle": order.shuffle,
            "data.window_rows": order.window_rows,
            "data.lanes": order.lanes,
            "data.heldout_share": order.heldout_share,
            "file_bytes": [file.num_bytes for file in files.files],
            "file_edges": files.edges,
        }

    def _change_since(self, saved: Mapping[str, Any]) -> str:
        """Return what makes this order another than the saved one; empty if nothing does."""
        now, files = self._order(), self.source.files.files
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
