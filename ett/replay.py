"""Plays a recorded job again with edits: the lives change, and their sum is the answer; no estimate is ever added.

Stops keep their place in the work: an attempt that died in the step after sample 4,000 dies there again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ett.edits import Edit, NewInterval, Removal, Scale
from ett.event_schema import COMPONENTS, Component
from ett.interval_replay import with_interval, without_commits
from ett.lives import Item, Life, Place, RecordedJob, cut_from
from ett.stops import Stop


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What the edited job costs, by "component.reason"; `failure_ns` is what its remaining failures cost.

    `rank_ns`: the same by component, each second times the ranks that it holds (R18).
    """

    detail_ns: dict[str, int]
    rank_ns: dict[Component, int]
    num_failures: int
    failure_ns: int

    @property
    def total_ns(self) -> int:
        return sum(self.detail_ns.values())

    @property
    def ns(self) -> dict[Component, int]:
        return {c: sum(n for name, n in self.detail_ns.items() if name.startswith(f"{c}.")) for c in COMPONENTS}

    @property
    def effective_ns(self) -> int:
        return sum(ns for name, ns in self.detail_ns.items() if name.startswith("effective."))

    @property
    def ett(self) -> float | None:
        return self.effective_ns / self.total_ns if self.total_ns else None


def replay(job: RecordedJob, edits: Sequence[Edit]) -> Outcome:
    """Return the account of the job as it would have been; without edits it is the recorded one, to the nanosecond.

    Causes are dropped first, then components change, then checkpoints move: the order of `edits` does not matter.
    """
    removals = [edit for edit in edits if isinstance(edit, Removal)]
    lives: Sequence[Life] = job.lives
    if removals:
        kept = without_stops(lives, lambda stop: any(edit.covers(stop) for edit in removals))
        lives = without_commits(replace(job, lives=tuple(kept)), _unmade_commits(lives, removals))
    for edit in edits:
        if isinstance(edit, Scale):
            lives = [scaled(life, edit) for life in lives]
    for edit in edits:
        if isinstance(edit, NewInterval):
            lives = with_interval(replace(job, lives=tuple(lives)), edit)
    return outcome(lives)


def outcome(lives: Sequence[Life]) -> Outcome:
    detail: Counter[str] = Counter()
    rank_ns: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    for life in lives:
        for item in life.items():
            detail[f"{item.component}.{item.reason}"] += item.ns
            rank_ns[item.component] += item.ns * item.ranks
    stops = [life.stop for life in lives if life.stop is not None]
    return Outcome(
        detail_ns={name: ns for name, ns in sorted(detail.items()) if ns},
        rank_ns=rank_ns,
        num_failures=sum(stop.is_failure for stop in stops),
        failure_ns=_failure_ns(lives),
    )


def _failure_ns(lives: Sequence[Life]) -> int:
    """What failures cost: the death of the life before each, and the wait, start-up and replay of the life after."""
    total = 0
    for index, life in enumerate(lives):
        if life.stop is not None and life.stop.is_failure:
            total += sum(item.ns for item in life.death)
        if index and (before := lives[index - 1].stop) is not None and before.is_failure:
            total += sum(item.ns for item in (*life.waited, *life.start))
            total += sum(item.ns for item in life.work if item.reason == "replay")
        total += sum(item.ns for item in life.work if item.reason == "unsaved_tail")
    return total


def without_stops(lives: Sequence[Life], is_removed: Callable[[Stop], bool]) -> list[Life]:
    """Return the lives with each removed stop's two neighbours joined into one."""
    merged: list[Life] = []
    was_joined = False
    for life in lives:
        before = merged[-1] if merged else None
        if before is not None and before.stop is not None and is_removed(before.stop):
            merged[-1], was_joined = joined(before, before.stop, life), True
        else:
            merged.append(life)
            was_joined = False
    # The end of the job itself may have lost work too; else what only the removed stops lost is kept now.
    lost_by_the_end = any(item.reason == "unsaved_tail" for item in lives[-1].work) if lives else False
    if was_joined and merged[-1].stop is None and not lost_by_the_end:
        merged[-1] = replace(merged[-1], work=tuple(map(_kept, merged[-1].work)))
    return merged


