"""The dense state up to format 1.1, which is read and no longer written: one segment of raw tensors and one JSON block.

The block names the tensors and holds all that is no tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from ett.checkpoint.canonical_json import canonical_json
from ett.checkpoint.dtypes import ITEM_BYTES
from ett.checkpoint.segment import SegmentIdentity, StoredFile
from ett.checkpoint.segment_reader import Segment, open_segment
from ett.checkpoint.store import Store
from ett.checkpoint.tensor_bytes import bytes_tensor, dtype_name, tensor_bytes

TENSORS, DOCUMENT = 0, 1


def segment_digest(tensors: Mapping[str, torch.Tensor], tree: dict[str, Any]) -> str:
    """Return the xxh3_128 of the dense state: names, dtypes, shapes and bytes of tensors, and what is not a tensor.

    The loader's part is left out: it may hold how far ahead a reader is, which equal runs need not share.
    """
    parts = [
        [name, dtype_name(tensor, name), list(tensor.shape), xxhash.xxh3_128_hexdigest(tensor_bytes(tensor).data)]
        for name, tensor in sorted(tensors.items())
        if not name.startswith("loader.")
    ]
    rest = {part: value for part, value in tree.items() if part != "loader"}
    return xxhash.xxh3_128_hexdigest(canonical_json([parts, rest]))


def read_dense_segment(
    store: Store, stored: StoredFile, identity: SegmentIdentity
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the tree, every byte verified. Raises: CorruptState."""
    with open_segment(store, stored, identity) as segment:
        document = _read_document(segment)
        records = segment.blocks(TENSORS)
        tensors, used = {}, 0
        for name, dtype, shape in document["items"]:
            size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
            data, filled = np.empty(size, np.uint8), 0
            while filled < size:
                if used == len(records) or int(records[used]["length"]) > size - filled:
                    raise segment.corrupt(f"has no whole data for {name}")
                filled += len(segment.read_block(records[used], f"tensor {name}", data[filled:]))
                used += 1
            tensors[name] = bytes_tensor(data, dtype, tuple(shape))
        if used != len(records):
            raise segment.corrupt("has more data than tensors")
        return tensors, document["tree"]


def _read_document(segment: Segment) -> dict[str, Any]:
    records = segment.blocks(DOCUMENT)
    if len(records) != 1:
        raise segment.corrupt("does not hold one JSON block")
    document: dict[str, Any] = json.loads(segment.read_block(records[0], "json").tobytes())
    return document
