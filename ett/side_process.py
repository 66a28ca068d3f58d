"""A process that `ett launch` starts beside the job; it ends when we do, and never holds the job up."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# A scheduler tells every process of a job, and those that ask for no notice would die of it.
KILLED_S = 2.0  # for a killed process to be gone
_NOTICES = (signal.SIGUSR1, signal.SIGUSR2)


class SideProcess:
    """Its standard input is a pipe of ours: end of file tells it that we ended, however that happened."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told_s: float | None = None

    def start(self, command: Sequence[str], log: Path, environ: Mapping[str, str], cwd: Path | None = None) -> None:
        """Start `command`, its output appended to `log`, whose folder is made. Raises: OSError."""
        self._process = start_beside(command, log, environ, cwd, stdin=subprocess.PIPE)

    def tell_end(self) -> None:
        """Tell it that the job is over, so that it sends what is left beside others that do; returns at once."""
        if self._told_s is None:
            self._told_s = time.monotonic()
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def end(self, wait_s: float) -> int | None:
        """Let it send what is left, and return its exit code; None where nothing was started.

        It has `wait_s` since it was told, and what was waited for others meanwhile is of it.

        One that is killed and does not go, since the kernel holds it, is left behind.
        """
        if self._process is None:
            return None
        self.tell_end()
        assert self._told_s is not None
        try:
            return self._process.wait(max(0.0, self._told_s + wait_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
        try:
            return self._process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL


def start_beside(
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    cwd: Path | None = None,
    *,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a process that no notice to the job's processes ends, its output appended to `log`. Raises: OSError."""
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output, _without_notices():
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=dict(environ),
            cwd=cwd,
            start_new_session=True,  # Ctrl-C is for us; it ends after our last record
        )


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Start processes within that never get a notice: unlike a handler, a mask is there from their first instruction.

    One that comes to us meanwhile waits until the end.
    """
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTICES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
