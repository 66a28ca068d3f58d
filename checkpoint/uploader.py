"""Commits on their way from the buffer to the remote folder: in order, behind training, until they have arrived."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
)

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.file_hash import is_intact
from ett.checkpoint.given_up import leave_note, read_note
from ett.checkpoint.random_wait import random_wait
from ett.checkpoint.restore_checks import check_size
from ett.checkpoint.retention import retire
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.worker_threads import in_threads
from ett.clock import Clock
from ett.errors import Conflict, CorruptState, EttError, Unreachable
from ett.raised import raised_by

log = logging.getLogger(__name__)
T = TypeVar("T")

FILES_AT_ONCE = 4
GIVE_UP_S = 3600.0  # a commit that cannot be sent for so long is given up; its files stay in the buffer
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
LAST_S = 600.0  # longest that close() waits for what is on its way
EXIT_S = 60.0  # longest that a program that never called close() is kept
STOPPED_S = 3.0  # longest that a job that was told to stop waits for what is on its way
REQUEST_S = 1.0  # and then for the request that is under way
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Uploaded:
    commit: Commit
    num_bytes: int  # sent by this rank
    seconds: float


class _Dropped(Exception):
    """A commit is not to be sent any more: a rank has given it up and all have been told why, or this is the end."""


class Uploader:
    """One rank's: sends its own files; rank 0's also makes the commit, when all ranks' files are there.

    Ranks learn of each other through files: a rank's fragment is sent after its other files, and who cannot send its
    files leaves a note (given_up.py), in the buffer if rank 0 sees it there.
    """

    def __init__(self, store: BufferedStore, rank: int, world_size: int, *, keep_last: int, clock: Clock) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._keep_last, self._clock = keep_last, clock
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._pending: deque[tuple[Commit, int]] = deque()  # with this rank's bytes
        self._done: list[Uploaded] = []
        self._failure: EttError | None = None
        self._failed_seq = 0  # of `_failure`
        self._trouble = ""  # why the request that is tried now has failed so far
        self._given_up: list[int] = []  # by this rank, since the last call of take_given_up
        self._dropped: set[int] = set()  # given up by any rank, as all know
        self._notes = store.local if store.has_local_commits else store.remote
        self._thread: threading.Thread | None = None
        self._sent_commits = CommitCache()
        self._sent: set[str] = set()  # of the commit before: a chain lists most of its files again
        self.newest_remote = 0  # rank 0: the newest commit that this life has made there

    def submit(self, commit: Commit) -> None:
        """Send a commit of the buffer, after those before it."""
        num_bytes = sum(file.bytes for file in self.share(commit))
        with self._changed:
            self._pending.append((commit, num_bytes))
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ckpt-upload", daemon=True)
            self._thread.start()
            # A daemon thread ends with the interpreter, and what it uses before that: it is waited for before both.
            threading._register_atexit(self._drain_at_exit)  # type: ignore[attr-defined]

    def wait_for_room(self, num_bytes: int, limit_bytes: int, longest_s: float) -> None:
        """Return when `num_bytes` more fit into the buffer, or nothing is on its way.

        Raises: Unreachable: too little was sent for `longest_s`. What the upload of a commit raised: once, but a
            Conflict always.
        """
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._failure or not self._pending or self._waiting_bytes() + num_bytes <= limit_bytes,
                longest_s,
            )
            self._raise_failure()
            if not has_room:
                raise self._behind(longest_s, "this save was given up; nothing that was committed is lost")

    def take_uploaded(self) -> list[Uploaded]:
        """Return what has arrived since the last call, in order."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def take_given_up(self) -> list[int]:
        """Return the numbers of the commits that this rank has given up since the last call."""
        with self._changed:
            given_up, self._given_up = self._given_up, []
            return given_up

    def drop(self, seqs: set[int]) -> None:
        """Go on without these commits: a rank has given them up, and all ranks have raised why."""
        with self._changed:
            self._dropped |= seqs
            if self._failed_seq in seqs and not isinstance(self._failure, Conflict):
                self._failure = None

    def drain(self, timeout_s: float = LAST_S) -> None:
        """Return when nothing is on its way: what follows a commit that was given up is sent all the same.

        Raises: as `wait_for_room`.
        """
        with self._changed:
            is_done = self._changed.wait_for(lambda: not self._pending, timeout_s)
            self._raise_failure()
            if not is_done:
                raise self._behind(timeout_s, "the buffer keeps it; the next start of the job on this host sends it")

    def drain_for_stop(self) -> None:
        """Wait a few seconds for what is on its way, and log what then stays in the buffer. Raises: Conflict."""
        try:
            self.drain(STOPPED_S)
        except Conflict:
            raise
        except EttError:  # why a commit was given up was logged when it happened
            with self._changed:
                waiting = self._waiting() if self._pending else ""
                why = self._last_answer()
            if waiting:
                log.warning("stopping: %s; the next start of the job on this host sends them%s", waiting, why)

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread after the request that is under way; what is left stays in the buffer.

        Args: timeout_s: longest wait for that request; it then ends with the process.
        """
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def drop_copies(self, commit: Commit, kept: set[str]) -> None:
        """Remove this rank's local files of a commit but those that a newer one needs, and rank 0's record of it."""
        if self._rank == 0:
            self._store.local.delete(commit_name(commit.seq))
        for file in self.share(commit):
            if file.path not in kept:
                self._store.local.delete(file.path)

    def share(self, commit: Commit) -> list[StoredFile]:
        """Return the files that this rank sends: its own, and those of ranks that a smaller world does not have."""
        tables = [(file.identity.writer, file.stored) for table in commit.tables for file in table.files]
        dense = [(file.writer, file.stored) for file in commit.dense.files] if commit.dense else []
        files = [*tables, *dense, *enumerate(commit.fragments), *((0, stored) for stored in commit.lists)]
        return [stored for writer, stored in files if writer % self._world_size == self._rank]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._stop.is_set())
                if self._stop.is_set():
                    return
                commit, num_bytes = self._pending[0]
            began_ns = self._clock.mono_ns()
            failure = raised_by(partial(self._send, commit))
            if failure is None:
                seconds = (self._clock.mono_ns() - began_ns) / 1e9
                self._ended(commit, Uploaded(commit, num_bytes, seconds), None)
            elif isinstance(failure, _Dropped):
                self._ended(commit, None, None)
            else:
                self._give_up(commit, failure)

    def _give_up(self, commit: Commit, err: BaseException) -> None:
        failure = err if isinstance(err, EttError) else Unreachable(f"{type(err).__name__}: {err}", code="S003")
        log.error("commit %d of step %d was not uploaded: %s", commit.seq, commit.step, failure)
        if self._rank != 0 and not self._stop.is_set():
            try:
                leave_note(self._notes, commit, self._rank, failure)
            except (EttError, OSError) as unsaid:
                log.warning("rank 0 learns of it at the next save only: %s", unsaid)
        self._ended(commit, None, failure)

    def _ended(self, commit: Commit, uploaded: Uploaded | None, failure: EttError | None) -> None:
        with self._changed:
            self._pending.popleft()
            if uploaded is not None:
                self._done.append(uploaded)
                self.newest_remote = commit.seq if self._rank == 0 else 0
            if failure is not None and not self._stop.is_set() and commit.seq not in self._dropped:
                self._failure, self._failed_seq = failure, commit.seq
                self._given_up.append(commit.seq)
            if isinstance(failure, Conflict):
                self._failure = failure
                self._pending.clear()  # another life has taken over: what is left can never be committed
            self._changed.notify_all()

    def _send(self, commit: Commit) -> None:
        self._check_wanted(commit)
        fragments = {file.path for file in commit.fragments}
        mine = [file for file in self.share(commit) if file.path not in self._sent]
        in_threads([file for file in mine if file.path not in fragments], self._send_file, FILES_AT_ONCE)
        in_threads([file for file in mine if file.path in fragments], self._send_file, FILES_AT_ONCE)
        if self._rank == 0:
            in_threads(range(len(commit.fragments)), lambda writer: self._wait_for(commit, writer), FILES_AT_ONCE)
            in_threads(mine, lambda file: self._retried(lambda: check_size(self._store.remote, file)), FILES_AT_ONCE)
        self._sent = {file.path for file in self.share(commit)}
        if self._rank == 0:
            self._retried(lambda: CommitLog(self._store.remote, self._sent_commits).append(commit))
            retire(self._store.remote, self._keep_last, self._sent_commits)

    def _send_file(self, stored: StoredFile) -> None:
        path = self._store.local.root / stored.path
        if not path.exists():
            self._retried(lambda: check_size(self._store.remote, stored))  # sent by an earlier life
            return
        if not is_intact(path, stored):
            raise CorruptState(f"{path} does not match its checksum before it was sent", do="check the buffer's disk")
        self._retried(lambda: self._store.remote.put_file(stored.path, path, stored.xxh3_128))

    def _wait_for(self, commit: Commit, writer: int) -> None:
        """Return when a rank has sent a writer's fragment, and with it everything else. Raises: why it cannot."""
        fragment, rank, waited_s = commit.fragments[writer], writer % self._world_size, 0.0
        while True:
            try:
                self._retried(lambda: check_size(self._store.remote, fragment))
                return
            except CorruptState as err:
                if self._stop.wait(POLL_S) or waited_s > GIVE_UP_S:
                    raise Unreachable(f"{fragment.path} did not arrive: {err.fact}", code="S005") from err
                waited_s += POLL_S
            self._check_wanted(commit)
            failure = self._retried(lambda: read_note(self._notes, commit, rank)) if rank else None
            if failure is not None:
                raise failure

    def _check_wanted(self, commit: Commit) -> None:
        with self._changed:
            if commit.seq in self._dropped:
                raise _Dropped

    def _retried(self, action: Callable[[], T]) -> T:
        if self._stop.is_set():
            raise _Dropped  # nothing is begun after the end, however long the request before it took
        retrying = Retrying(
            stop=stop_any(stop_after_delay(GIVE_UP_S), stop_when_event_set(self._stop)),
            wait=random_wait(FIRST_WAIT_S, LONGEST_WAIT_S),
            retry=retry_if_exception_type(Unreachable),
            sleep=sleep_using_event(self._stop),
            before_sleep=self._warn,
            reraise=True,
        )
        result = retrying(action)
        self._trouble = ""
        return result

    def _warn(self, state: RetryCallState) -> None:
        err = state.outcome.exception() if state.outcome else None
        self._trouble = err.fact if isinstance(err, EttError) else str(err)
        log.warning("the upload waits and tries again (attempt %d): %s", state.attempt_number, err)

    def _waiting_bytes(self) -> int:
        return sum(num_bytes for _, num_bytes in self._pending)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            err = self._failure
            if not isinstance(err, Conflict):
                self._failure = None
            raise err

    def _behind(self, waited_s: float, what: str) -> Unreachable:
        return Unreachable(
            self._waiting() + self._last_answer(),
            expected=f"an upload that ends within {waited_s:g} s",
            do=f"check that the store answers and how fast; {what}",
            code="S005",
        )

    def _waiting(self) -> str:
        steps = ", ".join(str(commit.step) for commit, _ in self._pending)
        return f"the checkpoints of steps {steps} wait in {self._store.local.uri} for {self._store.uri}"

    def _last_answer(self) -> str:
        """Return the end of a sentence: nothing while no request has failed, as one may not have had the time to."""
        return f"; the last answer was: {self._trouble}" if self._trouble else ""

    def _drain_at_exit(self) -> None:
        if self._stop.is_set():
            return
        try:
            self.drain(EXIT_S)
        except EttError as err:
            log.error("%s", err)
