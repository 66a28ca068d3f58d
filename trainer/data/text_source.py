"""Lines of text files, plain or gzip, local or at any fsspec URL, in windows of a fixed number of lines."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Protocol

import numpy as np
from numpy.typing import NDArray

from ett.errors import DataError
from ett.trainer.data.criteo_lines import line_feeds, line_starts
from ett.trainer.data.gzip_stream import GZIP_MAGIC, DamagedGzip, GzipStream
from ett.trainer.data.input_files import PARQUET_MAGIC, InputFiles, reading_errors
from ett.trainer.data.position import BEGINNING, Position

_CHUNK_BYTES = 4 << 20
_LONGEST_LINE_BYTES = 64 << 20  # what has no line feed in so many bytes is not text; a line of Criteo has 240
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextWindow:
    """Consecutive lines of one file.

    `start.offset` is that of the first line in the unpacked file. `block` holds the lines; the last of a file may lack
    its line feed.
    """

    start: Position
    num_rows: int
    block: bytes

    @cached_property
    def line_starts(self) -> NDArray[np.int64]:
        """Where each line begins in the block."""
        return line_starts(self.block, self.num_rows)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class TextSource:
    """Windows of the lines of one or more files."""

    def __init__(self, path: str | InputFiles) -> None:
        self.files = InputFiles(path) if isinstance(path, str) else path

    def windows(self, num_lines: int, start: Position = BEGINNING) -> Generator[TextWindow, None, None]:
        """Yield windows of `num_lines` lines (fewer at the end of a file), beginning at `start`.

        Raises: DataError: a gzip file is cut off or damaged, or a file holds no lines at all. NotFound, AccessDenied,
            Unreachable: a file cannot be read.
        """
        first_row = start.first_row
        for index in range(start.file, len(self.files)):
            here = start if index == start.file else Position(file=index, first_row=first_row)
            # Closed by name: a generator that is left early would keep its file until it is collected.
            with closing(self._windows_of(index, num_lines, here)) as windows:
                for window in windows:
                    first_row = window.start.first_row + window.num_rows
                    yield window

    def _windows_of(self, index: int, num_lines: int, start: Position) -> Generator[TextWindow, None, None]:
        path = self.files[index].path
        offset, line, row = start.offset, start.first_line, start.first_row
        try:
            with reading_errors(path, lambda: f" after line {line}"), self._open(path, offset) as stream:
                for block, count in _blocks(path, stream, num_lines):
                    skipped = len(_BOM) if not offset and block.startswith(_BOM) else 0
                    yield TextWindow(Position(index, offset, line, row), count, block[skipped:])
                    offset, line, row = offset + len(block), line + count, row + count
        except DamagedGzip as err:
            raise DataError(
                f"{path}: damaged gzip data after line {line}: {err}",
                expected="a whole gzip file",
                do="fetch or pack the file again; `gzip -t` checks it",
            ) from err

    @contextmanager
    def _open(self, path: str, offset: int) -> Iterator[_Stream]:
        with closing(self.files.storage.open(path, "rb")) as raw:
            head = raw.read(len(PARQUET_MAGIC))
            if head == PARQUET_MAGIC:
                raise DataError(
                    f"{path} is a Parquet file among files of text",
                    expected="files of one format",
                    do="keep each format in a folder of its own",
                )
            raw.seek(0)
            yield _unpacked(raw, offset) if head.startswith(GZIP_MAGIC) else _from(raw, offset)


def _unpacked(raw: IO[bytes], offset: int) -> GzipStream:
    stream = GzipStream(raw)
    stream.skip(offset)
    return stream


def _from(raw: IO[bytes], offset: int) -> IO[bytes]:
    if offset:
        raw.seek(offset)
    return raw


def _blocks(path: str, stream: _Stream, num_lines: int) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes of up to num_lines whole lines, their number)."""
    pending: list[memoryview] = []
    count = 0  # line feeds in `pending`, fewer than num_lines
    unended_bytes = 0  # after the last line feed
    while chunk := stream.read(_CHUNK_BYTES):
        view, begin = memoryview(chunk), 0
        feeds = line_feeds(chunk)
        unended_bytes = len(chunk) - int(feeds[-1]) - 1 if len(feeds) else unended_bytes + len(chunk)
        if unended_bytes > _LONGEST_LINE_BYTES:
            raise DataError(
                f"{path}: no line feed in {unended_bytes:,} bytes",
                expected="lines of text, plain or gzip",
                do="check data.path: this is no file of Criteo lines",
            )
        for feed in feeds[num_lines - count - 1 :: num_lines].tolist():
            yield b"".join([*pending, view[begin : feed + 1]]), num_lines
            pending, begin = [], feed + 1
        pending.append(view[begin:])
        count = (count + len(feeds)) % num_lines
    if block := b"".join(pending):
        yield block, count + (not block.endswith(b"\n"))
