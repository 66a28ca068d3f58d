from __future__ import annotations

import threading

import pytest

from ett.in_time import ended_in_time


def test_what_ends_has_ended() -> None:
    done: list[int] = []
    assert ended_in_time(lambda: done.append(1), 60, "work")
    assert done == [1]


def test_what_hangs_is_left_to_a_thread_that_keeps_no_process() -> None:
    let_go = threading.Event()
    assert not ended_in_time(let_go.wait, 0.01, "hangs")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "hangs"]
    assert thread.daemon
    let_go.set()
    thread.join(60)


def test_what_it_raises_is_raised_here() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ended_in_time(fail, 60, "fails")
