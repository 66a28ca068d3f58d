"""Which commit a restore begins with; needs no torch, so that it can be found while that is imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, check_format, line_of_history
from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.read_plan import REMOTE_READS, reads_at_once
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.store import Store, open_store
from ett.errors import CorruptState, EttError, NoCheckpoint, NotFound, RestoreFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A choice, and the commits that it was made from."""

    step: int | None
    seqs: tuple[int, ...]
    choice: Json

    def is_of(self, store: Store, step: int | None) -> bool:
        """Return whether the same choice would be made now: the folder has the same commits, damaged ones included."""
        return step == self.step and tuple(CommitLog(store).seqs()) == self.seqs


def plan_ahead(config: CheckpointConfig, job_dir: Path, environ: Mapping[str, str]) -> Planned | None:
    """Return what `Checkpointer.restore` will begin with; None where that is to be found out by it, with all ranks.

    Of a remote store without its buffer: what only that has makes the choice out of date, and it is made again.
    """
    word = environ.get("ETT_RESUME", "auto")
    if word != "auto" and not word.isdecimal():
        return None
    step = int(word) if word.isdecimal() else None
    try:
        store = open_store(config.uri or str(job_dir / "checkpoints"))
        seqs = tuple(CommitLog(store).seqs())
        return Planned(step=step, seqs=seqs, choice=choose(store, {}, step, reads=config.restore_reads))
    except EttError as err:
        log.info("the checkpoint to go on from is chosen later: %s", err)
        return None


def choose(
    store: Store,
    rejected: dict[int, str],
    step: int | None,
    planned: Planned | None = None,
    *,
    reads: int = REMOTE_READS,
) -> Json:
    """Return the best commit that is left, as rank 0 sees it, with those passed over and why.

    Args:
        planned: the choice where it was made ahead, and the folder has the same commits still.
        reads: requests under way at once to a remote store.
    Raises: RestoreFailed, NoCheckpoint, NotFound: as `ett.checkpoint.restore.restore_newest`.
    """
    if planned is not None and not rejected and planned.is_of(store, step):
        return planned.choice
    known, damaged = CommitLog(store).read_all()
    if known or damaged:
        check_format(store)
    line = line_of_history(known)
    passed = {**rejected, **{seq: err.fact for seq, err in damaged.items() if _is_on_line(seq, line)}}
    candidates = line if step is None else _of_step(known, damaged, step, store)
    for commit in candidates:
        if commit.seq in rejected:
            continue
        if commit.is_fresh:
            break
        try:
            check_files(store, commit, reads_at_once(store, reads))
        except CorruptState as err:
            log.warning("commit %d of step %d does not verify: %s", commit.seq, commit.step, err.fact)
            passed[commit.seq] = err.fact
            continue
        return {"seq": commit.seq, "manifest": commit.to_bytes().decode(), "rejected": passed}
    if not passed:
        return {"seq": None}
    if step is not None:
        raise _named_is_damaged(store, step, passed[max(commit.seq for commit in candidates if commit.seq in passed)])
    newest = max(passed)
    raise RestoreFailed(
        f"none of the {len(passed)} commits under {store.uri} verifies; the newest, {newest}: {passed[newest]}",
        expected="at least one commit whose files are whole",
        do="`ett checkpoint verify` shows the damage; --resume never starts over",
    )


def _named_is_damaged(store: Store, step: int, why: str) -> RestoreFailed:
    return RestoreFailed(
        f"the commit of step {step} under {store.uri} does not verify: {why}",
        expected="a commit whose files are whole: one that is named is never replaced by another",
        do="`ett checkpoint verify JOB` says which are whole: name one, or none, and the newest of them is restored",
    )


def _is_on_line(seq: int, line: list[Commit]) -> bool:
    """Return whether a commit whose record is damaged was not left behind by a later epoch."""
    return all(not commit.parent_seq < seq < commit.seq for commit in line if commit.type == "epoch_open")


def _of_step(known: dict[int, Commit], damaged: dict[int, CorruptState], step: int, store: Store) -> list[Commit]:
    data = [commit for commit in known.values() if not commit.is_fresh]
    found = sorted((commit for commit in data if commit.step == step), key=lambda commit: -commit.seq)
    if found:
        return found
    if not data and not damaged:
        raise NoCheckpoint(f"no checkpoint under {store.uri}", do="start with --resume auto or never")
    steps = ", ".join(str(step) for step in sorted({commit.step for commit in data}))
    raise NotFound(f"no checkpoint of step {step} under {store.uri}", expected=f"one of the steps {steps or '(none)'}")
