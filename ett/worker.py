"""Becomes the user's process: `python -I -S worker.py SUPERVISOR_PID PROGRAM ARGS…`.

Asks the kernel to kill this process when its supervisor dies, then replaces itself by the program. Nothing of ours is
left in the process, so `sys.argv`, `sys.path`, `__main__` and tracebacks are those of a plain start.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    supervisor, command = int(argv[1]), argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"ett: prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != supervisor:
        sys.exit(1)  # it died before the kernel knew of our wish
    # Set for the supervisor's own process, and not meant for a user's.
    os.environ.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.stderr.write(f"ett: {command[0]}: command not found\n")
        sys.exit(127)
    except OSError as err:
        sys.stderr.write(f"ett: {command[0]}: {err.strerror}\n")
        sys.exit(126)


if __name__ == "__main__":
    main(sys.argv)
