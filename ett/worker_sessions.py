"""No process outlives its supervisor or its attempt: the guardian's other end, and the proof for a new supervisor."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import IO

from ett import guardian
from ett.clock import boot_id
from ett.errors import Conflict
from ett.guardian import Watched
from ett.job_folder import JobFolder
from ett.process_identity import ProcessIdentity

CLOSE_S = 10.0  # the guardian needs 2 s to kill, and looks at every process of the host meanwhile
OLD_WORKERS_WAIT_S = 2.5  # workers end by themselves within 2 s of their supervisor's death


class GuardianPipe:
    """The supervisor's end of its guardian; when this process ends, the guardian sees the end of the pipe."""

    def __init__(self, folder: JobFolder) -> None:
        self._watched = Watched(str(folder.path))
        read_fd, write_fd = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, str(folder.path)],
            stdin=read_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(read_fd)
        self._pipe: IO[str] = os.fdopen(write_fd, "w", buffering=1)

    def watch(self, attempt: int, workers: Iterable[ProcessIdentity]) -> None:
        for identity in workers:
            self._watched.add(attempt, identity.pid, identity.start_ticks)
            self._tell(f"watch {attempt} {identity.pid} {identity.start_ticks}\n")

    def end_all(self) -> None:
        """Kill what still runs of the watched attempts, now."""
        self._watched.kill()
        self._watched.clear()
        self._tell("forget\n")

    def end_rank(self, place: int, worker: int) -> None:
        """Kill what a dead worker left running, now; the other ranks live on. `place` is its local rank."""
        self._watched.kill((place, worker))

    def close(self) -> None:
        """Let the guardian end what still runs, and wait for it, for CLOSE_S at most: somebody may have stopped it."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _tell(self, line: str) -> None:
        # Somebody may have killed it: the parent-death signal still ends the workers themselves.
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(line)


def end_old_workers(folder: JobFolder, attempt: int) -> None:
    """Return when no process of that attempt runs on this boot any more. Raises: Conflict: one cannot be ended."""
    watched = Watched(str(folder.path))
    watched.add_attempt(attempt)  # its supervisor may have died before it could write down who the workers are
    for identity in folder.read_workers(attempt).values():
        if identity.boot == boot_id():
            watched.add(attempt, identity.pid, identity.start_ticks)
    deadline_s = time.monotonic() + OLD_WORKERS_WAIT_S
    while watched.alive() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if left := watched.kill():
        raise Conflict(
            f"job {folder.name}: processes {left} of attempt {attempt} still run and cannot be killed",
            expected="no process of an earlier attempt, or two would write one set of checkpoints",
            do="they hang in the kernel: free the device or restart the host, then launch again",
            code="L009",
        )
