"""Lines of one or more text files, plain or gzip, local or at any fsspec URL, in windows of a fixed number of lines."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ett.errors import AccessDenied, DataError, NotFound, Unreachable

_CHUNK_BYTES = 4 << 20
_LONGEST_LINE_BYTES = 64 << 20  # what has no line feed in so many bytes is not text; a line of Criteo has 240
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    num_bytes: int  # as stored


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive lines of one file.

    `offset` is that of the first line in the unpacked file; `first_line` its number from 0 there, `first_row` its
    number from 0 over all files. `block` holds `num_lines` lines; the last of a file may lack its line feed.
    """

    file: int
    offset: int
    first_line: int
    first_row: int
    num_lines: int
    block: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """Where a window begins; all zero is the beginning."""

    file: int = 0
    offset: int = 0
    first_line: int = 0
    first_row: int = 0


BEGINNING = Position()


class TextSource:
    """The files at a path: one file, or every file of a folder in the order of their names (hidden ones left out)."""

    def __init__(self, path: str) -> None:
        self._storage, self.files = _find_files(path)

    def windows(self, num_lines: int, start: Position = BEGINNING) -> Iterator[Window]:
        """Yield windows of `num_lines` lines (fewer at the end of a file), beginning at `start`.

        Raises: DataError: a gzip file is cut off or damaged, or a file holds no lines at all.
        """
        first_row = start.first_row
        for index in range(start.file, len(self.files)):
            here = start if index == start.file else Position(file=index, first_row=first_row)
            for window in self._windows_of(index, num_lines, here):
                first_row = window.first_row + window.num_lines
                yield window

    def _windows_of(self, index: int, num_lines: int, start: Position) -> Iterator[Window]:
        path = self.files[index].path
        offset, line, row = start.offset, start.first_line, start.first_row
        with ExitStack() as closer:
            stream = self._open(path, closer)
            try:
                if offset:
                    stream.seek(offset)
                for block, count in _blocks(path, stream, num_lines):
                    skipped = len(_BOM) if not offset and block.startswith(_BOM) else 0
                    yield Window(index, offset, line, row, count, block[skipped:])
                    offset, line, row = offset + len(block), line + count, row + count
            except (EOFError, zlib.error, gzip.BadGzipFile) as err:
                raise DataError(
                    f"{path}: damaged gzip data after line {line}: {err}",
                    expected="a whole gzip file",
                    do="fetch or pack the file again; `gzip -t` checks it",
                ) from err

    def _open(self, path: str, closer: ExitStack) -> IO[bytes]:
        try:
            raw: IO[bytes] = self._storage.open(path, "rb")
        except FileNotFoundError as err:
            raise NotFound(f"{path} is gone", do="the data must stay while a job trains on it") from err
        except PermissionError as err:
            raise AccessDenied(f"no permission to read {path}", do="give this user access") from err
        closer.callback(raw.close)
        head = raw.read(2)
        raw.seek(0)
        return closer.enter_context(cast(IO[bytes], gzip.open(raw))) if head == _GZIP_MAGIC else raw


def _blocks(path: str, stream: IO[bytes], num_lines: int) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes of up to num_lines whole lines, their number)."""
    buffered = bytearray()
    count = 0  # line feeds in `buffered`
    while chunk := stream.read(_CHUNK_BYTES):
        buffered += chunk
        count += chunk.count(b"\n")
        if not count and len(buffered) > _LONGEST_LINE_BYTES:
            raise DataError(
                f"{path}: no line feed in {len(buffered):,} bytes",
                expected="lines of text, plain or gzip",
                do="check data.path: this is no file of Criteo lines",
            )
        while count >= num_lines:
            cut = _end_of_line(buffered, num_lines)
            yield bytes(memoryview(buffered)[:cut]), num_lines
            del buffered[:cut]
            count -= num_lines
    if buffered:
        is_unended = not buffered.endswith(b"\n")
        yield bytes(buffered), count + is_unended


def _end_of_line(buffered: bytearray, number: int) -> int:
    """Return the offset after the `number`-th line feed."""
    import numpy as np

    feeds = np.flatnonzero(np.frombuffer(buffered, np.uint8) == 10)
    return int(feeds[number - 1]) + 1


def _find_files(path: str) -> tuple[Any, list[SourceFile]]:
    import fsspec

    try:
        storage, root = fsspec.core.url_to_fs(path)
        found = _listing(storage, root)
    except FileNotFoundError as err:
        raise NotFound(
            f"data.path {path!r} does not exist",
            expected="a file, a folder or an fsspec URL",
            do="correct it, or leave it empty to generate input",
        ) from err
    except PermissionError as err:
        raise AccessDenied(f"no permission to read data.path {path!r}", do="give this user access") from err
    except (ImportError, ValueError) as err:
        raise DataError(f"data.path {path!r}: {err}", expected="a local path or a URL that fsspec knows") from err
    except OSError as err:
        raise Unreachable(f"data.path {path!r}: {err}", do="try again, or copy the data to a local folder") from err
    if not found:
        raise NotFound(f"data.path {path!r} holds no files", expected="at least one file of lines")
    return storage, found


def _listing(storage: Any, root: str) -> list[SourceFile]:
    info = storage.info(root)
    if info["type"] != "directory":
        return [SourceFile(str(info["name"]), int(info["size"] or 0))]
    entries = sorted(storage.ls(root, detail=True), key=lambda entry: str(entry["name"]))
    return [
        SourceFile(str(entry["name"]), int(entry["size"] or 0))
        for entry in entries
        if entry["type"] == "file" and not Path(str(entry["name"])).name.startswith((".", "_"))
    ]
