"""The digest of the dense state: of each tensor a sum over its elements, which ranks that have parts of it add up.

With `mix`, `fold` and G of digest.py, all modulo 2^64, element e of a tensor, counted row by row from 0, is in lane
l = e mod 1024 of block b = e div 1024, and v is its bytes as a little-endian integer (of 16 bytes: two elements):

    digest of a tensor = sum over its elements of  fold(v ^ mix((2l+1) G)) * (mix((2l+2) G) | 1) * (mix(~b) | 1)

The state's is the xxh3_128 of canonical JSON: [[[name, dtype, shape, digest], …], tree], tensors by name. What belongs
to the loader is left out of both: it may hold how far ahead a reader is, which equal runs need not share. Native where
it is built, else numpy, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from ett.checkpoint.canonical_json import Json, canonical_json
from ett.checkpoint.digest import U64, G, Words, address_of, fold, mix
from ett.checkpoint.tensor_bytes import dtype_name, tensor_bytes
from ett.native import native

LANES = 1024
_BLOCKS_AT_ONCE = 32  # 256 KiB: the passes over them stay in the L2 cache
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_COUNTERS = np.arange(1, 2 * LANES + 1, dtype=U64) * G
_KEYS, _ODDS = mix(_COUNTERS)[0::2].copy(), mix(_COUNTERS)[1::2] | U64(1)
_MASK = (1 << 64) - 1
NATIVE = native("ett.checkpoint._dense_digest")


def dense_digest(tensors: Iterable[tuple[str, str, tuple[int, ...], str]], tree: dict[str, Any]) -> str:
    """Return the digest of a state. Args: tensors: name, dtype, shape and digest of each, in any order."""
    parts: Json = [[*tensor] for tensor in sorted(tensors) if not tensor[0].startswith("loader.")]
    rest = {part: value for part, value in tree.items() if part != "loader"}
    return xxhash.xxh3_128_hexdigest(canonical_json([parts, rest]))


def digest_of_whole(tensors: Mapping[str, Tensor], tree: dict[str, Any]) -> str:
    """Return the digest of a state of whole tensors."""
    shapes = {name: (tuple(tensor.shape), (0,) * tensor.dim()) for name, tensor in tensors.items()}
    sums = {name: box_sum(tensor_bytes(tensors[name]), shape, at, shape) for name, (shape, at) in shapes.items()}
    return dense_digest(
        ((name, dtype_name(t, name), shapes[name][0], combine_sums([sums[name]])) for name, t in tensors.items()), tree
    )


def box_sum(data: NDArray[np.uint8], shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """Return what a box of a tensor adds to its digest. Args: data: its bytes, row by row."""
    num = int(np.prod(sizes, dtype=np.int64))
    if not num:
        return 0
    width = min(8, len(data) // num)
    words = data.view(_WORDS[width])
    each = len(words) // num  # 2 for complex128
    total = 0
    for at, start, length in _runs(shape, offsets, sizes):
        total += _run_sum(words[at * each : (at + length) * each], start * each)
    return total & _MASK


def combine_sums(sums: Iterable[int]) -> str:
    return f"{sum(sums) & _MASK:016x}"


def _runs(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield where a box and its tensor have elements in the same order: position in either, and how many."""
    split = len(shape)
    while split and sizes[split:] == shape[split:]:
        split -= 1
    length = int(np.prod(sizes[split:], dtype=np.int64))
    strides = [int(np.prod(shape[n + 1 :], dtype=np.int64)) for n in range(len(shape))]
    first = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    for number, index in enumerate(np.ndindex(*sizes[:split])):
        start = first + sum(i * stride for i, stride in zip(index, strides, strict=False))
        yield number * length, start, length


def _run_sum(words: NDArray[Any], start: int) -> int:
    """Return the sum over elements that follow each other from element `start` on."""
    if NATIVE is not None:
        words = np.ascontiguousarray(words)
        place = address_of(words), words.itemsize, len(words), start
        return int(NATIVE.run_sum(*place, address_of(_KEYS), address_of(_ODDS), LANES))
    total, done = 0, 0
    while done < len(words):
        block, lane = divmod(start + done, LANES)
        count = min(len(words) - done, _BLOCKS_AT_ONCE * LANES - lane)
        blocks = -(-(lane + count) // LANES)
        padded = np.zeros(blocks * LANES, U64)
        padded[lane : lane + count] = words[done : done + count]
        folded: Words = fold(padded.reshape(blocks, LANES) ^ _KEYS)
        flat = folded.reshape(-1)
        flat[:lane] = 0
        flat[lane + count :] = 0
        factors = mix(~np.arange(block, block + blocks, dtype=U64)) | U64(1)
        total += int(((folded @ _ODDS) * factors).sum(dtype=U64))
        done += count
    return total
