"""The JSON document beside the files of torch.distributed.checkpoint: where each tensor's bytes are, and all else.

With it nobody needs the pickles that torch writes: a tensor is one or several boxes of it, each a run of raw bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ett.checkpoint.canonical_json import Json, seal, unseal, well_formed
from ett.checkpoint.dtypes import ITEM_BYTES
from ett.checkpoint.segment import SegmentIdentity
from ett.errors import CorruptState

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A box of a tensor: its elements in row-major order, little-endian, `num_bytes` from byte `at` of a file."""

    offsets: Shape
    sizes: Shape
    file: str  # its name within the folder
    at: int
    num_bytes: int

    def as_json(self) -> Json:
        place = {"file": self.file, "at": self.at, "bytes": self.num_bytes}
        return {"offsets": list(self.offsets), "sizes": list(self.sizes), **place}

    @classmethod
    def from_json(cls, entry: Json) -> Chunk:
        return cls(
            offsets=tuple(entry["offsets"]),
            sizes=tuple(entry["sizes"]),
            file=entry["file"],
            at=entry["at"],
            num_bytes=entry["bytes"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseTensor:
    name: str
    dtype: str
    shape: Shape
    digest: str  # 16 hexadecimal digits (dense_digest.py)
    chunks: tuple[Chunk, ...]  # they tile the tensor

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * int(np.prod(self.shape, dtype=np.int64))

    def as_json(self) -> Json:
        what = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "digest": self.digest}
        return {**what, "chunks": [chunk.as_json() for chunk in self.chunks]}

    @classmethod
    def from_json(cls, entry: Json) -> DenseTensor:
        return cls(
            name=entry["name"],
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            digest=entry["digest"],
            chunks=tuple(Chunk.from_json(chunk) for chunk in entry["chunks"]),
        )


def document_bytes(identity: SegmentIdentity, tensors: list[DenseTensor], tree: Json) -> bytes:
    whose = {"ckpt_uuid": identity.ckpt_uuid, "seq_parent": identity.seq_parent, "step": identity.step}
    entries = [tensor.as_json() for tensor in tensors]
    return seal({"document": "dense", **whose, "tensors": entries, "tree": tree})


def parse_document(data: bytes, identity: SegmentIdentity, path: str) -> tuple[list[DenseTensor], dict[str, Any]]:
    """Return the tensors and the tree. Raises: CorruptState: not this commit's document."""
    fields = unseal(data)
    expected = {"ckpt_uuid": identity.ckpt_uuid, "seq_parent": identity.seq_parent, "step": identity.step}
    if fields is None or fields.get("document") != "dense":
        raise CorruptState(f"dense state: {path} does not match its checksum", do="restore another commit")
    found = {key: fields.get(key) for key in expected}
    if found != expected:
        raise CorruptState(f"dense state: {path} belongs elsewhere: {found}", expected=str(expected))
    with well_formed(path):
        return [DenseTensor.from_json(entry) for entry in fields["tensors"]], fields["tree"]
