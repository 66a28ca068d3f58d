"""Checkpoints in a local folder: temporary name, fsync, link() to the final name, fsync of the folder.

`link` refuses a taken name where `rename` would replace it silently: it is what makes a name create-only.
"""

from __future__ import annotations

import builtins
import errno
import filecmp
import io
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from ett.checkpoint.buffer_pool import PAGE_BYTES, BufferPool, Bytes, is_page_aligned
from ett.checkpoint.direct_file import DirectFile
from ett.checkpoint.store import Entry
from ett.errors import Conflict
from ett.os_failure import os_failure
from ett.store_uri import CHECKPOINTS

DIRECT_BUFFER_BYTES = 8 << 20  # of a file that is being written (ADR 0003)
SMALLEST_DIRECT_READ_BYTES = 1 << 20
COPY_BYTES = 4 << 20
_TEMPORARY = ".tmp-"


class LocalReader:
    """What is large and lies aligned, in the file and in memory, is read past the page cache (ADR 0003)."""

    def __init__(self, file: io.FileIO) -> None:
        # No read-ahead: what is read next is read past the page cache, and would be read twice.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._direct: int | None = None

    def read_into(self, offset: int, target: memoryview) -> int:
        done = 0
        if len(target) >= SMALLEST_DIRECT_READ_BYTES and offset % PAGE_BYTES == 0 and is_page_aligned(target):
            done = self._read(self._direct_file(), offset, target[: len(target) // PAGE_BYTES * PAGE_BYTES])
        return done + self._read(self._file.fileno(), offset + done, target[done:])

    def close(self) -> None:
        if self._direct is not None:
            os.close(self._direct)

    def _read(self, descriptor: int, offset: int, target: memoryview) -> int:
        done = 0
        while done < len(target):
            count = os.preadv(descriptor, [target[done:]], offset + done)
            done += count
            if count == 0 or count % PAGE_BYTES:  # the end; or a place from which only the page cache can go on
                break
        return done

    def _direct_file(self) -> int:
        if self._direct is None:
            name = f"/proc/self/fd/{self._file.fileno()}"  # the very file, whatever stands under its name by now
            try:
                self._direct = os.open(name, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:  # a file system without it, such as tmpfs
                self._direct = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        return self._direct


class LocalStore:
    def __init__(self, root: Path, setting: str = CHECKPOINTS) -> None:
        """Args: setting: that names the folder, for messages."""
        self.root = root
        self.uri = str(root)
        self._setting = setting
        self._buffers = BufferPool()

    def create(self, name: str, data: bytes) -> None:
        with self.create_stream(name) as file:
            file.write(data)
        self.sync([name])

    @contextmanager
    def create_stream(self, name: str) -> Iterator[BinaryIO]:
        final = self.root / name
        temporary = final.with_name(f"{_TEMPORARY}{final.name}-{uuid.uuid4().hex}")
        with self._translated(final):
            self._make_folder(final.parent)
            try:
                with (
                    self._buffers.taken(DIRECT_BUFFER_BYTES) as buffer,
                    closing(self._new_file(temporary, buffer)) as file,
                ):
                    yield cast(BinaryIO, file)
                    file.flush()
                    self._fsync(file.fileno())
                self._give_name(temporary, final)
            finally:
                self._unlink(temporary)

    def put_file(self, name: str, path: Path, digest: str) -> None:
        with open(path, "rb", buffering=0) as source:
            try:
                with self.create_stream(name) as file:
                    shutil.copyfileobj(source, file, COPY_BYTES)
            except FileExistsError:
                if not filecmp.cmp(path, self.root / name, shallow=False):
                    raise
        self.sync([name])

    def sync(self, names: list[str]) -> None:
        for folder in sorted({(self.root / name).parent for name in names}):
            with self._translated(folder):
                try:
                    self._sync_folder(folder)
                except FileNotFoundError as err:
                    raise _swept(folder) from err

    def read(self, name: str) -> bytes:
        with self._translated(self.root / name):
            return (self.root / name).read_bytes()

    @contextmanager
    def open(self, name: str) -> Iterator[LocalReader]:
        with self._translated(self.root / name):
            with open(self.root / name, "rb", buffering=0) as file, closing(LocalReader(file)) as reader:
                yield reader

    def size(self, name: str) -> int:
        with self._translated(self.root / name):
            return (self.root / name).stat().st_size

    def list(self, prefix: str) -> list[str]:
        return [name for name in self._walk(prefix) if not _is_temporary(name)]

    def entries(self, prefix: str) -> builtins.list[Entry]:
        found = []
        for name in self.list(prefix):
            with suppress(FileNotFoundError), self._translated(self.root / name):  # it may go meanwhile
                facts = (self.root / name).stat()
                found.append(Entry(name, facts.st_size, facts.st_mtime))
        return found

    def unfinished(self) -> dict[str, str]:
        found = [name for name in self._walk("") if _is_temporary(name)]
        return {name: _final_name(name) for name in found}

    def _walk(self, prefix: str) -> builtins.list[str]:
        top = self.root / prefix
        with self._translated(top):
            try:
                names = [
                    os.path.join(folder, file) for folder, _, files in os.walk(top, onerror=_raise) for file in files
                ]
            except FileNotFoundError:
                return []
        begin = len(str(self.root).rstrip("/")) + 1
        return sorted(name[begin:] for name in names)

    def delete(self, name: str) -> None:
        with self._translated(self.root / name):
            self._unlink(self.root / name)
            self._drop_empty_folders((self.root / name).parent)

    @contextmanager
    def _translated(self, path: Path) -> Iterator[None]:
        """Raise what the system says of a path as a typed error."""
        try:
            yield
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as err:
            raise os_failure(err, path, elsewhere=self._setting) from err

    def _new_file(self, path: Path, buffer: Bytes) -> DirectFile:
        return DirectFile(path, buffer)

    def _give_name(self, temporary: Path, final: Path) -> None:
        try:
            self._link(temporary, final)
        except FileNotFoundError as err:  # swept: because the name was taken, or because its writer was replaced
            if final.exists():
                raise FileExistsError(f"{final} is taken") from err
            raise _swept(final) from err

    def _make_folder(self, folder: Path) -> None:
        while not folder.is_dir():
            first = folder
            while not first.parent.is_dir():
                first = first.parent
            with suppress(FileNotFoundError):  # whoever deletes the last file of the parent removes that: once more
                try:
                    first.mkdir(exist_ok=True)
                except FileExistsError as err:  # a file, or a link to nowhere: not a name that another writer has taken
                    if first.is_dir() or not os.path.lexists(first):  # or one that was made and has gone again
                        continue
                    raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(first)) from err
                self._sync_folder(first.parent)

    def _drop_empty_folders(self, folder: Path) -> None:
        while folder not in (self.root, self.root.parent):
            try:
                folder.rmdir()
            except OSError as err:
                # A folder that is a link to another place is none that could go.
                if err.errno in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST, errno.ENOTDIR):
                    return
                raise
            folder = folder.parent

    def _fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._fsync(descriptor)
        finally:
            os.close(descriptor)

    def _link(self, temporary: Path, final: Path) -> None:
        os.link(temporary, final)

    def _unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


def _swept(path: Path) -> Conflict:
    return Conflict(
        f"{path} was removed while it was written: another process has opened these checkpoints",
        expected="one running job per checkpoint folder",
        do="let the newer process run; this one must stop",
        code="L008",
    )


def _is_temporary(name: str) -> bool:
    return PurePosixPath(name).name.startswith(_TEMPORARY)


def _final_name(temporary: str) -> str:
    path = PurePosixPath(temporary)
    return str(path.with_name(path.name.removeprefix(_TEMPORARY).rpartition("-")[0]))


def _raise(err: OSError) -> None:
    raise err
