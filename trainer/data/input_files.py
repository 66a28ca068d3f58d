"""The files at a path, what format they are, and what goes wrong with them as errors that a user can act on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import xxhash

from ett.errors import AccessDenied, DataError, NotFound, Unreachable

_EDGE_BYTES = 64 << 10
PARQUET_MAGIC = b"PAR1"
_PARQUET_NAMES = (".parquet", ".pq")


class FileFormat(Enum):
    TEXT = "text"  # plain or gzip, which each file's first bytes say
    PARQUET = "Parquet"


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    num_bytes: int  # as stored


class InputFiles:
    """One file, or every file of a folder in the order of their names (hidden ones left out)."""

    def __init__(self, path: str) -> None:
        self.storage, self.files = _find_files(path)

    def __getitem__(self, index: int) -> SourceFile:
        return self.files[index]

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def edges(self) -> list[str]:
        """A hash of the first and last 64 KiB of each file as stored: cheap, and enough to tell two inputs apart."""
        hashes = []
        for file in self.files:
            with self.storage.open(file.path, "rb") as raw:
                head = raw.read(_EDGE_BYTES)
                raw.seek(max(0, file.num_bytes - _EDGE_BYTES))
                hashes.append(xxhash.xxh3_64_hexdigest(head + raw.read(_EDGE_BYTES)))
        return hashes

    @cached_property
    def format(self) -> FileFormat:
        """What the first file holds. Raises: DataError: names of other files say that they hold something else."""
        first = self.files[0]
        with reading_errors(first.path), self.storage.open(first.path, "rb") as raw:
            is_parquet = raw.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        found = FileFormat.PARQUET if is_parquet else FileFormat.TEXT
        for file in self.files:
            if file.path.endswith(_PARQUET_NAMES) != is_parquet and (not is_parquet or "." in Path(file.path).name):
                raise DataError(
                    f"{file.path} is {'no' if is_parquet else 'a'} Parquet file by its name, {first.path} holds "
                    f"{found.value}",
                    expected="files of one format: text (plain or gzip), or Parquet",
                    do="keep each format in a folder of its own",
                )
        return found


@contextmanager
def reading_errors(path: str, where: Callable[[], str] = str) -> Iterator[None]:
    """Turn what storage raises while a file is read into typed errors; `where` says how far reading had come."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFound(f"{path} is gone", do="the data must stay while a job trains on it") from err
    except PermissionError as err:
        raise AccessDenied(f"no permission to read {path}", do="give this user access") from err
    except _store_errors() as err:
        raise Unreachable(
            f"reading {path} failed{where()}: {err}", do="try again, or copy the data to a local folder"
        ) from err


def is_local(storage: Any) -> bool:
    """Return whether a file's path in this storage is one of the operating system."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(storage, LocalFileSystem)


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
