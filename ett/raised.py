"""What a thread's work raised, for another thread to raise or to report."""

from __future__ import annotations

from collections.abc import Callable


def raised_by(work: Callable[[], object]) -> BaseException | None:
    """Do the work and return what it raised, None where it ended well."""
    try:
        work()
    except BaseException as err:  # noqa: BLE001 - whoever waits for this thread raises it; lost, it would wait for ever
        return err
    return None
