"""Old commits are removed beside training: deleting files takes as long as the file system likes."""

from __future__ import annotations

import logging
import threading

from ett.checkpoint.at_exit import end_with_program, program_ends
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.retention import retire
from ett.checkpoint.store import Store
from ett.raised import raised_by

log = logging.getLogger(__name__)
NAME = "ett-checkpoint-retention"
CLOSE_S, HURRIED_CLOSE_S = 60.0, 3.0  # that `close` waits for what is being deleted


class RetentionThread:
    """A thread that lives while there is something to delete, one at a time. Rank 0 only.

    It may fall behind: whatever was committed meanwhile is taken into account by one more run. What it deletes is in no
    commit that it keeps, and a later commit has new files and those of the one before; so a save never waits for it.
    """

    def __init__(self, store: Store, keep_last: int, cache: CommitCache) -> None:
        self._store, self._keep_last, self._cache = store, keep_last, cache
        self._lock = threading.Lock()
        self._is_wanted = False
        self._thread: threading.Thread | None = None
        self._num_failures = 0
        end_with_program(self)

    def after_commit(self) -> None:
        """Have what is too many deleted; returns at once. Where the program ends, the next start does it."""
        if program_ends():
            return
        with self._lock:
            self._is_wanted = True
            if self._thread is None:
                # A daemon: a process that ends leaves old commits or orphans, which the next save or start removes.
                self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
                self._thread.start()

    def end_with_program(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(HURRIED_CLOSE_S)

    def retire(self) -> None:
        """Delete now, in this thread."""
        retire(self._store, self._keep_last, self._cache)

    def close(self, *, wait: bool) -> None:
        """Wait for what is being deleted, a minute at most, or three seconds; what is left goes another time."""
        thread = self._thread
        if thread is None:
            return
        seconds = CLOSE_S if wait else HURRIED_CLOSE_S
        thread.join(seconds)
        if thread.is_alive():
            log.warning("left old commits under %s: not deleted within %.0f s", self._store.uri, seconds)

    def _run(self) -> None:
        while self._takes_wish():
            failure = raised_by(self.retire)
            if failure is not None:  # not foreseen by `retire`; saving matters more
                self._num_failures += 1
                log.error("could not remove old commits (%d failures so far)", self._num_failures, exc_info=failure)

    def _takes_wish(self) -> bool:
        with self._lock:
            is_wanted, self._is_wanted = self._is_wanted, False
            if not is_wanted:
                self._thread = None
            return is_wanted
