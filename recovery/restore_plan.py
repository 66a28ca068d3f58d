"""What a restore of a job would load, found without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.target import job_store, job_uri
from ett.checkpoint.verify import verify_commit
from ett.errors import CorruptState, NoCheckpoint, RestoreFailed
from ett.job_folder import JobFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class RestorePlan:
    job: str
    uri: str
    seq: int  # of the commit
    step: int
    cursor: int  # global samples consumed; the reader goes on from here
    created: str
    saved_world_size: int
    num_bytes: int  # to read
    num_files: int
    newest_step: int  # of the newest commit; what lies between is trained again
    abandons: tuple[int, ...]  # steps whose checkpoints the restored job leaves behind: its next save removes them
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line that a person is shown."""
        redone = self.newest_step - self.step
        rows = [
            ("job", self.job),
            (
                "checkpoint",
                f"commit {self.seq} of step {self.step}, made {self.created} on {self.saved_world_size} ranks",
            ),
            ("position", f"step {self.step}, {self.cursor:,} samples consumed"),
            ("to read", f"{self.num_bytes:,} bytes in {self.num_files} files under {self.uri}"),
            ("checked", "records and sizes; bytes are checked as they are loaded, and a damaged commit is passed over"),
            ("given up", f"{redone} steps up to step {self.newest_step}" if redone > 0 else "no saved step"),
        ]
        if self.abandons:
            steps = ", ".join(map(str, self.abandons))
            rows.append(("removes", f"checkpoints of steps {steps}: abandoned at once, deleted by the next save"))
        return rows


def plan_restore(folder: JobFolder, step: int | None) -> RestorePlan:
    """Return the plan for the newest commit whose files are whole, or for the one of `step`.

    Raises: NoCheckpoint, NotFound: nothing to restore. RestoreFailed: every commit is damaged. CorruptState: the one
        of `step` is.
    """
    uri = job_uri(folder.path)
    store = job_store(folder.path)
    known, damaged = CommitLog(store).read_all()
    line = [commit for commit in line_of_history(known) if not commit.is_fresh]
    warnings = [err.fact for err in damaged.values()]
    if step is not None:
        chosen, _ = find_commit(store, step)
        verify_commit(store, chosen, "size")
    else:
        if not line and not damaged:
            raise NoCheckpoint(
                f"job {folder.name} has no checkpoint under {uri}",
                do=f"`ett launch --job {folder.name}` starts it anew",
            )
        chosen = _newest_whole(store, line, warnings)
    newest = max([commit.step for commit in line], default=chosen.step)
    files = list(chosen.stored_files())
    return RestorePlan(
        job=folder.name,
        uri=uri,
        seq=chosen.seq,
        step=chosen.step,
        cursor=chosen.cursor,
        created=chosen.created,
        saved_world_size=chosen.world_size,
        num_bytes=sum(stored.bytes for stored in files),
        num_files=len(files),
        newest_step=newest,
        abandons=_abandoned_steps(known, line, chosen),
        warnings=tuple(warnings),
    )


def _abandoned_steps(known: dict[int, Commit], line: list[Commit], chosen: Commit) -> tuple[int, ...]:
    """Return the steps that can be restored now and no more once the job went back to `chosen`."""
    after = line_of_history({seq: commit for seq, commit in known.items() if seq <= chosen.seq})
    return tuple(sorted({commit.step for commit in line} - {commit.step for commit in after}))


def _newest_whole(store: Any, line: list[Commit], warnings: list[str]) -> Commit:
    for commit in line:
        try:
            verify_commit(store, commit, "size")
        except CorruptState as err:
            warnings.append(f"commit {commit.seq} of step {commit.step} is passed over: {err.fact}")
            continue
        return commit
    raise RestoreFailed("no commit verifies: " + warnings[-1], do="`ett checkpoint verify` shows the damage")
