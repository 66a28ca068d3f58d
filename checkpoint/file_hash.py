"""The hash of a local file, and whether a file is the one that a manifest lists; needs no store."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from ett.checkpoint.segment import StoredFile, unhashed_end

_READ_BYTES = 4 << 20


def file_hash(path: Path) -> str:
    """Return the xxh3_128 of a file."""
    return _hash_and_end(path, 0)[0]


def stored_bytes(path: str, data: bytes) -> StoredFile:
    """Return what a manifest says of a file of these bytes."""
    return StoredFile(path=path, bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))


def is_intact(path: Path, stored: StoredFile) -> bool:
    """Return whether the file has the size and every byte of the manifest's."""
    end = unhashed_end(stored)
    try:
        return path.stat().st_size == stored.bytes and _hash_and_end(path, len(end)) == (stored.xxh3_128, end)
    except FileNotFoundError:
        return False


def _hash_and_end(path: Path, length: int) -> tuple[str, bytes]:
    """Return the xxh3_128 of a file but for its last `length` bytes, and these."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        end, offset = os.fstat(file.fileno()).st_size - length, 0
        while offset < end and (got := os.preadv(file.fileno(), [buffer[: end - offset]], offset)):
            hasher.update(buffer[:got])
            offset += got
        return hasher.hexdigest(), os.pread(file.fileno(), length, max(0, end))
