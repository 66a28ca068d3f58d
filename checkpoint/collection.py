"""What may go from a checkpoint folder, and its deletion: mark from the manifests that stay, sweep the rest.

Live is the union of the files of every commit that stays; no chain is chased. Records go first, then fragments, then
data: a crash leaves orphans, never a record without its files.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from ett.checkpoint.buffered_store import shared
from ett.checkpoint.canonical_json import seal
from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, states_of_history
from ett.checkpoint.pins import dead_leases, holds
from ett.checkpoint.progress import Watch, unwatched
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.retention import delete_commits, epoch_of
from ett.checkpoint.store import Store
from ett.checkpoint.verify import verify_commit
from ett.errors import Conflict, CorruptState

GRACE_S = 24 * 3600.0  # what was written later is never collected: an upload or a commit may still want it


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    last: int = 3  # newest states of the line of history
    every_s: float = 0.0  # besides, one state of each such span of time; 0: none
    max_bytes: int = 0  # drop the oldest of these states until the rest fits; 0: no bound; two states always stay
    grace_s: float = GRACE_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Collection:
    """A plan. kept: number of a commit -> why; gone: numbers of records, oldest first; names: files, in order."""

    kept: dict[int, str]
    gone: list[int]
    names: list[str]
    num_bytes: int
    too_young: int  # orphans that the grace time protects
    commits: dict[int, Commit] = field(repr=False)

    def decision(self) -> tuple[list[int], list[str]]:
        return self.gone, self.names


def plan_collection(store: Store, keep: Keep, *, now_unix_s: float | None = None) -> Collection:
    """Return what `keep` would delete. Raises: CorruptState: a record, a pin or the newest state cannot be trusted.
    ConfigError: a record is of a newer format: what it needs is not known."""
    store = shared(store)  # what only this host's buffer holds must displace nothing in it
    now = time.time() if now_unix_s is None else now_unix_s
    written = {entry.name: entry for top in ("m", "d", "dense") for entry in store.entries(top)}
    ages = {entry.name: now - entry.modified_unix_s for entry in store.entries("commits")}
    # Listed after the files: a commit made in between has its files among those that are younger than the grace time.
    known, damaged = CommitLog(store).read_all()
    if damaged:
        raise CorruptState(
            f"commit {max(damaged)} cannot be read, so nobody knows which files it needs",
            did="deleted nothing",
            do="`ett checkpoint verify` shows the damage",
        )
    kept = _kept(store, known, ages, keep, now)
    live = {file.path for seq in kept for file in known[seq].stored_files()}
    dead = {file.path for seq in known if seq not in kept for file in known[seq].stored_files()} - live
    newest_epoch = max((commit.epoch for commit in known.values()), default=0)
    orphans = [entry for name, entry in written.items() if name not in live | dead and _is_orphan(name, newest_epoch)]
    old = [entry for entry in orphans if now - entry.modified_unix_s > keep.grace_s]
    names = sorted({*dead, *(entry.name for entry in old)}, key=lambda name: (not name.startswith("m/"), name))
    return Collection(
        kept=kept,
        gone=sorted(seq for seq in known if seq not in kept),
        names=[name for name in names if name in written],
        num_bytes=sum(written[name].num_bytes for name in names if name in written),
        too_young=len(orphans) - len(old),
        commits=known,
    )


def collect(store: Store, keep: Keep, plan: Collection, watch: Watch = unwatched) -> None:
    """Delete what a plan says, after looking again.

    Raises: Conflict: commits, pins or leases have changed since. CorruptState: the newest state is damaged, so older
        ones are what a restore falls back to. Nothing was deleted then.
    """
    store = shared(store)
    if plan.gone:
        _check_newest(store, plan.commits, watch)
    name = f"gc/{max(plan.commits, default=0):016d}-{uuid.uuid4().hex}.json"
    facts: dict[str, Any] = {"document": "collection", "commits": plan.gone, "names": plan.names}
    store.create(name, seal(facts))
    again = plan_collection(store, keep)
    # Orphans that grew old enough between the two looks are left for the next time.
    if again.kept != plan.kept or again.gone != plan.gone or not set(plan.names) <= set(again.names):
        store.delete(name)
        raise Conflict(
            f"the commits, pins or leases under {store.uri} changed meanwhile",
            did="deleted nothing",
            do="look at the new plan, then try again",
        )
    delete_commits(CommitLog(store), plan.commits, plan.gone, plan.names)
    for lease in dead_leases(store, time.time()):
        store.delete(lease)
    store.delete(name)


def _kept(store: Store, known: dict[int, Commit], ages: dict[str, float], keep: Keep, now: float) -> dict[int, str]:
    """Return the numbers of the commits that stay, and why."""
    kept: dict[int, str] = {}
    states = states_of_history(known)
    chosen: dict[str, str] = {}
    spans: set[int] = set()
    for number, (state, commits) in enumerate(states.items()):
        saved_unix_s = now - max(ages.get(commit_name(commit.seq), 0.0) for commit in commits)
        span = int(saved_unix_s // keep.every_s) if keep.every_s else -1
        if number < keep.last:
            chosen[state] = f"newest {number + 1} of {keep.last}"
        elif keep.every_s and span not in spans:
            chosen[state] = "one of each span of time"
        spans.add(span)
    if keep.max_bytes:
        _shrink(chosen, states, keep.max_bytes)
    for state, why in chosen.items():
        kept |= {commit.seq: why for commit in states[state]}
    for hold in holds(store, now):
        kept |= {
            seq: hold.why
            for seq, commit in known.items()
            if seq == hold.seq
            or (hold.seq in known and not commit.is_fresh and commit.ckpt_uuid == known[hold.seq].ckpt_uuid)
            if seq not in kept
        }
    if known:
        kept.setdefault(max(known), "the newest record")
    newest = next(iter(states.values()), None)
    if newest is not None:
        check_files(store, newest[0])  # the newest state must be whole before anything older may go
    return kept


def _check_newest(store: Store, known: dict[int, Commit], watch: Watch) -> None:
    """Read the newest state whole: what replaces the states that go must be good, not only there."""
    newest = next(iter(states_of_history(known).values()), None)
    if newest is None:
        return
    try:
        with watch(store, "reading the newest commit", newest[0].num_bytes) as reading:
            verify_commit(reading, newest[0], "hash")
    except CorruptState as err:
        raise CorruptState(
            f"commit {newest[0].seq}, the newest, is damaged: {err.fact}",
            expected="a newest commit that is whole, before older ones go",
            did="deleted nothing",
            do="`ett checkpoint verify` shows which commits are whole; a restore passes this one over",
        ) from err


def _shrink(chosen: dict[str, str], states: dict[str, list[Commit]], max_bytes: int) -> None:
    while len(chosen) > 2:
        files = {file.path: file.bytes for state in chosen for file in states[state][0].stored_files()}
        if sum(files.values()) <= max_bytes:
            return
        chosen.pop(next(reversed(chosen)))


def _is_orphan(name: str, newest_epoch: int) -> bool:
    """Return whether no commit can come to need a file: its writer was fenced. What is not ours is never touched."""
    epoch = epoch_of(name)
    return epoch is not None and epoch < newest_epoch
