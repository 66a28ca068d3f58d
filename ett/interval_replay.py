"""A recorded job played again with checkpoints at another interval: saves cost as before, failures resume elsewhere.

Every failure keeps its place in the work. A life resumes at the newest commit that its predecessors had whole by then,
and does again, at the recorded times, what lies between that and where the job had been.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ett.edits import NewInterval
from ett.lives import Item, Life, Place, RecordedJob, cut_at, cut_from

_NOWHERE = float("-inf")
_SAVE = "ckpt_save"


def with_interval(job: RecordedJob, edit: NewInterval) -> list[Life]:
    """Return the lives with saves at the new interval, and each resume where that puts it."""
    saves = SaveCost.of(job)
    numbers_from_0 = int(job.first_number == 0)
    played: list[Life] = []
    track: list[Item] = []  # the newest way through all the data so far: steps, and what the loop did between them
    high: Place = _NOWHERE
    newest: Place = _NOWHERE  # commit
    for life in job.lives:
        redone, new = _parts(life, track, high, newest)
        loop = [*redone, *new]
        track = _continued_track(track, loop)
        work, commits = _with_saves(loop, edit, saves, numbers_from_0, life)
        death = tuple(item for item in life.death if item.reason != _SAVE)
        played.append(replace(life, work=tuple(work), death=death))
        high = max([high, *(item.hi for item in loop if item.is_step)])
        newest = max([newest, *commits, *([life.committed] if life.committed is not None else [])])
    return played if job.keeps_tail else [_with_tail(life, newest) for life in played]


def without_commits(job: RecordedJob, unmade: Collection[Place]) -> list[Life]:
    """Return the lives where those that resumed at a commit that was never made resume at the one before it."""
    if not unmade:
        return list(job.lives)
    played: list[Life] = []
    track: list[Item] = []
    newest: Place = _NOWHERE
    for life in job.lives:
        begins, work = life.begins, list(life.work)
        if track and begins is not None and begins in unmade and newest < begins:
            redone = _between(track, newest, begins)
            work = [*(_as_replay(item) for item in redone), *work]
        played.append(replace(life, work=tuple(work)))
        track = _continued_track(track, work)
        made = [commit.cursor for commit in life.commits]
        newest = max([newest, *made, *([] if life.committed is None else [life.committed])])
    return played if job.keeps_tail else [_with_tail(life, newest) for life in played]


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveCost:
    """A recorded save: how long it blocked training, in the mean, and how long after that its commit was there."""

    blocking_ns: int
    commit_after_ns: int
    num_recorded: int

    @staticmethod
    def of(job: RecordedJob) -> SaveCost:
        found: list[int] = []
        for life in job.lives:
            before: Item | None = None
            for item in life.work:
                if item.reason == _SAVE:
                    if before is not None and before.reason == _SAVE:
                        found[-1] += item.ns
                    else:
                        found.append(item.ns)
                before = item
        blocking_ns = round(sum(found) / len(found)) if found else 0
        lag_ns = job.commit_lag_ns or 0
        return SaveCost(blocking_ns=blocking_ns, commit_after_ns=max(0, lag_ns - blocking_ns), num_recorded=len(found))


def _parts(life: Life, track: Sequence[Item], high: Place, newest: Place) -> tuple[list[Item], list[Item]]:
    """What the life does again from the newest commit, and what it does anew; without the recorded saves."""
    own = [item for item in life.work if item.reason != _SAVE]
    if not track:
        return [], own
    learns = next((i for i, item in enumerate(own) if item.is_step and item.reason != "replay"), None)
    again, new = (own, []) if learns is None else (own[:learns], own[learns:])
    if learns is None and not any(item.is_step for item in own):
        return [], []
    begins = next(item.lo for item in own if item.is_step)
    until = min(begins, high)
    redone = [*_between(track, newest, until), *_between(again, max(newest, until), None)]
    return [_as_replay(item) for item in redone], new


def _between(items: Iterable[Item], lo: Place, hi: Place | None) -> Iterator[Item]:
    """The part of a way through the data in (lo, hi]; what the loop did at `hi` is in it, at `lo` is not."""
    for item in items:
        if item.hi <= lo or (hi is not None and item.lo >= hi and item.is_step) or (hi is not None and item.lo > hi):
            continue
        whole = cut_from(item, lo) if item.is_step else item
        yield whole if hi is None or not item.is_step else cut_at(whole, hi)[0]


def _continued_track(track: Sequence[Item], loop: Sequence[Item]) -> list[Item]:
    """The way so far with a life's own in place of what it did again; what it did not reach stays."""
    steps = [item for item in loop if item.is_step]
    if not steps:
        return list(track)
    lo, hi = steps[0].lo, max(item.hi for item in steps)
    loop = [item for item in loop if item.component == "wasted" or item.is_step]  # start-up is never done again here
    return [*_between(track, _NOWHERE, lo), *loop, *_between(track, hi, None)]


def _with_saves(
    loop: Sequence[Item], edit: NewInterval, saves: SaveCost, numbers_from_0: int, life: Life
) -> tuple[list[Item], list[Place]]:
    """The loop with a save after each step that is due, and the cursors whose commit was there when the life ended."""
    work: list[Item] = []
    ends: list[tuple[Place, int]] = []  # of each save: its cursor, and the time at which it stopped blocking
    now_ns, saved_ns = _time(life.start[life.num_before_loop :]), 0
    saved_at: Place = _NOWHERE
    for item in loop:
        work.append(item)
        now_ns += item.ns
        if item.number is None or item.hi <= saved_at:
            continue
        if edit.kind == "steps":
            is_due = (item.number + numbers_from_0) % edit.steps == 0
        else:
            is_due = now_ns - saved_ns >= edit.ns
        if is_due:
            if saves.blocking_ns:
                work.append(Item("wasted", _SAVE, saves.blocking_ns, item.hi, item.hi, ranks=item.ranks))
            now_ns += saves.blocking_ns
            saved_ns, saved_at = now_ns, item.hi
            ends.append((item.hi, now_ns))
    until_ns = now_ns + _time(life.death)
    return work, [place for place, end_ns in ends if end_ns + saves.commit_after_ns <= until_ns]


def _with_tail(life: Life, kept: Place) -> Life:
    """R14 by other commits: of a job that failed or was cancelled, what none of them kept is an unsaved tail."""
    return replace(life, work=tuple(_tail(map(_learned, life.work), kept)))


def _tail(work: Iterable[Item], kept: Place) -> Iterator[Item]:
    for item in work:
        if item.component != "effective":
            yield item
            continue
        for part in cut_at(item, kept):
            is_lost = part.lo >= kept
            yield part._replace(component="wasted", reason="unsaved_tail") if is_lost else part


def _as_replay(item: Item) -> Item:
    return item._replace(component="wasted", reason="replay") if item.is_step else item


def _learned(item: Item) -> Item:
    return item._replace(component="effective", reason="new_data") if item.reason == "unsaved_tail" else item


def _time(items: Iterable[Item]) -> int:
    return sum(item.ns for item in items if item.reason != _SAVE)
