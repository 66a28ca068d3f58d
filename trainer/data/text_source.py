"""Lines of one or more text files, plain or gzip, local or at any fsspec URL, in windows of a fixed number of lines."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import xxhash

from ett.errors import AccessDenied, DataError, NotFound, Unreachable

_CHUNK_BYTES = 4 << 20
_LONGEST_LINE_BYTES = 64 << 20  # what has no line feed in so many bytes is not text; a line of Criteo has 240
_EDGE_BYTES = 64 << 10
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

    @cached_property
    def file_edges(self) -> list[str]:
        """A hash of the first and last 64 KiB of each file as stored: cheap, and enough to tell two inputs apart."""
        hashes = []
        for file in self.files:
            with self._storage.open(file.path, "rb") as raw:
                head = raw.read(_EDGE_BYTES)
                raw.seek(max(0, file.num_bytes - _EDGE_BYTES))
                hashes.append(xxhash.xxh3_64_hexdigest(head + raw.read(_EDGE_BYTES)))
        return hashes

    def windows(self, num_lines: int, start: Position = BEGINNING) -> Generator[Window, None, None]:
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
                    first_row = window.first_row + window.num_lines
                    yield window

    def _windows_of(self, index: int, num_lines: int, start: Position) -> Generator[Window, None, None]:
        path = self.files[index].path
        offset, line, row = start.offset, start.first_line, start.first_row
        try:
            with self._open(path) as stream:
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
        except FileNotFoundError as err:
            raise NotFound(f"{path} is gone", do="the data must stay while a job trains on it") from err
        except PermissionError as err:
            raise AccessDenied(f"no permission to read {path}", do="give this user access") from err
        except _store_errors() as err:
            raise Unreachable(
                f"reading {path} failed after line {line}: {err}", do="try again, or copy the data to a local folder"
            ) from err

    @contextmanager
    def _open(self, path: str) -> Iterator[IO[bytes]]:
        with closing(self._storage.open(path, "rb")) as raw:
            head = raw.read(len(_GZIP_MAGIC))
            raw.seek(0)
            if head != _GZIP_MAGIC:
                yield raw
                return
            with gzip.open(raw) as unpacked:
                yield cast(IO[bytes], unpacked)


def _blocks(path: str, stream: IO[bytes], num_lines: int) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes of up to num_lines whole lines, their number)."""
    pending: list[memoryview] = []
    count = 0  # line feeds in `pending`, fewer than num_lines
    unended_bytes = 0  # after the last line feed
    while chunk := stream.read(_CHUNK_BYTES):
        view, begin = memoryview(chunk), 0
        feeds = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
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
        raise DataError(f"data.path {path!r}: {err}", expected="a file, a folder or an fsspec URL") from err
    except _store_errors() as err:
        raise Unreachable(
            f"data.path {path!r}: {err}",
            do="check the store's address, credentials and network, or copy the data to a local folder",
        ) from err
    if not found:
        raise NotFound(f"data.path {path!r} holds no files", expected="at least one file of lines")
    return storage, found


def _listing(storage: Any, root: str) -> list[SourceFile]:
    info = storage.info(root)
    if info["type"] == "file":
        return [_source_file(info)]
    if info["type"] != "directory":
        raise ValueError("neither a file nor a folder")  # a pipe cannot be read a second time
    entries = sorted(storage.ls(root, detail=True), key=lambda entry: str(entry["name"]))
    shown = [entry for entry in entries if not Path(str(entry["name"])).name.startswith((".", "_"))]
    followed = [_follow(storage, entry) if entry.get("islink") else entry for entry in shown]
    return [_source_file(entry) for entry in followed if entry["type"] == "file"]


def _follow(storage: Any, link: dict[str, Any]) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], storage.info(link["name"]))
    except FileNotFoundError as err:
        raise NotFound(f"{link['name']} is a link that leads nowhere", do="mend or remove it") from err


def _source_file(info: dict[str, Any]) -> SourceFile:
    return SourceFile(str(info["name"]), int(info["size"] or 0))


def _store_errors() -> tuple[type[Exception], ...]:
    """Return what a failing store raises; only a process that opened an s3:// URL has loaded that store's client."""
    loaded = sys.modules.get("botocore.exceptions")
    return (OSError, loaded.BotoCoreError) if loaded else (OSError,)
