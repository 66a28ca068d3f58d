"""The hash of a local file, and whether a file is the one that a manifest lists; needs no store."""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from ett.checkpoint.segment import HASH_AND_END_BYTES, StoredFile

_READ_BYTES = 4 << 20


def file_hash(path: Path, *, without_last: int = 0) -> str:
    """Return the xxh3_128 of a file but for its last bytes."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        end, offset = os.fstat(file.fileno()).st_size - without_last, 0
        while offset < end and (got := os.preadv(file.fileno(), [buffer[: end - offset]], offset)):
            hasher.update(buffer[:got])
            offset += got
    return hasher.hexdigest()


def stored_bytes(path: str, data: bytes) -> StoredFile:
    """Return what a manifest says of a file of these bytes."""
    return StoredFile(path=path, bytes=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))


def is_intact(path: Path, stored: StoredFile) -> bool:
    """Return whether the file has the size and the hash of the manifest; a segment's leaves out where it stands."""
    try:
        if path.stat().st_size != stored.bytes:
            return False
        without = HASH_AND_END_BYTES if path.suffix == ".seg" else 0
        return file_hash(path, without_last=without) == stored.xxh3_128
    except FileNotFoundError:
        return False
