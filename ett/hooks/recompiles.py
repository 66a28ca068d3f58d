"""Compilations that torch makes again after the first step -> records `recompile`, with the guard that failed.

torch tells of each compilation through a function that is private to it: no other file knows it (2.11 to 2.13). Where a
torch has it no more, recompilations are counted by the callbacks of `torch._dynamo.callback`, without code and guard.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ett.hooks.around import around, quiet
from ett.tracker import Run

REPORTER = "record_compilation_metrics"
_OURS = os.path.join(Path(__file__).parent, "")
MAX_TEXT = 300  # of a guard or a place: a record's line is held below 4,096 bytes


class RecompileWatch:
    """Writes a record for each recompilation of this process after its first step.

    A graph that is compiled for the first time, however late, is none; nor is its backward pass.
    """

    def __init__(self, run: Run, is_on: Callable[[], bool] = lambda: True) -> None:
        self._run, self._is_on = run, is_on
        self._begun_ns: int | None = None

    def install(self, dynamo: Any) -> None:
        """Args: dynamo: torch._dynamo, imported."""
        if callable(getattr(dynamo.utils, REPORTER, None)):
            # torch takes it from there by its name for each thread's first compilation.
            setattr(dynamo.utils, REPORTER, around(getattr(dynamo.utils, REPORTER), self._reported, _nothing))
        else:
            self._count_only(dynamo.callback.callback_handler)

    def _reported(self, args: tuple[Any, ...], kwargs: object) -> None:
        """Args: args: begin and end of a compilation in ns, and what torch measured by name."""
        begin_ns, end_ns, measured = args[:3]
        guard = measured.get("recompile_reason")
        if guard and self._is_due():
            self._write((end_ns - begin_ns) / 1e9, code=place_of(measured), guard=guard_of(str(guard)))

    def _count_only(self, handler: Any) -> None:
        def register() -> None:
            handler.register_start_callback(begun)
            handler.register_end_callback(ended)

        begun, ended = quiet(self._begun), quiet(self._ended)
        register()
        # torch._dynamo.reset() forgets all callbacks.
        handler.clear = around(handler.clear, lambda *_: handler, lambda *_: register())

    def _begun(self, told: Any) -> None:
        """Args: told: whose `compile_id` is "frame/number of its compilation", with "_attempt" where torch restarts."""
        number = str(told.compile_id).rpartition("/")[2].partition("_")[0]
        is_again = number != "0" and told.callback_trigger.name == "DYNAMO"
        self._begun_ns = time.monotonic_ns() if is_again else None

    def _ended(self, told: Any) -> None:
        begun_ns, self._begun_ns = self._begun_ns, None
        if begun_ns is not None and self._is_due():
            self._write((time.monotonic_ns() - begun_ns) / 1e9)

    def _is_due(self) -> bool:
        return self._run.has_stepped and self._is_on()

    def _write(self, seconds: float, **told: str) -> None:
        self._run.emit("recompile", seconds=round(seconds, 6), **told)


def guard_of(reason: str) -> str:
    """Return the guard alone: without the number of the code that it guards, and without what torch says of its cause.

    "0/1: tensor 'x' size mismatch at index 0. expected 3, actual 5  # f(x)  # a.py:3 in f" ends before the first "#".
    """
    text = reason.strip().partition("\n")[0]
    number, found, rest = text.partition(": ")
    text = rest if found and number.replace("/", "").replace("_", "").isdecimal() else text
    return text.partition("  #")[0].strip()[:MAX_TEXT]


def place_of(measured: Mapping[str, Any]) -> str:
    """Return "forward (/src/model.py:12)", the function that is compiled; the end of a long path, where the file is.

    A module of torch's own is compiled through a function of torch's: then the line of the program that called it.
    """
    name, file, line = (measured.get(key) or "?" for key in ("co_name", "co_filename", "co_firstlineno"))
    library = os.path.join(os.path.dirname(str(sys.modules["torch"].__file__)), "")
    if str(file).startswith(os.path.join(library, "_dynamo", "")):
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename.startswith((library, _OURS)):
            frame = frame.f_back
        if frame is not None:
            name, file, line = frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno
    return f"{str(name)[:100]} ({str(file)[-180:]}:{line})"


def _nothing(*_: object) -> None:
    """Nothing is left to do after a report."""
