"""Effective training time for large recommendation models: measure it exactly, and win the rest back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ett.tracker import Run, init

__all__ = ["Run", "init"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Loaded on first use, so that `import ett` costs nothing to programs that only need a part of it.
        from ett import tracker

        return getattr(tracker, name)
    raise AttributeError(f"module 'ett' has no attribute {name!r}")
