"""What people are told of a job's state; the rules themselves know running, lost and three ways to have ended (R1)."""

from __future__ import annotations

from ett.accounting import JobAccount

STATES = ("queued", "running", "suspended", "succeeded", "failed", "cancelled", "lost")


def state_of(account: JobAccount) -> str:
    """Return queued, running, suspended, succeeded, failed, cancelled or lost.

    A job that was preempted waits for its scheduler (queued); one that nobody started again for so long that its log
    is stale is suspended, not lost: its last attempt ended on request.
    """
    state = account.window.state
    started = [t.attempt for t in account.timelines if t.attempt.start_ns is not None]
    last = started[-1] if started else None
    stopped = None if last is None or last.is_alive else last.reason
    if state in ("RUNNING", "LOST") and stopped in ("preempted", "suspended"):
        return "queued" if state == "RUNNING" and stopped == "preempted" else "suspended"
    if state == "RUNNING":
        return "queued" if last is None else "running"
    return state.lower()
