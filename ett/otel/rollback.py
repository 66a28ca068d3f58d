"""What a restart threw away: from the first step that was lost to the instant at which new data came again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ett.attempt_timeline import AttemptTimeline
from ett.rank_timeline import Piece
from ett.step_credit import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollback:
    """`from_step` is the last step that had been completed, `to_step` the one that training went back to.

    `wasted_ns` is the time of the steps that were paid again.
    """

    start_ns: int
    end_ns: int
    from_step: object
    to_step: object
    wasted_ns: int


def find_rollback(pieces: Sequence[Piece], timeline: AttemptTimeline, before: Sequence[Step]) -> Rollback | None:
    """Return the rollback of an attempt: all that it replayed; None where it replayed nothing.

    Args:
        pieces: the attempt's own.
        before: complete steps of the whole job in order of their end, this attempt's among them.
    """
    replayed = [piece for piece in pieces if piece.reason == "replay" and piece.step is not None]
    if not replayed:
        return None
    first = replayed[0].step
    assert first is not None
    past = [step for step in before if step.stop_ns <= first.begin_ns and step.c1 is not None]
    lost = [step for step in past if first.c0 is not None and step.c1 is not None and step.c1 > first.c0]
    if not lost:
        return None  # another rank's clock puts the steps that were lost after it
    restored = [r.data.get("step") for t, r in timeline.attempt.records if r.ev == "restore" and t <= first.begin_ns]
    known = [step for step in restored if step is not None]
    return Rollback(
        start_ns=min(step.begin_ns for step in lost),
        end_ns=replayed[-1].end_ns,
        from_step=lost[-1].number,
        to_step=known[-1] if known else first.number - 1,
        wasted_ns=sum(piece.end_ns - piece.begin_ns for piece in replayed),
    )
