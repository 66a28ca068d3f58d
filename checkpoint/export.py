"""Copy one commit out as a checkpoint folder of its own, every byte verified on the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.commit_log import CommitLog, line_of_history, prepare_folder
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.pins import leased
from ett.checkpoint.progress import Watch, unwatched
from ett.checkpoint.segment import StoredFile
from ett.checkpoint.store import Store
from ett.checkpoint.verify import verify_commit
from ett.errors import ConfigError, CorruptState, NoCheckpoint, NotFound, RestoreFailed
from ett.os_failure import os_failure

log = logging.getLogger(__name__)
COPY_BYTES = 8 << 20
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedCommit:
    path: Path  # the new checkpoint folder; another job may go on from it (docs/checkpoint.md#restoring)
    seq: int
    step: int
    cursor: int
    num_files: int
    num_bytes: int
    fallback_from: int | None = None  # the newest commit, if that did not verify


def export_commit(source: Store, step: int | None, to: Path, watch: Watch = unwatched) -> ExportedCommit:
    """Copy the newest commit that verifies, or the one of `step`, into the new or empty folder `to`.

    The commit's record is written last: a folder that holds one is complete.
    Raises: ConfigError: `to` holds something. NoCheckpoint, NotFound: nothing to export. RestoreFailed: no commit
        verifies. CorruptState: the one of `step` does not. AccessDenied, Unreachable, NotFound: `to` cannot be
        made or written.
    """
    make_destination(to)
    copied, fallback_from = first_whole(source, step, lambda commit: copy_commit(source, commit, to, watch))
    return replace(copied, fallback_from=fallback_from)


def copy_commit(source: Store, commit: Commit, to: Path, watch: Watch = unwatched) -> ExportedCommit:
    """Copy one commit into the empty folder `to`. Raises: as `export_commit`; CorruptState: it is damaged."""
    with leased(source, commit, f"export to {to}"):
        return _copy(source, LocalStore(to.absolute()), commit, watch)


def first_whole(source: Store, step: int | None, do: Callable[[Commit], Result]) -> tuple[Result, int | None]:
    """Return what `do` returns for the newest commit that it finds whole, and the number of the newest if that is not.

    Args: step: only of its commit. do: raises CorruptState for one that is damaged.
    Raises: as `export_commit`.
    """
    if step is not None:
        return do(find_commit(source, step)[0]), None
    newest: int | None = None
    for commit in _candidates(source):
        try:
            return do(commit), newest
        except CorruptState as err:
            log.warning("commit %d of step %d does not verify: %s", commit.seq, commit.step, err.fact)
            newest = newest or commit.seq
    raise RestoreFailed(f"no commit under {source.uri} verifies", do="`ett checkpoint verify` shows the damage")


def make_destination(to: Path) -> None:
    """Make the folder first: a failure there must never read as damage of the checkpoints.

    Raises: ConfigError: `to` holds something. NotFound, AccessDenied, Unreachable: it cannot be made.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} exists and is not an empty folder", expected="a new folder to export to")
    try:
        to.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise NotFound(f"{to} cannot be made: {err.strerror}", do="choose another folder to export to") from err
    except OSError as err:
        raise os_failure(err, to, elsewhere="--to") from err


def _candidates(source: Store) -> list[Commit]:
    known, damaged = CommitLog(source).read_all()
    commits = [commit for commit in line_of_history(known) if not commit.is_fresh]
    if not commits and not damaged:
        raise NoCheckpoint(f"no checkpoint under {source.uri}")
    return commits


def _copy(source: Store, target: LocalStore, commit: Commit, watch: Watch) -> ExportedCommit:
    names: list[str] = []
    try:
        with watch(source, "copying", commit.num_bytes) as reading:
            for stored in commit.stored_files():
                _copy_file(reading, target, stored)
                names.append(stored.path)
        with watch(target, "verifying", commit.num_bytes) as reading:
            verify_commit(reading, commit, "hash")
    except CorruptState:
        for name in names:
            target.delete(name)
        raise
    target.sync(names)
    prepare_folder(target)
    CommitLog(target).append(commit)
    return ExportedCommit(
        path=target.root,
        seq=commit.seq,
        step=commit.step,
        cursor=commit.cursor,
        num_files=len(names) + 2,
        num_bytes=commit.num_bytes,
    )


def _copy_file(source: Store, target: Store, stored: StoredFile) -> None:
    buffer = np.empty(min(COPY_BYTES, max(1, stored.bytes)), np.uint8)
    try:
        with source.open(stored.path) as reader, target.create_stream(stored.path) as file:
            for offset in range(0, reader.size, len(buffer)):
                got = reader.read_into(offset, buffer.data)
                file.write(buffer[:got].data)
    except FileNotFoundError as err:
        raise CorruptState(f"{stored.path} is missing under {source.uri}") from err
