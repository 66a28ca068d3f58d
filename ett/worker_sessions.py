"""No process outlives its supervisor or its attempt: the guardian's other end, and the proof for a new supervisor.

A worker leads a session of its own, so its children are found by the session even after it is gone.
"""

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
from ett.job_folder import JobFolder
from ett.process_identity import ProcessIdentity

OLD_WORKERS_WAIT_S = 2.5  # workers end by themselves within 2 s of their supervisor's death


class GuardianPipe:
    """The supervisor's end of its guardian; this process ends first, the guardian sees the end of the pipe."""

    def __init__(self) -> None:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-I", "-S", guardian.__file__]
        self._process = subprocess.Popen(
            command,
            stdin=read_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        os.close(read_fd)
        self._pipe: IO[str] = os.fdopen(write_fd, "w", buffering=1)

    def watch(self, workers: Iterable[ProcessIdentity]) -> None:
        for identity in workers:
            self._tell(f"watch {identity.pid} {identity.start_ticks}\n")

    def forget(self) -> None:
        self._tell("forget\n")

    def close(self) -> None:
        """Let it end what still runs, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        try:
            self._pipe.write(line)
        except BrokenPipeError:
            return  # somebody killed it: the parent-death signal still ends the workers themselves


def end_old_workers(folder: JobFolder, attempt: int) -> None:
    """Return when no process of that attempt runs on this boot any more. Raises: Conflict: one cannot be ended."""
    workers = folder.read_workers(attempt)
    deadline_s = time.monotonic() + OLD_WORKERS_WAIT_S
    old = {identity.pid: identity.start_ticks for identity in workers.values() if _is_of_this_boot(identity)}
    while old and guardian.session_members(old) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if old and (left := guardian.kill_sessions(old)):
        raise Conflict(
            f"job {folder.name}: processes {left} of attempt {attempt} still run and cannot be killed",
            expected="no process of an earlier attempt, or two would write one set of checkpoints",
            do="they hang in the kernel: free the device or restart the host, then launch again",
            code="L009",
        )


def _is_of_this_boot(identity: ProcessIdentity) -> bool:
    return identity.boot == boot_id()