def _unmade_commits(lives: Sequence[Life], removals: Sequence[Removal]) -> set[Place]:
    """The cursors that only a save on the way out committed, before a stop that is now none.

    A save in the loop at the same place was under way when the stop came: without the stop it would have been whole.
    """
    gone: set[Place] = {
        life.committed
        for life in lives
        if life.committed is not None
        and life.stop is not None
        and any(edit.covers(life.stop) for edit in removals)
        and not any(item.reason == "ckpt_save" and item.hi == life.committed for item in life.work)
    }
    return gone - {commit.cursor for life in lives for commit in life.commits}


def joined(life: Life, stop: Stop, following: Life) -> Life:
    """Return one life: the stop between them, what it destroyed and what was paid again for it never were.

    A life that died before it completed a step had a start-up cut short; that of the following one stands for it.
    """
    reach = life.reach
    if reach is None:
        if not following.start and not following.work:
            return replace(life, death=following.death, stop=following.stop)
        start, waited, num_before_loop = following.start, life.waited, following.num_before_loop
        if stop.kind == "inprocess":
            again = [item for item in following.start[:num_before_loop] if item.reason != "inprocess_restart"]
            start = (*life.start, *again, *following.start[num_before_loop:])
            num_before_loop = len(life.start) + len(again)
        elif not life.start:
            waited = (*_of(life.waited, "scheduling"), *_of(following.waited, "initialization"))
        return replace(
            following,
            waited=waited,
            start=start,
            num_before_loop=num_before_loop,
            commits=(*life.commits, *following.commits),
        )
    boundary, beyond = _continued(following.work, reach)
    work = list(map(_as_loop, life.work))
    if boundary is not None:
        while work and not work[-1].is_step:
            work.pop()
        work += boundary
    return Life(
        waited=life.waited,
        start=life.start,
        num_before_loop=life.num_before_loop,
        work=(*work, *beyond),
        death=following.death,
        stop=following.stop,
        committed=following.committed,
        commits=(*life.commits, *following.commits),
    )


def _continued(work: Sequence[Item], reach: Place) -> tuple[list[Item] | None, list[Item]]:
    """What a life did at `reach` after it had redone the step there (None: it did not), and all beyond it."""
    first = next((i for i, item in enumerate(work) if item.is_step and item.hi > reach), None)
    if first is None:
        return None, []
    after = first
    while after and not work[after - 1].is_step:
        after -= 1
    beyond = list(work[first:])
    beyond[0] = cut_from(beyond[0], reach)
    return (list(work[after:first]) if after else None), beyond


def scaled(life: Life, edit: Scale) -> Life:
    paid = sum(item.ns for item in life.items() if _is_meant(item, edit))
    if not paid:
        return life
    ratio = Fraction(edit.per_start_ns, paid) if edit.per_start_ns is not None else edit.ratio
    assert ratio is not None
    rounding = _Rounding(ratio)
    parts = [
        tuple(item._replace(ns=rounding.next(item.ns)) if _is_meant(item, edit) else item for item in part)
        for part in (life.waited, life.start, life.work, life.death)
    ]
    return replace(life, waited=parts[0], start=parts[1], work=parts[2], death=parts[3])


class _Rounding:
    """Scales whole numbers one by one so that their sum is the scaled sum, rounded once."""

    def __init__(self, ratio: Fraction) -> None:
        self._ratio, self._before, self._after = ratio, 0, 0

    def next(self, ns: int) -> int:
        self._before += ns
        total = round(self._before * self._ratio)
        part, self._after = total - self._after, total
        return part


def _is_meant(item: Item, edit: Scale) -> bool:
    return item.component == edit.component and edit.reason in (None, item.reason)


def _of(items: Iterable[Item], component: str) -> Iterator[Item]:
    return (item for item in items if item.component == component)


def _as_loop(item: Item) -> Item:
    """R6 books all after the last step of a failed attempt as in flight: of a life that goes on it is the loop."""
    return item._replace(reason="untracked") if item.reason == "in_flight" else item


def _kept(item: Item) -> Item:
    return item._replace(component="effective", reason="new_data") if item.reason == "unsaved_tail" else item
