"""A state_dict as canonical JSON plus named tensors, and back, exactly; what JSON cannot hold has a tag."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ett.checkpoint.canonical_json import Json
from ett.errors import ConfigError

_TAGS = {"$tensor", "$dict", "$tuple", "$float", "$bytes"}


def encode_state(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Json:
    """Return JSON for a state; tensors go to `tensors` under their path, as they are.

    Raises: ConfigError: a value that cannot be stored exactly; names its path and type.
    """
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Mapping):
        return _encode_mapping(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [encode_state(item, f"{path}.{number}", tensors) for number, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise ConfigError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold",
        expected="tensors, numbers, strings, None, and lists, tuples or dicts of them in every state_dict",
    )


def _encode_mapping(value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> Json:
    if all(isinstance(key, str) for key in value) and not _TAGS & set(value):
        return {key: encode_state(item, f"{path}.{key}", tensors) for key, item in value.items()}
    return {
        "$dict": [
            [encode_state(key, f"{path}.key", tensors), encode_state(item, f"{path}.{key}", tensors)]
            for key, item in value.items()
        ]
    }


def decode_state(value: Json, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what `encode_state` was given; KeyError when a tensor is missing."""
    if isinstance(value, list):
        return [decode_state(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        tag, inner = next(iter(value.items()))
        if tag == "$tensor":
            return tensors[inner]
        if tag == "$tuple":
            return tuple(decode_state(item, tensors) for item in inner)
        if tag == "$float":
            return float(inner)
        if tag == "$bytes":
            return bytes.fromhex(inner)
        if tag == "$dict":
            return {decode_state(key, tensors): decode_state(item, tensors) for key, item in inner}
    return {key: decode_state(item, tensors) for key, item in value.items()}
