"""Callbacks before and after a function of somebody else, which the program cannot notice.

The native `Around` has no Python frame, so no line of ours stands in a traceback. Where it is not built, a Python
class does the same and does stand there. A callback's own failure is dropped and counted, never raised.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterable
from importlib import import_module
from types import MethodType, TracebackType
from typing import Any

from ett.errors import InjectedError

try:
    _native: Any = import_module("ett.hooks._around")
except ImportError:  # not built: a source tree without a compiler
    _native = None

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any, bool], None]

failures: list[str] = []  # what callbacks of this process raised, the first of them
MAX_FAILURES = 16
on_failure: list[Callable[[str], None]] = []  # told of each that is kept


class _Around:
    """The Python form of `_around.Around`."""

    def __init__(self, function: Callable[..., Any], before: Before, after: After) -> None:
        self.original, self._before, self._after = function, before, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _quietly(self._before, args, kwargs)
        if token is None:
            return self.original(*args, **kwargs)
        result, is_done = None, False
        try:
            result = self.original(*args, **kwargs)
            is_done = True
            return result
        finally:
            _quietly(self._after, token, result, is_done)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> str:
        return str(self.__dict__["__qualname__"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)


def _quietly(callback: Callable[..., Any], *args: Any) -> Any:
    try:
        return callback(*args)
    except BaseException as err:  # BLE001 - a hook must not end a program; what is not ours is raised
        if judge(err):
            return None
        raise


def judge(error: BaseException) -> bool:
    """Return whether a callback's exception is to be dropped; one that is not loses our lines of its traceback.

    A signal handler of the program runs wherever the interpreter is, also in a callback: what it raises is its own.
    What `--chaos` raises stands for an error of the program.
    """
    trace = _handlers_part(error)
    if isinstance(error, InjectedError):
        return False
    if trace is None and isinstance(error, Exception):
        if len(failures) < MAX_FAILURES:
            failures.append(_described(error))
            for tell in on_failure:
                tell(failures[-1])
        return True
    error.__traceback__ = trace
    return False


def _handlers_part(error: BaseException) -> TracebackType | None:
    """Return the traceback from the frame of a signal handler on; None where none is in it."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace


def _code(handler: object) -> object:
    function = getattr(handler, "__func__", handler)
    if not hasattr(function, "__code__") and callable(handler):
        function = getattr(type(handler), "__call__", None)  # noqa: B004 - a callable object's own method
    return getattr(function, "__code__", None)


def _described(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{type(error).__name__}: {error}{place}"[:500]


def around(function: Callable[..., Any], before: Before, after: After) -> Any:
    """Return a callable that does what `function` does, for the program's eyes `function` itself.

    Args:
        before: gets (args, kwargs); what it returns goes to `after`, which is left out for None.
        after: gets (token, result, whether it returned rather than raised).
    """
    wrapped = _Around(function, before, after) if _native is None else _native.Around(function, before, after)
    return functools.update_wrapper(wrapped, function)


def quiet(callback: Callable[..., None]) -> Callable[..., None]:
    """Return `callback` for somebody else to call: it never raises, and debuggers do not step into it."""
    return functools.partial(_quietly, callback) if _native is None else _native.Quiet(callback)


def patch(owners: Iterable[object], name: str, before: Before, after: After) -> None:
    """Put callbacks around the function `name` of the first owner, for all of them (modules that re-export it)."""
    owners = list(owners)
    original = vars(owners[0])[name] if isinstance(owners[0], type) else getattr(owners[0], name)
    wrapped = around(original, before, after)
    for owner in owners:
        setattr(owner, name, wrapped)


def unpatch(owner: Any, name: str) -> None:
    """Give the function back, if what stands there is ours."""
    found = vars(owner).get(name)
    kind = _Around if _native is None else _native.Around
    if isinstance(found, kind):
        setattr(owner, name, found.original)


if _native is not None:
    _native.set_judge(judge)
