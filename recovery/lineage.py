"""`ett launch --from JOB[@STEP]|URI`: the commit that is meant, and what of it a recipe's model takes over."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.restore_checks import check_files
from ett.checkpoint.source import Source
from ett.checkpoint.target import job_dir_of, open_target
from ett.store_uri import local_path


def find_source(text: str, home: Path) -> dict[str, Any]:
    """Return the newest commit of a job or a checkpoint folder, or that of a step, as a launch keeps it.

    Args: text: JOB, JOB@STEP, URI or URI@STEP. home: of the jobs.
    Raises: NotFound: no such job, folder or step. NoCheckpoint: it has none. CorruptState: its files are not whole.
    """
    target, at, step = text.rpartition("@")
    if not at or not step.isdecimal():
        target, step = text, ""
    job_dir, store = job_dir_of(target, home), open_target(target, home)
    commit, _ = find_commit(store, int(step) if step else None)
    check_files(store, commit)
    is_folder = job_dir is None and "://" not in target
    source = Source(
        job=commit.job,
        job_dir="" if job_dir is None else str(job_dir),
        uri="" if job_dir is not None else str(local_path(target).absolute()) if is_folder else target,
        seq=commit.seq,
        step=commit.step,
        cursor=commit.cursor,
        ckpt_uuid=commit.ckpt_uuid,
    )
    return asdict(source)
