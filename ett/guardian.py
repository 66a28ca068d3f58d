"""Ends a job's workers when their supervisor is gone: a tiny process that waits for the end of a pipe.

Run as `python -I -S guardian.py`, its stdin the read end of a pipe that only the supervisor holds open. Lines on it:
`watch PID START_TICKS` for each worker, `forget` when the supervisor has ended them itself. At the end of file every
process of the watched workers' sessions is killed. The kernel's parent-death signal (`ett/worker.py`) ends the workers
themselves; this ends their children too.
"""

import os
import signal
import sys
import time

KILL_ROUNDS, ROUND_S = 40, 0.05


def stat_fields(pid: int) -> tuple[int, int] | None:
    """Return (session, start time in ticks) of a live process, or None where there is none or only a zombie is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the command's name before it may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else (int(fields[3]), int(fields[19]))


def session_members(workers: dict[int, int]) -> list[int]:
    """Return the live processes of the workers' sessions; a worker leads the session of its own pid.

    Args:
        workers: start ticks by pid. A process that is older than the worker belongs to an earlier life of that pid.
    """
    members = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        found = stat_fields(int(name))
        if found is not None and found[0] in workers and found[1] >= workers[found[0]]:
            members.append(int(name))
    return [pid for pid in members if pid != os.getpid()]


def kill_sessions(workers: dict[int, int]) -> list[int]:
    """SIGKILL every process of the workers' sessions until none is left, for 2 s at most; return those that are."""
    for _ in range(KILL_ROUNDS):
        members = session_members(workers)
        if not members:
            return []
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it ended by itself meanwhile
        time.sleep(ROUND_S)
    return session_members(workers)


def main() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    workers: dict[int, int] = {}
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "watch":
            workers[int(numbers[0])] = int(numbers[1])
        elif verb == "forget":
            workers.clear()
    if workers:
        kill_sessions(workers)


if __name__ == "__main__":
    main()
