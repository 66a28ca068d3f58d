"""Loaded only as `ett.compile_cache`: a second copy under another name would split its state (ADR 0001)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ != "ett.compile_cache":
    raise ImportError(
        f"import this package as ett.compile_cache, not as {__name__} (docs/adr/0001-folders-at-the-root.md)"
    )

if TYPE_CHECKING:
    from ett.compile_cache.cache import CompileCache
    from ett.compile_cache.config import CompileConfig
    from ett.compile_cache.platform_facts import key_parts

__all__ = ["CompileCache", "CompileConfig", "key_parts"]

_MODULES = {"CompileCache": "cache", "CompileConfig": "config", "key_parts": "platform_facts"}


def __getattr__(name: str) -> object:
    # A recipe is read by every command; fetching needs more than its section.
    if name in _MODULES:
        return getattr(import_module(f"ett.compile_cache.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
