"""What is under way when a program ends is ended first: before the interpreter stops the threads that it needs."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from typing import Protocol


class Unfinished(Protocol):
    def end_with_program(self) -> None:
        """End within seconds; nothing is raised."""


_open: weakref.WeakSet[Unfinished] = weakref.WeakSet()
_registered: list[bool] = []
_ending = threading.Event()


def end_with_program(what: Unfinished) -> None:
    """Have `what.end_with_program()` called when the program ends, if it is still there then."""
    if not _registered:
        _registered.append(True)
        _register(_end_all)
    _open.add(what)


def program_ends() -> bool:
    """Return whether it is ending: a thread that is begun now would be stopped with the interpreter, wherever it is."""
    return _ending.is_set()


def _register(callback: Callable[[], object]) -> None:
    """Call back before executors are shut down, which comes before what atexit calls; late, where Python has no way."""
    getattr(threading, "_register_atexit", atexit.register)(callback)


def _end_all() -> None:
    _ending.set()
    for what in list(_open):
        what.end_with_program()
