"""Effective training time for large recommendation models: measure it exactly, and win the rest back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ett.survivor import restartable
    from ett.tracker import Run, init

__all__ = ["Run", "init", "restartable"]
_MODULES = {"Run": "tracker", "init": "tracker", "restartable": "survivor"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        # Loaded on first use, so that `import ett` costs nothing to programs that only need a part of it.
        return getattr(import_module(f"ett.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ett' has no attribute {name!r}")
