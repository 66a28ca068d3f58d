"""What a program saves: the state of a training, or something else (predictions, statistics)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_DEPTH = 3
_PARTS = ("model", "state_dict", "network", "module", "generator", "weights")
_PARAMETERS = ("weight", "bias")


class StateKind(NamedTuple):
    is_state: bool  # holds a model's or an optimizer's state
    has_optimizer: bool


def state_kind(value: object) -> StateKind:
    """Tell by the keys of its mappings, and by modules in it; looks at no number."""
    is_state = has_optimizer = False
    for name, item in _items("", value, 0):
        if isinstance(item, Mapping) and {"state", "param_groups"} <= item.keys():
            is_state = has_optimizer = True
        elif hasattr(item, "shape"):
            is_state = is_state or name.rsplit(".", 1)[-1] in _PARAMETERS
        elif isinstance(item, Mapping):
            is_state = is_state or (any(part in name.lower() for part in _PARTS) and _has_tensor(item))
        elif hasattr(item, "state_dict"):
            is_state = True
    return StateKind(is_state, has_optimizer)


def _items(name: str, value: Any, depth: int) -> list[tuple[str, Any]]:
    found = [(name, value)]
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            found += [pair for key, item in value.items() for pair in _items(str(key), item, depth + 1)]
        elif isinstance(value, list | tuple) and len(value) <= 16:
            found += [pair for item in value for pair in _items(name, item, depth + 1)]
    return found


def _has_tensor(mapping: Mapping[Any, Any]) -> bool:
    return any(hasattr(item, "shape") for item in mapping.values())
