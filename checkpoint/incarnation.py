"""One life of a job as a writer of commits: it opens an epoch, and from then on no older life can commit."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache

from ett.checkpoint.commit import Commit, commit_name
from ett.checkpoint.commit_log import CommitLog, prepare_folder
from ett.checkpoint.store import Store
from ett.clock import Clock
from ett.errors import Conflict
from ett.versions import ett_version

log = logging.getLogger(__name__)
LIFE_DIGITS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What a writer holds: its epoch and the newest commit, both as of its own last append.

    opened_seq: the commit that opened the epoch: whatever an older epoch appends from there on is void.
    life: begins the write_id of every commit of this life; another host's buffer is told from it by that, for two
    that die while they open an epoch can both have taken the same number.
    """

    epoch: int
    seq: int
    life: str = field(default="", compare=False)
    opened_seq: int = field(default=0, compare=False)

    def after(self, seq: int) -> Epoch:
        return replace(self, seq=seq)


def open_epoch(store: Store, restored: Commit | None, *, job: str, world_size: int, clock: Clock) -> Epoch:
    """Fence every older life: append the next commit with a higher epoch and the files of the one restored.

    Rank 0 only. `restored` None is a fresh start: the commit has no files. Commits between the restored one and this
    are abandoned, not touched. Raises: Conflict: another process keeps opening epochs at the same time.
    """
    prepare_folder(store)
    commits = CommitLog(store)
    for _ in range(8):
        known, damaged = commits.read_all()
        newest = max([0, *known, *damaged])
        opened = epoch_open(
            restored,
            seq=newest + 1,
            epoch=1 + max([0, *(commit.epoch for commit in known.values())]),
            job=job,
            world_size=world_size,
            created=created_now(clock),
        )
        try:
            commits.append(opened)
        except Conflict:
            log.info("commit %d was taken while opening an epoch; trying the next", opened.seq)
            continue
        _check_still_there(store, restored, opened)
        return Epoch(epoch=opened.epoch, seq=opened.seq, life=life_of(opened), opened_seq=opened.seq)
    raise Conflict(
        f"other processes keep writing to {store.uri}",
        expected="one running job per checkpoint folder",
        do="stop the other job, or set another checkpoint.uri",
    )


def epoch_open(
    restored: Commit | None, *, seq: int, epoch: int, job: str, world_size: int, created: str, life: str = ""
) -> Commit:
    """Return the record that opens an epoch: it repeats the files of `restored`, or has none."""
    opened = restored or Commit(
        seq=seq,
        parent_seq=0,
        type="epoch_open",
        ckpt_uuid="",
        write_id="",
        epoch=epoch,
        job=job,
        world_size=world_size,
        step=0,
        cursor=0,
        created=created,
        writer_version=writer_version(),
        tables=(),
        dense=None,
        fragments=(),
    )
    return replace(
        opened,
        type="epoch_open",
        seq=seq,
        parent_seq=restored.seq if restored else 0,
        write_id=new_write_id(life),
        epoch=epoch,
        opened_seq=seq,
        job=job,
        created=created,
        writer_version=writer_version(),
    )


def _check_still_there(store: Store, restored: Commit | None, opened: Commit) -> None:
    """Raise Conflict, and take `opened` back, if the commit that it repeats was collected while it was read.

    Whoever collects deletes records, looks for new ones, and then deletes files: it sees ours, or we miss its.
    """
    if restored is None:
        return
    try:
        store.size(commit_name(restored.seq))
    except FileNotFoundError as err:
        store.delete(commit_name(opened.seq))
        raise Conflict(
            f"commit {restored.seq} of step {restored.step} was collected while it was restored from {store.uri}",
            do="restore again: another commit is the newest by now",
        ) from err


def life_of(commit: Commit) -> str:
    return commit.write_id[:LIFE_DIGITS]


def new_write_id(life: str = "") -> str:
    return life + uuid.uuid4().hex[len(life) :]


def check_not_fenced(commits: CommitLog, epoch: Epoch) -> Epoch:
    """Return the epoch as of the newest commit, which may be one of ours that the store never answered for.

    Raises: Conflict: another process has committed since our last append: a cheaper place to find out.
    """
    newest = max([0, *commits.seqs()])
    if newest == epoch.seq:
        return epoch
    known, _ = commits.read_all()
    if newest > epoch.seq and newest in known and epoch.life and life_of(known[newest]) == epoch.life:
        return epoch.after(newest)
    raise Conflict(
        f"commit {newest} was made by another process "
        f"(epoch {known[newest].epoch if newest in known else 'unknown'}; ours is {epoch.epoch})",
        expected="one running job per checkpoint folder",
        do="let the newer process run; this one must stop",
        code="L008",
    )


def created_now(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.wall_ns() // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@cache
def writer_version() -> str:
    return f"ett {ett_version()}"
