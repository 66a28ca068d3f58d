"""What a fault does to the process that it happens in."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from ett.errors import InjectedError
from ett.process_group import wait_for_nobody
from ett.recovery.fault import Fault
from ett.recovery.own_network import set_links

FOR_EVER_S = 10 * 365 * 86_400.0


def act(fault: Fault) -> None:
    """Let the fault happen here. Returns, if ever, when it is over. Raises: InjectedError: of kind "raise"."""
    match fault.kind:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.stdout.flush()
            os._exit(fault.code)
        case "raise":
            raise InjectedError(f"injected by --chaos {fault}")
        case "hang":
            _hang(fault.how, fault.for_s)
        case "stop":
            _stop(fault.for_s)
        case "lost_host":
            _lose_network(fault.for_s)
        case "clock":
            _jump(fault.by_s)
        case _:
            raise AssertionError(f"{fault} does nothing to its process")


def _hang(how: str, for_s: float) -> None:
    if how == "gil":
        _hold_the_gil(for_s)
    elif how == "collective" and not for_s and wait_for_nobody():
        return
    else:  # also the reader's, whose thread this is
        time.sleep(for_s or FOR_EVER_S)


def _hold_the_gil(for_s: float) -> None:
    """Wait in C without giving the GIL back: no other thread of Python runs either."""
    libc = ctypes.PyDLL(None)
    if for_s:
        libc.usleep(ctypes.c_uint(min(int(for_s * 1e6), 2**32 - 1)))
        return
    mutex = ctypes.create_string_buffer(256)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def _stop(for_s: float) -> None:
    if for_s:  # a stopped process cannot continue itself
        subprocess.Popen(["/bin/sh", "-c", f"sleep {for_s:f}; kill -CONT {os.getpid()}"], stdin=subprocess.DEVNULL)
    os.kill(os.getpid(), signal.SIGSTOP)


def _lose_network(for_s: float) -> None:
    set_links(up=False)
    if for_s:
        threading.Thread(target=_mend_network, args=(for_s,), name="ett-chaos", daemon=True).start()


def _mend_network(after_s: float) -> None:
    time.sleep(after_s)
    set_links(up=True)


def _jump(by_s: float) -> None:
    """Shift the wall clock that this process's Python sees; the machine's belongs to everybody."""
    now_s, now_ns = time.time, time.time_ns
    time.time = lambda: now_s() + by_s
    time.time_ns = lambda: now_ns() + int(by_s * 1e9)
