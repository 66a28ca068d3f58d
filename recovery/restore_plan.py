"""What a restore of a job, or of a checkpoint folder, would load, found without loading it."""

from __future__ import annotations

from dataclasses import dataclass

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.store import Store
from ett.checkpoint.target import job_store, job_uri
from ett.checkpoint.verify import Level, verify_commit
from ett.errors import CorruptState, NoCheckpoint, RestoreFailed
from ett.job_folder import JobFolder
from ett.report_text import count

_CHECKED = {
    "manifest": "its record alone",
    "size": "records and sizes",
    "hash": "every byte of every file, against its hash",
    "load": "every byte, and every row against the digests",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RestorePlan:
    job: str  # "" for a folder that no job is named for
    uri: str
    seq: int  # of the commit
    step: int
    cursor: int  # global samples consumed; the reader goes on from here
    created: str
    policy: str
    saved_world_size: int
    world_size: int  # that restores it
    num_bytes: int  # to read, by all ranks; less where newer files have all rows of a block
    num_files: int
    chain_bytes: dict[str, int]  # of the tables, by kind
    chain_len: int  # saves since the oldest base
    newest_step: int  # of the newest commit; what lies between is trained again
    level: Level  # that it was checked at
    fallback_from: int | None  # the newest commit, where that did not pass
    abandons: tuple[int, ...]  # steps whose checkpoints the restored job leaves behind: its next save removes them
    is_named: bool = False  # it was asked for by its step: no other takes its place
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line that a person is shown."""
        redone = self.newest_step - self.step
        rows = [
            ("job", self.job or "(none: a checkpoint folder)"),
            (
                "checkpoint",
                f"commit {self.seq} of step {self.step}, made {self.created} on {count(self.saved_world_size, 'rank')}",
            ),
            ("position", f"step {self.step}, {self.cursor:,} samples consumed"),
            ("to read", f"{self.num_bytes:,} bytes in {self.num_files} files under {self.uri}"),
            ("chain", self._chain()),
            ("ranks", self._ranks()),
            ("checked", f"{_CHECKED[self.level]}; {self._later()}"),
            ("given up", f"{redone} steps up to step {self.newest_step}" if redone > 0 else "no saved step"),
        ]
        if self.abandons:
            steps = ", ".join(map(str, self.abandons))
            rows.append(("removes", f"checkpoints of steps {steps}: abandoned at once, deleted by the next save"))
        return rows

    def _chain(self) -> str:
        changed = self.chain_bytes["hot"] + self.chain_bytes["cold"]
        base = f"{self.chain_bytes['base']:,} bytes of bases"
        if not changed:
            return base
        return (
            f"{base}, {changed:,} bytes of changes by {count(self.chain_len, 'later save')}; the newest of a row wins"
        )

    def _ranks(self) -> str:
        if self.world_size == self.saved_world_size:
            return f"{self.world_size}, as saved"
        return f"{self.world_size}, saved on {self.saved_world_size}: each reads the rows it owns now"

    def _later(self) -> str:
        if self.level in ("hash", "load"):
            return "they are checked again as they are loaded"
        if self.is_named:
            return "bytes are checked as they are loaded; damaged, it is refused, never replaced by another"
        return "bytes are checked as they are loaded, and a damaged commit is passed over"


def plan_restore(
    folder: JobFolder, step: int | None, level: Level = "size", world_size: int | None = None
) -> RestorePlan:
    """Return the plan for a job's newest commit that passes `level`, or for the one of `step`.

    Args: world_size: ranks that will restore it; None: as many as saved it.
    Raises: NoCheckpoint, NotFound: nothing to restore. RestoreFailed: every commit is damaged. CorruptState: the one
        of `step` is.
    """
    return plan_of_store(job_store(folder.path), step, level, world_size, job=(folder.name, job_uri(folder.path)))


def plan_of_store(
    store: Store,
    step: int | None,
    level: Level = "size",
    world_size: int | None = None,
    *,
    job: tuple[str, str] | None = None,
) -> RestorePlan:
    """As `plan_restore`, of a checkpoint folder. Args: job: its name and uri."""
    name, uri = job or ("", store.uri)
    known, damaged = CommitLog(store).read_all()
    line = [commit for commit in line_of_history(known) if not commit.is_fresh]
    warnings = [err.fact for err in damaged.values()]
    if step is not None:
        chosen = _named(store, step, level, name or uri)
    else:
        if not line and not damaged:
            raise NoCheckpoint(
                f"{f'job {name} has no checkpoint' if name else 'there is no checkpoint'} under {uri}",
                do=f"`ett launch --job {name}` starts it anew" if name else "name a job, or a folder with checkpoints",
            )
        chosen = _newest_whole(store, line, level, warnings)
    newest = max([*line, chosen], key=lambda commit: commit.seq)
    files = list(chosen.stored_files())
    return RestorePlan(
        job=name,
        uri=uri,
        seq=chosen.seq,
        step=chosen.step,
        cursor=chosen.cursor,
        created=chosen.created,
        policy=chosen.policy,
        saved_world_size=chosen.world_size,
        world_size=world_size or chosen.world_size,
        num_bytes=sum(stored.bytes for stored in files),
        num_files=len(files),
        chain_bytes=chosen.chain_bytes(),
        chain_len=chosen.chain_len,
        newest_step=max([commit.step for commit in line], default=chosen.step),
        level=level,
        fallback_from=newest.seq if step is None and newest.seq > chosen.seq else None,
        abandons=_abandoned_steps(known, line, chosen),
        is_named=step is not None,
        warnings=tuple(warnings),
    )


def _abandoned_steps(known: dict[int, Commit], line: list[Commit], chosen: Commit) -> tuple[int, ...]:
    """Return the steps that can be restored now and no more once the job went back to `chosen`."""
    after = line_of_history({seq: commit for seq, commit in known.items() if seq <= chosen.seq})
    return tuple(sorted({commit.step for commit in line} - {commit.step for commit in after}))


def _named(store: Store, step: int, level: Level, target: str) -> Commit:
    chosen, _ = find_commit(store, step)
    try:
        verify_commit(store, chosen, level)
    except CorruptState as err:
        raise CorruptState(
            f"commit {chosen.seq} of step {step}, which --step names, is damaged: {err.fact}",
            expected=err.expected,
            do=f"`ett checkpoint verify {target}` says which are whole: name one, or none, and the newest is restored",
            code=err.code,
        ) from err
    return chosen


def _newest_whole(store: Store, line: list[Commit], level: Level, warnings: list[str]) -> Commit:
    for commit in line:
        try:
            verify_commit(store, commit, level)
        except CorruptState as err:
            warnings.append(f"commit {commit.seq} of step {commit.step} is passed over: {err.fact}")
            continue
        return commit
    raise RestoreFailed("no commit verifies: " + warnings[-1], do="`ett checkpoint verify` shows the damage")
