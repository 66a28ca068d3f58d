"""Loaded only as `ett.checkpoint`: a second copy under another name would split its state (ADR 0001)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "ett.checkpoint":
    raise ImportError(
        f"import this package as ett.checkpoint, not as {__name__} (docs/adr/0001-folders-at-the-root.md)"
    )

if TYPE_CHECKING:
    from ett.checkpoint.checkpointer import Checkpointer, RestoredPosition
    from ett.checkpoint.config import CheckpointConfig
    from ett.checkpoint.table import StateSpec, TableRows, TableShard

__all__ = ["CheckpointConfig", "Checkpointer", "RestoredPosition", "StateSpec", "TableRows", "TableShard"]

_MODULES = {
    "CheckpointConfig": "config",
    "Checkpointer": "checkpointer",
    "RestoredPosition": "checkpointer",
    "StateSpec": "table",
    "TableRows": "table",
    "TableShard": "table",
}


def __getattr__(name: str) -> object:
    # Only Checkpointer needs torch: the command line reads configs and commits without it.
    if name in _MODULES:
        return getattr(import_module(f"ett.checkpoint.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
