"""Work that may hang for ever, such as leaving a process group whose peers are gone: waited for, for a time at most."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ett.raised import raised_by


def ended_in_time(work: Callable[[], object], limit_s: float, name: str) -> bool:
    """Do the work in a thread and return whether it has ended within `limit_s`; else it ends with the process.

    Args: name: of the thread, for whoever reads a stack dump.
    Raises: what the work raised.
    """
    failures: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: failures.append(raised_by(work)), name=name, daemon=True)
    thread.start()
    thread.join(limit_s)
    if not failures:
        return False
    failure = failures.pop()
    if failure is not None:
        raise failure
    return True
