"""Leaving torch's process group so that its connections close: only then does a peer that waits in a collective see it.

`destroy_process_group()` forgets a gloo group; its sockets close when the last reference to it is gone. One that lives
on keeps the peers of a lost generation in their collectives until a time-out.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from ett.errors import Conflict

_GLOO_THREAD = "gloo_tcp_loop"
_NOBODYS_TAG = 0x0E77DEAD


def leave_process_group(*, may_be_frozen: bool = True) -> None:
    """Destroy every process group, if the program did not yet, and close the connections of those of gloo.

    Args:
        may_be_frozen: something was frozen (`gc.freeze`) since the group was made, so its garbage may be among that.
            Else what is frozen, such as all that was imported, is left alone: looking through it takes 0.3 s.
    Raises: Conflict: something still holds a gloo group, so its connections stay open.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return
    if dist.is_initialized():
        dist.destroy_process_group()
    _take_from_defaults(dist.ProcessGroup)
    if not may_be_frozen:
        gc.collect()
    if may_be_frozen or has_gloo_connections():
        gc.unfreeze()  # garbage that is frozen holds what it refers to
        gc.collect()
    if has_gloo_connections():
        raise Conflict(
            "the process group of the lost generation is destroyed, but something still holds it, so the other ranks "
            "cannot see that this one left it",
            expected="process groups that only the function under @ett.restartable holds",
            do="make them inside that function, and keep none in a global, a class or a default argument",
        )


def wait_for_nobody() -> bool:
    """Wait in a receive that nobody answers until it times out or the peer is gone; a collective that hangs.

    Returns: False, at once, where this process has no process group with a second rank.
    Raises: RuntimeError: as torch ends such a wait.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return False
    import torch

    peer = (dist.get_rank() + 1) % dist.get_world_size()
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    dist.recv(torch.empty(1, device=device), src=peer, tag=_NOBODYS_TAG)
    return True


def has_gloo_connections() -> bool:
    """Return whether a gloo group of this process is alive: each has a thread of this name."""
    return any(_thread_name(thread) == _GLOO_THREAD for thread in Path("/proc/self/task").iterdir())


def _thread_name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().rstrip("\n")
    except OSError:  # it ended
        return ""


def _take_from_defaults(group_class: type[Any]) -> None:
    """Let the defaults of torch's own functions name the newest group (None) instead of a destroyed one.

    torch.distributed.nn.functional among others takes the group of the moment in which it is imported, be it by an
    optimizer that imports torch.compile, as a default of ten functions, and so never lets go of it.
    """
    for function in _functions_of_torch():
        if any(isinstance(value, group_class) for value in function.__defaults__ or ()):
            kept = tuple(None if isinstance(v, group_class) else v for v in function.__defaults__ or ())
            function.__defaults__ = kept


def _functions_of_torch() -> Iterator[FunctionType]:
    for module in [m for name, m in sys.modules.items() if name.startswith("torch.distributed.")]:
        for value in list(vars(module).values()):
            # Not isinstance(), which asks a value for its class: names that torch has deprecated warn of that.
            if type(value) is FunctionType:
                yield value
            elif issubclass(type(value), type) and value.__module__ == module.__name__:
                yield from (method for method in vars(value).values() if isinstance(method, FunctionType))
