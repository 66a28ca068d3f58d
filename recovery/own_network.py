"""The network of a process that has one of its own: cut off, and mended. A host's own is never touched."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
_REQUEST = struct.Struct("16sh14x")  # struct ifreq


def is_own_network() -> bool:
    """Return whether a process that this one descends from is in another network namespace."""
    own = _namespace("self")
    return own is not None and any(found not in (None, own) for found in map(_namespace, _ancestors()))


def _ancestors() -> Iterator[str]:
    pid = os.getppid()
    while pid > 0:
        yield str(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it ended
            return
        pid = int(stat.rpartition(")")[2].split()[1])


def _namespace(pid: str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # no such namespaces here, or nobody may ask
        return None


def set_links(*, up: bool) -> None:
    """Take every link of this namespace up or down, its loopback as well. Raises: OSError: the kernel refuses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            told = fcntl.ioctl(asked, _GET_FLAGS, _REQUEST.pack(name.encode(), 0))
            flags = _REQUEST.unpack(told)[1]
            flags = flags | _IS_UP if up else flags & ~_IS_UP
            fcntl.ioctl(asked, _SET_FLAGS, _REQUEST.pack(name.encode(), flags))
