from __future__ import annotations

import signal
import traceback
from types import FrameType
from typing import Any

import pytest

from ett.errors import InjectedError
from ett.hooks import around
from ett.hooks.around import quiet

KINDS = [pytest.param(True, id="native"), pytest.param(False, id="python")]


@pytest.fixture(params=KINDS, autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both forms do the same, but for the frames."""
    monkeypatch.setattr(around, "failures", [])
    if not request.param:
        monkeypatch.setattr(around, "_native", None)
    elif around._native is None:
        pytest.skip("ett/hooks/_around.cpp is not built")
    return bool(request.param)


class Calls:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.seen.append((args, kwargs))
        return "token"

    def after(self, token: str, result: object, is_done: bool) -> None:
        self.seen.append((token, result, is_done))


def divide(a: int, b: int = 1) -> float:
    """Return a / b."""
    return a / b


def test_callbacks_see_arguments_and_result() -> None:
    calls = Calls()
    assert around.around(divide, calls.before, calls.after)(6, b=3) == 2
    assert calls.seen == [((6,), {"b": 3}), ("token", 2, True)]


def test_an_error_of_the_function_passes_and_is_told() -> None:
    calls = Calls()
    with pytest.raises(ZeroDivisionError):
        around.around(divide, calls.before, calls.after)(6, b=0)
    assert calls.seen[1] == ("token", None, False)


def test_a_native_wrapper_stands_in_no_traceback(kind: bool) -> None:
    calls = Calls()
    try:
        around.around(divide, calls.before, calls.after)(6, 0)
    except ZeroDivisionError as err:
        names = [frame.name for frame in traceback.extract_tb(err.__traceback__)]
        assert (names == ["test_a_native_wrapper_stands_in_no_traceback", "divide"]) is kind


def test_it_looks_like_the_function() -> None:
    wrapped = around.around(divide, lambda *_: None, lambda *_: None)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("divide", divide.__doc__, divide)


def test_it_binds_as_a_method_does() -> None:
    class Thing:
        def me(self) -> Thing:
            return self

    calls = Calls()
    around.patch([Thing], "me", calls.before, calls.after)
    thing = Thing()
    assert thing.me() is thing
    assert calls.seen[0] == ((thing,), {})
    around.unpatch(Thing, "me")
    assert thing.me() is thing
    assert len(calls.seen) == 2


def test_a_callback_that_fails_costs_nothing_but_its_note() -> None:
    def fail(*_: object) -> None:
        raise ValueError("mine")

    assert around.around(divide, fail, fail)(6, 3) == 2
    assert around.around(divide, lambda *_: 1, fail)(6, 3) == 2
    quiet(fail)()
    assert len(around.failures) == 3
    assert around.failures[0].startswith("ValueError: mine at ")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_never_dropped(error: type[BaseException]) -> None:
    def interrupted(*_: object) -> None:
        raise error

    with pytest.raises(error):
        around.around(divide, interrupted, interrupted)(6, 3)
    with pytest.raises(error):
        quiet(interrupted)()


def test_what_a_signal_handler_raises_within_a_callback_is_the_programs() -> None:
    class Alarm(Exception):
        pass

    def handle(signum: int, frame: FrameType | None) -> None:
        raise Alarm

    earlier = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(Alarm) as raised:
            around.around(divide, lambda *_: signal.raise_signal(signal.SIGUSR1), lambda *_: None)(6, 3)
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert around.failures == []
    assert "<lambda>" not in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_what_chaos_raises_in_a_hook_is_the_programs_own() -> None:
    def fail(args: object, kwargs: object) -> None:
        raise InjectedError("on purpose")

    seen = around.around(lambda: 1, fail, lambda *_: None)
    with pytest.raises(InjectedError):
        seen()
