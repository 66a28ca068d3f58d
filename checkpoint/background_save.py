"""A save that has been triggered, on its way to its commit while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ett.checkpoint.commit import Commit
from ett.raised import raised_by


class BackgroundSave:
    """Runs at once, in a thread of its own.

    A process that ends waits for it: it would abort if the thread were in native code, and its exit code be lost. The
    thread finds that no others begin any more, and ends, too.
    """

    def __init__(self, step: int, cursor: int, work: Callable[[], Commit]) -> None:
        self.step, self.cursor = step, cursor
        self._work = work
        self._commit: Commit | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ckpt-save")
        self._thread.start()

    def result(self) -> Commit:
        """Wait for the commit. Raises: what the save raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._commit is not None
        return self._commit

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether it has ended, well or not, within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._failure = raised_by(self._save)

    def _save(self) -> None:
        self._commit = self._work()
