"""Old commits go: records first, then fragments, then data: a crash leaves orphans, never a dangling record."""

from __future__ import annotations

import logging
import re
import time
from contextlib import suppress

from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_cache import CommitCache
from ett.checkpoint.commit_log import FORMAT_NAME, CommitLog, states_of_history
from ett.checkpoint.pins import holds
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.store import Store
from ett.errors import CorruptState, EttError

log = logging.getLogger(__name__)
_OWNED = re.compile(r"(?:m|d/[0-9a-f]{2}|dense)/(e(\d{6,})-[0-9a-f]{32})/.+")


def retire(store: Store, keep_last: int, cache: CommitCache | None = None) -> list[int]:
    """Delete all but the newest `keep_last` states and return the numbers of the deleted commits. Rank 0 only.

    Kept besides: what is pinned or being read, and the newest record, whatever it is. Nothing is deleted while any
    record cannot be read, or when the newest state has a file missing or torn. A failure is logged and left for the
    next time: saving matters more.
    Args: cache: of commits that were read before.
    """
    try:
        known, damaged = CommitLog(store, cache).read_all()
        if damaged:
            log.warning("kept all commits: commit %d cannot be read", max(damaged))
            return []
        kept = _kept(known, keep_last) | _held(store, known)
        newest_state = max(
            (commit for commit in kept.values() if not commit.is_fresh), key=lambda c: c.seq, default=None
        )
        if newest_state is None:
            return []
        check_files(store, newest_state)
        return _delete(CommitLog(store, cache), known, kept)
    except CorruptState as err:
        log.error("kept all commits: the newest does not verify: %s", err)
    except (EttError, FileNotFoundError) as err:
        log.warning("could not remove old commits: %s", err)
    return []


def _kept(known: dict[int, Commit], keep_last: int) -> dict[int, Commit]:
    """Return the commits to keep: every record of the newest `keep_last` different states of the line of history."""
    states = list(states_of_history(known).values())[:keep_last]
    kept = {commit.seq: commit for commits in states for commit in commits}
    # The newest record carries the highest number and epoch: without it a process of an older life could commit.
    if known:
        kept[max(known)] = known[max(known)]
    return kept


def _held(store: Store, known: dict[int, Commit]) -> dict[int, Commit]:
    return {hold.seq: known[hold.seq] for hold in holds(store, time.time()) if hold.seq in known}


def _delete(commits: CommitLog, known: dict[int, Commit], kept: dict[int, Commit]) -> list[int]:
    gone = [known[seq] for seq in sorted(known) if seq not in kept]
    live = {file.path for commit in kept.values() for file in commit.stored_files()}
    dead = {file.path for commit in gone for file in commit.stored_files()} - live
    delete_commits(
        commits, known, [commit.seq for commit in gone], sorted(dead, key=lambda path: (path[:2] != "m/", path))
    )
    return [commit.seq for commit in gone]


def delete_commits(commits: CommitLog, known: dict[int, Commit], seqs: list[int], names: list[str]) -> None:
    """Delete records, then those of the files that no record needs which was made meanwhile, in this order.

    A newer life may go back to a commit that is about to go: whoever opens an epoch looks whether that is still there
    after its own record is, so that it sees the deletion, or is seen here. So does whoever pins or leases a commit:
    of one that was held meanwhile the record comes back.
    Args: known: all records as they were when this was decided.
    Raises: CorruptState: a record or a pin that was made meanwhile cannot be read; the files stay.
    """
    store = commits.store
    for seq in seqs:
        store.delete(commit_name(seq))
    needed: set[str] = set()
    if seqs:
        store.sync([commit_name(seqs[0])])
        held = [known[seq] for seq in sorted(_held(store, known).keys() & set(seqs))]
        for commit in held:
            with suppress(FileExistsError):
                store.create(commit_name(commit.seq), commit.to_bytes(with_files=not commit.lists))
        late = [commits.read(seq) for seq in commits.seqs() if seq > max(known)]
        needed = {file.path for commit in (*late, *held) for file in commit.stored_files()}
    for name in names:
        if name not in needed:
            store.delete(name)


def sweep_orphans(store: Store, epoch: int, needed: frozenset[str] = frozenset()) -> list[str]:
    """Delete the files that saves of older epochs left without a commit; return their names. Rank 0, after open_epoch.

    Args: needed: files of a commit that is still to be uploaded; some of them may have arrived.
    Safe without a clock: names carry the epoch of their writer, and a writer of an older epoch can no longer commit.
    """
    try:
        known, damaged = CommitLog(store).read_all()
        if damaged:
            return []
        live = {file.path for commit in known.values() for file in commit.stored_files()} | needed
        unfinished = store.unfinished()
        finished = [name for top in ("m", "d", "dense") for name in store.list(top)]
        orphans = [
            name
            for name in (*finished, *unfinished)
            if (whose := epoch_of(name)) is not None and whose < epoch and name not in live
        ]
        # A name that is taken can never be created again; one that is free may be a living process's next commit.
        taken = {FORMAT_NAME, *(commit_name(seq) for seq in known)}
        orphans += [name for name, meant in unfinished.items() if meant in taken]
        for name in orphans:
            store.delete(name)
    except (EttError, FileNotFoundError) as err:
        log.warning("could not remove what unfinished saves left: %s", err)
        return []
    if orphans:
        log.info("removed %d files that unfinished saves left under %s", len(orphans), store.uri)
    return orphans


def epoch_of(name: str) -> int | None:
    """Return the epoch of the writer of a file, which its name carries; None: it is not a file of a save."""
    found = _OWNED.fullmatch(name)
    return int(found[2]) if found else None
