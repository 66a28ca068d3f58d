"""A proxy on the loopback that gives each connection so many bytes a second, as a store of objects does.

`python -m ett.checkpoint.bench.capped_proxy PORT BYTES_PER_S` prints its port and ends with its standard input.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
import time
from contextlib import closing, suppress

_PIECE_BYTES = 256 << 10
_LATE_S = 0.01  # that a sleep was too long is made up for, up to here


class Pace:
    """When the next bytes may go."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._due_s = bytes_per_s, 0.0

    def wait_s(self, num_bytes: int, now_s: float) -> float:
        """Return how long to wait after sending so many bytes."""
        self._due_s = max(self._due_s, now_s - _LATE_S) + num_bytes / self._bytes_per_s
        return max(0.0, self._due_s - now_s)


def _carry(source: socket.socket, target: socket.socket, pace: Pace) -> None:
    """Move what comes to the other side, in the kernel: two processes more must not cost what is measured."""
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)
        with suppress(OSError):
            while count := os.splice(source.fileno(), into, _PIECE_BYTES):
                left = count
                while left:
                    left -= os.splice(out, target.fileno(), left)
                if wait_s := pace.wait_s(count, time.monotonic()):
                    time.sleep(wait_s)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(out)
        os.close(into)


def _serve(client: socket.socket, port: int, bytes_per_s: float) -> None:
    with closing(client), closing(socket.create_connection(("127.0.0.1", port))) as upstream:
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asking = threading.Thread(target=_carry, args=(client, upstream, Pace(1e12)), daemon=True)
        asking.start()
        _carry(upstream, client, Pace(bytes_per_s))
        asking.join()


def _accept(listener: socket.socket, port: int, bytes_per_s: float) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, port, bytes_per_s), daemon=True).start()


def main(port: int, bytes_per_s: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    threading.Thread(target=_accept, args=(listener, port, bytes_per_s), daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
