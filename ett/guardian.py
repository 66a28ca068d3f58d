"""Ends a job's workers when their supervisor is gone: a tiny process that waits for the end of a pipe.

Run as `python -I -S guardian.py JOB_DIR`, its stdin the read end of a pipe that only the supervisor holds open. Lines
on it: `watch ATTEMPT PID START_TICKS` for each worker, `forget` when the supervisor has ended them itself. At the end
of file every process of the watched attempts is killed. The kernel's parent-death signal (`ett/worker.py`) ends the
workers themselves; this ends their children too, also those that left the worker's session.
"""

import os
import signal
import sys
import time

KILL_ROUNDS, ROUND_S = 40, 0.05


class Watched:
    """Processes of some attempts of one job: the sessions that their workers lead, and whoever carries their names.

    Args:
        job_dir: as in the workers' environment.
    """

    def __init__(self, job_dir: str) -> None:
        self._job_marker = b"ETT_JOB_DIR=" + os.fsencode(job_dir)
        self._attempt_markers: set[bytes] = set()
        self._workers: dict[int, int] = {}  # start ticks by pid

    def add_attempt(self, attempt: int) -> None:
        self._attempt_markers.add(b"ETT_ATTEMPT=%d" % attempt)

    def add(self, attempt: int, pid: int, start_ticks: int) -> None:
        self.add_attempt(attempt)
        self._workers[pid] = start_ticks

    def clear(self) -> None:
        self._attempt_markers.clear()
        self._workers.clear()

    def alive(self) -> list[int]:
        """Return the pids of those that run; zombies do not."""
        if not self._attempt_markers:
            return []
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if pid != os.getpid() and self._is_member(pid)]

    def alive_of(self, place: int, worker: int) -> list[int]:
        """Return those of one rank: its worker's session, and whoever carries its local rank, which never changes."""
        marker = b"LOCAL_RANK=%d" % place
        found = []
        for pid in self.alive():
            fields = stat_fields(pid)
            if fields is not None and (fields[0] == worker or marker in environ_of(pid)):
                found.append(pid)
        return found

    def kill(self, of_rank: tuple[int, int] | None = None) -> list[int]:
        """SIGKILL all of them, or those of a local rank and its worker, for 2 s at most; return those that are left."""

        def alive() -> list[int]:
            return self.alive() if of_rank is None else self.alive_of(*of_rank)

        for _ in range(KILL_ROUNDS):
            pids = alive()
            if not pids:
                return []
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue  # it ended by itself meanwhile
            time.sleep(ROUND_S)
        return alive()

    def _is_member(self, pid: int) -> bool:
        found = stat_fields(pid)
        if found is None:
            return False
        session, start_ticks = found
        # A process older than the worker belongs to an earlier life of that pid.
        if session in self._workers and start_ticks >= self._workers[session]:
            return True
        environ = environ_of(pid)
        return self._job_marker in environ and not self._attempt_markers.isdisjoint(environ)


def environ_of(pid: int) -> set[bytes]:
    """Return the process's `NAME=value` pairs; empty where it is gone, or somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def stat_fields(pid: int) -> tuple[int, int] | None:
    """Return (session, start time in ticks) of a live process, or None where there is none or only a zombie is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the command's name before it may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else (int(fields[3]), int(fields[19]))


def main() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    watched = Watched(sys.argv[1])
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "watch":
            watched.add(int(numbers[0]), int(numbers[1]), int(numbers[2]))
        elif verb == "forget":
            watched.clear()
    watched.kill()


if __name__ == "__main__":
    main()
