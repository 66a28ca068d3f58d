"""A save that has been triggered, on its way to its commit while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ett.checkpoint.commit import Commit
from ett.errors import EttError
from ett.raised import raised_by


class BackgroundSave:
    """Runs at once, in a thread of its own, which a process that ends waits for as long as `at_exit.py` says.

    A thread that were in native code then would abort it, and its exit code be lost.
    """

    def __init__(
        self,
        step: int,
        cursor: int,
        work: Callable[[BackgroundSave], Commit],
        *,
        may_block: bool,
        say: Callable[[BaseException], None],
    ) -> None:
        """Args:
        work: writes with this as its boundary.
        may_block: training waits for it as long as it takes.
        say: is told at once, in this thread, what it raised: whoever asks for its result may do so much later.
        """
        self.step, self.cursor, self.may_block = step, cursor, may_block
        self.written: list[str] = []
        self.given_up: EttError | None = None  # why this is to come to nothing; it may have committed by then
        self._work, self._say = work, say
        self._commit: Commit | None = None
        self._failure: BaseException | None = None
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ckpt-save", daemon=True)
        self._thread.start()

    def leave_boundary(self) -> None:
        """Let training go on."""
        self._has_left.set()

    def check(self) -> None:
        """Raises: what it was given up for."""
        if self.given_up is not None:
            raise self.given_up

    def result(self) -> Commit:
        """Wait for the commit. Raises: what the save raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._commit is not None
        return self._commit

    @property
    def came_to_nothing(self) -> bool:
        """Whether it has ended as one that was given up, which has been said."""
        return self.given_up is not None and isinstance(self._failure, type(self.given_up))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it has ended, well or not, within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_for_boundary(self, timeout_s: float) -> bool:
        """Return whether training may go on, within a time."""
        return self._has_left.wait(timeout_s)

    def _run(self) -> None:
        self._failure = raised_by(self._save)
        self._has_left.set()
        if self._failure is not None and not self.came_to_nothing:
            self._say(self._failure)

    def _save(self) -> None:
        self._commit = self._work(self)
