"""What became of a fault: the state of the last or the previous commit, a refusal that says where, or a silent loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from ett.checkpoint.bench.faults.fault_job import FaultJob
from ett.checkpoint.bench.faults.oracle import Oracle
from ett.checkpoint.store import Store
from ett.errors import EttError
from ett.raised import raised_by

Outcome = Literal["last", "previous", "refused", "silent", "crashed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Verdict:
    """silent: another state came back, or an older one than may, or a newer one was stepped over without a word.
    crashed: an error that is not typed: nobody is told what is damaged, and where.

    points: where faults were injected before this one restore; empty: at the one that was asked for.
    """

    outcome: Outcome
    why: str = ""
    points: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The steps whose state a restore may give.

    last: of the save under the fault. previous: of the commit before, 0: a fresh start, None: the last one is needed,
    because its save has returned. may_refuse: the fault can leave nothing that is whole. is_said: a restore of
    `previous` must name the newer commit that it stepped over.
    """

    last: int
    previous: int | None
    may_refuse: bool = False
    is_said: bool = False


def restored_verdict(oracle: Oracle, store: Store, expected: Expected) -> Verdict:
    """Restore as a process would that knows only the store, and compare every bit with the oracle."""
    job = FaultJob(oracle, store)
    try:
        position = job.restore()
    except EttError as err:
        return refusal(err, store, expected)
    return compared(job, position.fallback_from if position else None, expected)


def compared(job: FaultJob, fallback_from: int | None, expected: Expected) -> Verdict:
    step = job.step
    if job.image() != job.oracle.image(step):
        return Verdict("silent", f"what came back as step {step} is not the state of that step")
    if step == expected.last:
        return Verdict("last")
    if step != expected.previous:
        return Verdict("silent", f"step {step} came back, not {expected.last}, whose save has returned")
    if expected.is_said and fallback_from is None:
        return Verdict("silent", f"step {step} came back, and nobody says that a newer commit was stepped over")
    return Verdict("previous")


def refusal(err: EttError, store: Store, expected: Expected) -> Verdict:
    """Return "refused" for an error that names the place, and that this fault may lead to."""
    if not expected.may_refuse:
        return Verdict("silent", f"refused, though a whole commit is there: {err}")
    if store.uri not in err.fact and "/" not in err.fact:
        return Verdict("silent", f"refused without a place: {err}")
    return Verdict("refused", err.fact)


def not_injected() -> Verdict:
    """Return the verdict of a fault that never happened: counted against the campaign, so that none is claimed."""
    return Verdict("crashed", "the fault was not injected")


def judged(act: Callable[[], Verdict]) -> Verdict:
    """Return what `act` returns, or "crashed" where it raises what no user should see."""
    verdicts: list[Verdict] = []
    raised = raised_by(lambda: verdicts.append(act()))
    if raised is None:
        return verdicts[0]
    if isinstance(raised, KeyboardInterrupt | SystemExit):
        raise raised
    return Verdict("crashed", f"{type(raised).__name__}: {raised}")
