"""Sorted ids, packed: differences to the id before, bytes shuffled by significance, zstd level 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from ett.native import native

RAW = 0
DELTA_U32 = 1
DELTA_U64 = 2

Ids = NDArray[np.int64]
NATIVE = native("ett.checkpoint._ids")


def pack_ids(ids: Ids) -> tuple[int, bytes]:
    """Return (codec, payload) of strictly ascending ids; the first id is not in the payload but in the block index."""
    # Unsigned arithmetic wraps, so a difference is right even from the lowest to the highest int64.
    if NATIVE is not None:
        ids = np.ascontiguousarray(ids)
        room = np.empty(8 * (len(ids) - 1), np.uint8)
        item_bytes = NATIVE.shuffle(_address(ids), len(ids), _address(room))
        codec = DELTA_U32 if item_bytes == 4 else DELTA_U64
        return codec, zstandard.ZstdCompressor(level=1).compress(room[: item_bytes * (len(ids) - 1)].data)
    steps = np.diff(ids.view(np.uint64))
    codec = DELTA_U32 if not len(steps) or int(steps.max()) < 1 << 32 else DELTA_U64
    narrow = steps.astype("<u4" if codec == DELTA_U32 else "<u8")
    shuffled = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, narrow.itemsize).T)
    return codec, zstandard.ZstdCompressor(level=1).compress(shuffled.tobytes())


def unpack_ids(codec: int, payload: memoryview, first_id: int, num_rows: int) -> Ids | None:
    """Return the int64 ids [num_rows], strictly ascending, or None when the payload cannot be theirs."""
    item_bytes = {DELTA_U32: 4, DELTA_U64: 8}.get(codec)
    if item_bytes is None or num_rows < 1:
        return None
    expected = (num_rows - 1) * item_bytes
    try:
        raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=max(1, expected))
    except zstandard.ZstdError:
        return None
    if len(raw) != expected:
        return None
    shuffled = np.frombuffer(raw, np.uint8)
    if NATIVE is None:
        return _unshuffled(shuffled.reshape(item_bytes, num_rows - 1), first_id)
    ids = np.empty(num_rows, np.int64)
    return ids if NATIVE.unpack(_address(shuffled), item_bytes, num_rows, first_id, _address(ids)) else None


def _unshuffled(shuffled: NDArray[np.uint8], first_id: int) -> Ids | None:
    item_bytes, num_steps = shuffled.shape
    steps = np.ascontiguousarray(shuffled.T).reshape(-1).view(f"<u{item_bytes}")
    ids = np.empty(num_steps + 1, np.uint64)
    ids[0] = np.array(first_id, np.int64).view(np.uint64)
    np.cumsum(steps, dtype=np.uint64, out=ids[1:])
    ids[1:] += ids[0]
    found = ids.view(np.int64)
    return found if (found[1:] > found[:-1]).all() else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
