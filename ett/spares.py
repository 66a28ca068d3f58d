"""The supervisor's spare processes: each has imported torch and the trainer, waits, and becomes a rank, started anew.

A spare is no rank: it holds no device, is in no record and in nobody's count. It ends with the supervisor (the kernel
kills it, and its pipe ends) and with the job. Importing this is light.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ett import worker
from ett.replaced_rank import ReplacedRank
from ett.spare_process import WAITING_NAME, Role, changed_environ

LOOK_INTERVAL_S = 0.5
PROGRAM = (sys.executable, "-u", "-m", "ett.spare_process")  # and a pipe's number
LONGEST_IMPORT_S = 60.0  # of torch and the trainer; what takes longer hangs, on a network disk say
END_S = 5.0  # for one that was killed to be gone
MOST_LOST = 3  # spares that ended by themselves: then something is wrong with all of them
# What says that a process belongs to a rank or an attempt (ett/guardian.py): a spare does to none.
_OF_RANKS = ("RANK", "LOCAL_RANK", "ETT_ATTEMPT")


class Spare:
    """One process that waits.

    Args:
        log: what it says before it is a rank is appended to this file.
    Raises: OSError: it cannot be started.
    """

    def __init__(self, log: Path) -> None:
        self._environ = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        self._begun_s = time.monotonic()
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        self._pipe = open(write_fd, "wb", buffering=0)  # noqa: SIM115 - open as long as the spare waits
        try:
            with log.open("ab") as said:
                self.proc = subprocess.Popen(
                    [sys.executable, "-I", "-S", worker.__file__, str(os.getpid()), *PROGRAM, str(read_fd)],
                    env=self._environ,
                    stdout=said,
                    stderr=said,
                    pass_fds=(read_fd,),
                    start_new_session=True,
                )
        except OSError:
            self._pipe.close()
            raise
        finally:
            os.close(read_fd)

    @property
    def is_alive(self) -> bool:
        return self.proc.poll() is None

    def become(self, environ: Mapping[str, str], out: str, err: str) -> bool:
        """Make it the rank of that environment, its output appended to `out` and `err`; False: it cannot be told."""
        role = Role(environ=changed_environ(self._environ, {**os.environ, **environ}), out=out, err=err)
        line = role.line()
        try:
            # One write: a pipe takes it whole or, full or without a reader, not at all.
            return self.is_alive and self._will_read() and self._pipe.write(line) == len(line)
        except OSError:
            return False
        finally:
            self._pipe.close()

    def _will_read(self) -> bool:
        """Return whether it reads its role soon, as far as the kernel tells: a pipe takes bytes for nobody as well."""
        name, state = _name_and_state(self.proc.pid)
        if name == WAITING_NAME:
            return state not in ("T", "t", "D")
        return state not in ("T", "t") and time.monotonic() - self._begun_s <= LONGEST_IMPORT_S

    def end(self) -> None:
        self._pipe.close()
        if self.is_alive:  # else its number may be another group's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.proc.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
            self.proc.wait(END_S)


class Spares:
    """As many spares as asked for, replaced when one was used.

    Args:
        log: the file that holds what they say while they wait.
        say: is told where spares end by themselves.
    """

    def __init__(self, count: int, log: Path, say: Callable[[str], None]) -> None:
        self._count, self._log, self._say = count, log, say
        self._waiting: list[Spare] = []
        self._num_lost = 0
        self._next_look_s = 0.0

    def tend(self, is_training: Callable[[], bool]) -> None:
        """Start what is missing, from the main thread, once the job trains: its own start comes first."""
        now_s = time.monotonic()
        if not self._count or now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        for spare in [spare for spare in self._waiting if not spare.is_alive]:
            self._waiting.remove(spare)
            spare.end()
            self._lose(f"exit code {spare.proc.returncode}")
        if len(self._waiting) >= self._count or not is_training():
            return
        while len(self._waiting) < self._count:
            try:
                self._waiting.append(Spare(self._log))
            except OSError as err:
                self._lose(str(err))
                return

    def take(self, environ: Mapping[str, str], out: str, err: str) -> ReplacedRank | None:
        """Return a spare that is the rank of that environment from now on; None where there is none."""
        while self._waiting:
            spare = self._waiting.pop(0)  # the oldest: it has imported most
            if spare.become(environ, out, err):
                return ReplacedRank(spare.proc)
            spare.end()
        return None

    def close(self) -> None:
        """End those that wait."""
        for spare in self._waiting:
            spare.end()
        self._waiting.clear()
        self._count = 0
        with contextlib.suppress(OSError):
            if not self._log.stat().st_size:
                self._log.unlink()

    def _lose(self, why: str) -> None:
        self._num_lost += 1
        if self._num_lost >= MOST_LOST:
            self._count = 0
        what = "no more are started" if not self._count else "another one is started"
        self._say(f"a spare process ended by itself ({why}; {self._log}): {what}, lost ranks still come back")


def _name_and_state(pid: int) -> tuple[str, str]:
    """Return the kernel's name of a process and the letter of its state; "" where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", ""
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[0]
