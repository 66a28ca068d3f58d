"""Threads that take turns: one runs at a time, and at every pause a seed chooses which goes on."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stepper:
    """`run` the actors; what they call may `pause`, until something holds if that is given."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._turn: dict[int, threading.Semaphore] = {}
        self._until: dict[int, Callable[[], bool]] = {}
        self._paused = threading.Semaphore(0)
        self._failures: list[BaseException] = []

    def run(self, *actors: Callable[[], None]) -> None:
        """Raises: what an actor raised; AssertionError: all wait, for ever."""
        threads = [threading.Thread(target=self._act, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
            self._paused.acquire()
        while self._until and not self._failures:
            able = sorted(me for me, until in self._until.items() if until())
            assert able, "every actor waits for another one"
            me = self._rng.choice(able)
            self._turn[me].release()
            self._paused.acquire()
        if self._failures:
            raise self._failures[0]
        for thread in threads:
            thread.join()

    def pause(self, until: Callable[[], bool] = lambda: True) -> None:
        me = threading.get_ident()
        self._until[me] = until
        self._paused.release()
        self._turn[me].acquire()

    def _act(self, actor: Callable[[], None]) -> None:
        me = threading.get_ident()
        self._turn[me] = threading.Semaphore(0)
        self.pause()
        try:
            actor()
        except BaseException as err:  # noqa: BLE001 - a thread's exception would be lost otherwise
            self._failures.append(err)
        del self._until[me]
        self._paused.release()


class SteppedLock:
    """As `TableLock`; `excludes=False`: everybody comes in."""

    def __init__(self, stepper: Stepper, *, excludes: bool = True) -> None:
        self._stepper, self._excludes = stepper, excludes
        self._owner, self._depth = 0, 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._stepper.pause(lambda: not self._excludes or self._owner in (0, me))
        self._owner = me
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth or not self._excludes:
            self._owner = 0
        self._stepper.pause()

    @contextmanager
    def patiently(self) -> Iterator[None]:
        with self:
            yield

    @contextmanager
    def let_go(self) -> Iterator[None]:
        depth, self._depth, self._owner = self._depth, 0, 0
        yield
        with self:
            self._depth = depth + 1
