"""Tells when a module of somebody else was imported, without importing it and without a line in any traceback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from ett.hooks.around import quiet

Callback = Callable[[Any], None]
# Python cuts the frames of its import system out of tracebacks by this name.
_IMPORT_SYSTEM = "<frozen importlib._bootstrap_external>"


class ModuleWatch:
    """A finder that finds nothing itself: it lets the others find a watched module, and has its end told.

    Attributes:
        last_import_ns: when an import last began or a watched one last ended, on the monotonic clock.
        began_ns: when the import of each watched module began.
    """

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self.last_import_ns = time.monotonic_ns()
        self.began_ns: dict[str, int] = {}
        self.find_spec = _as_import_system(self._find_spec)

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call back with the module when its import has ended; now, if it has already."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            quiet(callback)(module)
        else:
            self._callbacks.setdefault(name, []).append(callback)

    def _find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.last_import_ns = time.monotonic_ns()
        if name not in self._callbacks:
            return None
        self.began_ns[name] = self.last_import_ns
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None:
                self._tell_end(found)
                return found
        return None

    def _tell_end(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if not hasattr(loader, "__dict__") or not hasattr(loader, "exec_module"):
            return
        original, ended = loader.exec_module, quiet(self._ended)

        def exec_module(module: ModuleType) -> None:
            original(module)
            ended(module)

        loader.exec_module = _as_import_system(exec_module)

    def _ended(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and spec.loader is not None:
            vars(spec.loader).pop("exec_module", None)
        for callback in self._callbacks.pop(module.__name__, []):
            quiet(callback)(module)
        self.last_import_ns = time.monotonic_ns()


def _as_import_system(function: Any) -> Any:
    plain = getattr(function, "__func__", function)
    copy = FunctionType(
        plain.__code__.replace(co_filename=_IMPORT_SYSTEM),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    return copy if plain is function else copy.__get__(function.__self__)
