"""The files of the dense state as bytes: each is read once, front to back, hashed, and handed out on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from ett.checkpoint.buffer_pool import BufferPool, Bytes
from ett.checkpoint.dense_entry import DenseEntry
from ett.checkpoint.restore_checks import altered, missing
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import ObjectReader, Store
from ett.checkpoint.worker_threads import BrokenOffError, in_threads, num_io_threads
from ett.errors import CorruptState

PIECE_BYTES = 8 << 20  # that are read, hashed and handed out at once


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes that follow each other in a file, from byte `at` on, and in memory."""

    at: int
    target: Bytes


def read_runs(
    store: Store,
    stored: StoredFile,
    runs: list[Run],
    buffers: BufferPool,
    is_broken_off: Callable[[], bool] = lambda: False,
) -> None:
    """Read a file and fill runs from it, which do not overlap.

    Args: is_broken_off: asked before each piece of the file whether it is wanted still.
    Raises: CorruptState: missing or altered; what the runs hold then is not to be used. BrokenOffError: not wanted.
    """
    try:
        with store.open(stored.path) as reader, buffers.taken(min(PIECE_BYTES, max(1, stored.bytes))) as buffer:
            digest = _hand_out(reader, stored, sorted(runs, key=lambda run: run.at), buffer, is_broken_off)
    except FileNotFoundError as err:
        raise missing(stored) from err
    _check_hash(digest, stored)


def check_dense_files(store: Store, dense: DenseEntry) -> None:
    """Read every file that torch.distributed.checkpoint has written, and the document. Raises: CorruptState."""
    buffers = BufferPool()
    in_threads(dense.files, lambda file: read_runs(store, file.stored, [], buffers), num_io_threads())


def _hand_out(
    reader: ObjectReader, stored: StoredFile, runs: list[Run], buffer: Bytes, is_broken_off: Callable[[], bool]
) -> str:
    if reader.size != stored.bytes:
        raise CorruptState(f"{stored.path} is {reader.size} bytes, the manifest says {stored.bytes}")
    hasher, offset, first = xxhash.xxh3_128(), 0, 0
    while offset < stored.bytes:
        if is_broken_off():
            raise BrokenOffError(stored.path)
        piece = _read(reader, stored, offset, buffer[: stored.bytes - offset])
        if not len(piece):
            break
        hasher.update(piece.data)
        end = offset + len(piece)
        while first < len(runs) and runs[first].at + len(runs[first].target) <= offset:
            first += 1
        for run in runs[first:]:
            if run.at >= end:
                break
            start, stop = max(run.at, offset), min(run.at + len(run.target), end)
            run.target[start - run.at : stop - run.at] = piece[start - offset : stop - offset]
        offset = end
    return hasher.hexdigest()


def _check_hash(found: str, stored: StoredFile) -> None:
    if found != stored.xxh3_128:
        raise altered(stored)


def _read(reader: ObjectReader, stored: StoredFile, offset: int, into: Bytes) -> Bytes:
    try:
        return into[: reader.read_into(offset, into.data)]
    except OSError as err:
        raise CorruptState(f"{stored.path} cannot be read at byte {offset}: {err.strerror}") from err
