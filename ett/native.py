"""Native extensions of ours, which a source tree without a compiler lacks: Python stands in for each of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def native(name: str) -> Any:
    """Return an extension module by its full name, None where it is not built."""
    try:
        return import_module(name)
    except ImportError:
        return None
