"""What `ett restore --to DIR` writes of a commit: a checkpoint folder, or tensors for other programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ett.checkpoint.commit import Commit
from ett.checkpoint.export import copy_commit, first_whole, make_destination
from ett.checkpoint.progress import Watch
from ett.checkpoint.store import Store
from ett.checkpoint.verify import Level, verify_commit

Form = Literal["checkpoint", "torch", "safetensors"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CopiedCommit:
    path: Path
    form: Form
    seq: int
    step: int
    cursor: int
    num_files: int
    num_bytes: int
    fallback_from: int | None = None  # the newest commit, if that did not verify


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """What is asked for. step: None for the newest that verifies. level: checked before anything is written."""

    to: Path
    form: Form
    step: int | None
    level: Level
    watch: Watch

    def of(self, store: Store) -> CopiedCommit:
        """Write a commit, every byte verified, into a new or empty folder.

        Raises: NoCheckpoint, NotFound: nothing to copy. RestoreFailed: no commit verifies. CorruptState: the one of
            `step` does not. ConfigError: `to` holds something; a tensor does not fit the form. AccessDenied,
            Unreachable: `to` cannot be made or written.
        """

        def copy(commit: Commit) -> CopiedCommit:
            if self.level == "load":  # the other levels are less than what is checked anyway
                verify_commit(store, commit, self.level)
            return self._files(store, commit) if self.form == "checkpoint" else self._tensors(store, commit)

        make_destination(self.to)
        copied, fallback_from = first_whole(store, self.step, copy)
        return replace(copied, fallback_from=fallback_from)

    def _files(self, store: Store, commit: Commit) -> CopiedCommit:
        made = copy_commit(store, commit, self.to, self.watch)
        return self._copied(commit, made.num_files, made.num_bytes)

    def _tensors(self, store: Store, commit: Commit) -> CopiedCommit:
        from ett.checkpoint.safetensors_export import export_safetensors
        from ett.checkpoint.torch_export import export_torch

        write = export_torch if self.form == "torch" else export_safetensors
        with self.watch(store, "exporting", commit.num_bytes) as reading:
            made = write(reading, commit, self.to)
        return self._copied(commit, sum(1 for _ in made.path.iterdir()), made.num_bytes)

    def _copied(self, commit: Commit, num_files: int, num_bytes: int) -> CopiedCommit:
        return CopiedCommit(
            path=self.to,
            form=self.form,
            seq=commit.seq,
            step=commit.step,
            cursor=commit.cursor,
            num_files=num_files,
            num_bytes=num_bytes,
        )
