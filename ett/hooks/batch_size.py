"""How many samples a batch holds: the length of its first tensor, wherever that is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 4
# Many formats put counts and ids first; these names say what the first dimension is.
_NAMED = ("input_ids", "labels", "label", "x", "input", "inputs", "pixel_values")


def batch_size(batch: object) -> int | None:
    """Return the length of the first dimension of the batch's first tensor or array, None where there is none.

    Looks into tuples, lists, dataclass-like objects and mappings (first at the names that say what a tensor is), and
    takes the length of a list of texts or numbers as it is. A tensor without dimensions says nothing.
    """
    if type(batch) in (list, tuple) and batch:  # what a loader gives as a rule, and this runs at every step
        shape = getattr(batch[0], "shape", None)  # type: ignore[index]
        if shape:
            return int(shape[0])
    return _size(batch, 0)


def _size(value: Any, depth: int) -> int | None:
    shape = getattr(value, "shape", None)
    if shape is not None and not isinstance(value, type):
        return int(shape[0]) if len(shape) else None
    if depth > MAX_DEPTH or value is None or isinstance(value, str | bytes | int | float):
        return None
    if _is_jagged(value):
        return int(value.stride())
    if isinstance(value, Mapping):
        named = [value[name] for name in _NAMED if name in value]
        return _first([*named, *value.values()], depth)
    if isinstance(value, Sequence):
        if value and all(isinstance(item, str | bytes | int | float) for item in value):
            return len(value)
        return _first(value, depth)
    return _first(vars(value).values(), depth) if hasattr(value, "__dict__") else None


def _first(values: Any, depth: int) -> int | None:
    for value in values:
        found = _size(value, depth + 1)
        if found is not None:
            return found
    return None


def _is_jagged(value: object) -> bool:
    """True for TorchRec's KeyedJaggedTensor, whose values lie back to back: their number is not that of samples."""
    torchrec = sys.modules.get("torchrec.sparse.jagged_tensor")
    return torchrec is not None and isinstance(value, torchrec.KeyedJaggedTensor)
