"""A safetensors file whose tensors are written in pieces, in any order: no tensor is ever whole in memory.

    u64 length of the header | header, JSON: name -> {dtype, shape, data_offsets}, padded with spaces | the tensors

Source: the format's description, github.com/huggingface/safetensors#format; the library that it comes with takes whole
tensors. tests/checkpoint/test_safetensors_export.py reads the files with that library.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.dtypes import ITEM_BYTES
from ett.checkpoint.table_segments import Bytes
from ett.errors import ConfigError

_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
TORCH_NAMES = {theirs: ours for ours, theirs in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """head: all that stands before the tensors. starts: of each tensor after it, in the order in which they stand."""

    head: bytes
    starts: dict[str, int]
    num_bytes: int  # of the tensors


def layout_of(tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> Layout:
    """Lay a file out. Raises: ConfigError: a type that the format does not have."""
    starts: dict[str, int] = {}
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    # The widest elements first, so that every tensor is aligned to its own.
    for tensor in sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype]):
        if tensor.dtype not in _DTYPES:
            raise ConfigError(
                f"{tensor.name} is {tensor.dtype}, which safetensors does not have",
                expected=f"one of {', '.join(_DTYPES)}",
                do="export with --format checkpoint; or publish without that table (--tables)",
            )
        starts[tensor.name], start = end, end
        end += tensor.num_bytes
        header[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return Layout(len(text).to_bytes(8, "little") + text, starts, end)


class SafetensorsFile:
    def __init__(self, path: Path, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> None:
        """Create the file with all its room. Raises: ConfigError: a type that the format does not have."""
        layout = layout_of(tensors, metadata)
        self._starts, self._data = layout.starts, len(layout.head)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, self._data + layout.num_bytes)
        self._write_at(0, memoryview(layout.head))

    def write(self, name: str, offset: int, data: Bytes) -> None:
        """Write contiguous bytes of a tensor from its byte `offset` on; by several threads at a time."""
        self._write_at(self._data + self._starts[name] + offset, data.reshape(-1).data)

    def close(self) -> None:
        """Make it durable."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _write_at(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], offset + done)
