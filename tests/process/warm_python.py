"""A Python that has imported what `ett launch` imports, torch above all, and forks: processes without that import.

What a fork runs is what `python ARGS` runs after its imports: the same modules in a process of its own with its own
arguments, environment, folder and files. `test_supervisor.py` starts supervisors with the command itself as well.

Run as a program, with the descriptor of a socket and the names of modules to import, this is that Python; it ends when
the other end of the socket closes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = ("ett.launch", "ett.elastic_agent", "ett.recovery.restart_policy", "ett.recovery.hang_policy")
# What a rank imports besides, by its first optimizer and its first save at the latest: 2.4 s of a processor.
OF_RANKS = ("ett.trainer.loop", "torch.distributed.checkpoint", "torch._dynamo")


class WarmProcess:
    """A forked process: what of `subprocess.Popen` the tests use."""

    def __init__(self, channel: socket.socket) -> None:
        self._answers = channel.makefile("rb")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self._take()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, the negative signal that it ended by.

        Raises: subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._take()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _take(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()


def start_warm(
    args: list[str], environ: dict[str, str], folder: Path, out: Path, err: Path, *, more: tuple[str, ...] = ()
) -> WarmProcess:
    """Start `python ARGS` in `folder`; its output is appended to the files `out` and `err`.

    Args: more: modules that it shall have imported as well; it is forked from a Python of its own kind then.
    """
    for path in (out, err):
        path.touch()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files = {"folder": str(folder), "stdout": str(out), "stderr": str(err)}
        asked = json.dumps({"args": args, "environ": environ} | files).encode()
        socket.send_fds(_warm_python(more), [len(asked).to_bytes(4, "big")], [theirs.fileno()])
        _warm_python(more).sendall(asked)
        return WarmProcess(ours)


@functools.cache
def _warm_python(more: tuple[str, ...]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ETT_")}
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *IMPORTED, *more],
            stdin=subprocess.DEVNULL,
            env=environ | {"OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
        )
    return ours


def serve(orders: socket.socket) -> dict[str, Any]:
    """Fork for each order, and tell who asked how that process ended; forked processes alone return: their order."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    channels: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            while channels and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with channels.pop(ended[0]) as channel, contextlib.suppress(OSError):  # nobody waits for it any more
                    channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))
        if orders in ready:
            size, fds, _, _ = socket.recv_fds(orders, 4, 1)
            if not size:
                os._exit(0)
            order: dict[str, Any] = json.loads(orders.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            channel = socket.socket(fileno=fds[0])
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (woken, wakes):
                    os.close(fd)
                for mine in (orders, channel, *channels.values()):
                    mine.close()
                return order
            channels[pid] = channel
            channel.sendall(b"%d\n" % pid)


def become(order: dict[str, Any]) -> None:
    """Run what `python ARGS` runs, as that process."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for stream in (sys.stdout, sys.stderr):
        fd = os.open(order[stream.name.strip("<>")], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(fd, stream.fileno())
        os.close(fd)
    args: list[str] = order["args"]
    if args[0] == "-m":
        sys.argv, sys.path[0] = args[1:], os.getcwd()
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = args, str(Path(args[0]).parent)
        runpy.run_path(args[0], run_name="__main__")


def main() -> NoReturn:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.exit()


if __name__ == "__main__":
    main()
