"""Whose checkpoints are these? A job resumes only from its own, and starts over only in a folder of its own."""

from __future__ import annotations

import logging

from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.store import Store
from ett.errors import ConfigError

log = logging.getLogger(__name__)


def refuse_foreign(store: Store, job: str, *, is_allowed: bool) -> None:
    """Raise ConfigError when the newest commit is another job's, unless that is allowed; then it is logged.

    A fresh start is refused as well: retention would delete the other job's commits with the first saves.
    An epoch that was opened after such a resume is the job's own, so that its restarts need no permission again.
    Commits made outside `ett launch` belong to no job, and a process outside (`job` "") takes any.
    """
    known, _ = CommitLog(store).read_all()
    newest = known[max(known)] if known else None
    if newest is None or not job or newest.job in ("", job):
        return
    fact = (
        f"the newest commit under {store.uri}, of step {newest.step}, was made by job {newest.job}; this is job {job}"
    )
    if is_allowed:
        log.warning("%s", fact)
        return
    raise ConfigError(
        fact,
        expected="a checkpoint folder that no other job uses",
        do=f"set another checkpoint.uri; to go on from job {newest.job}: --resume {newest.step}, "
        "or checkpoint.allow_foreign = true",
        code="F004",
    )
