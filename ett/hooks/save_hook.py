"""torch.save -> span `ckpt_save`, and a commit once the file has its final name.

A commit is written when the call has returned. Where the name looks like an unfinished file's, or the file is still
open, or the program has a recorder of its own, it waits for the next thing that the program does: by then the file
was renamed, closed or committed by the program, or it is gone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from ett.hooks.around import patch
from ett.hooks.positions import Positions
from ett.hooks.saved_files import Content, SavedFiles, SavedState, content_of, descriptor_of
from ett.hooks.session import HookSession, OpenSpan
from ett.hooks.state_kind import StateKind, state_kind
from ett.hooks.step_hook import StepHook

_UNFINISHED = re.compile(r"(^|[._/-])(te?mp|part|partial|incomplete|unfinished|new|inprogress)(?=$|[._/0-9-])|~$", re.I)


@dataclass(kw_only=True, slots=True)
class Save:
    """One save of the program, from its begin on."""

    kind: StateKind
    ckpt_id: str
    step: int
    cursor: int
    target: object
    span: OpenSpan | None = None
    fd: int = -1  # of the file that was written, whatever its name is by now
    saved: SavedState | None = None


class SaveHook:
    """Writes what the program saves, and keeps by content what it was (`ett/hooks/saved_files.py`).

    Attributes:
        waiting: saves that are not committed yet; `settle` looks at them.
    """

    def __init__(self, session: HookSession, steps: StepHook, positions: Positions, files: SavedFiles) -> None:
        self._session, self._steps, self._positions, self._files = session, steps, positions, files
        self._num_saves = 0
        self._depth = 0  # of saves within saves: the outermost is the program's
        self.waiting: list[Save] = []

    def install(self, torch: Any) -> None:
        patch([torch.serialization, torch], "save", self._before, self._after)

    def begin(self, kind: StateKind, target: object) -> Save | None:
        """Note the begin of a save, also for a hook of another way to save; None: it is part of another, or not ours.

        `end` must follow where a save was returned.
        """
        session = self._session
        if self._depth or not kind.is_state or not session.is_on("saves"):
            return None
        session.work()
        session.close_idle(session.now_ns())
        self._steps.intervals.flush()
        self.settle()
        self._depth += 1
        self._num_saves += 1
        run = session.run
        step, cursor = run.position
        save = Save(kind=kind, ckpt_id=f"a{run.attempt}-{self._num_saves}", step=step, cursor=cursor, target=target)
        save.span = session.begin_span("ckpt_save")
        if run.rank == 0:
            run.emit("ckpt_begin", id=save.ckpt_id, step=step, cursor=cursor, inferred=True)
        return save

    def end(self, save: Save, is_done: bool) -> None:
        """The save's call is over. Args: is_done: it returned."""
        self._depth -= 1
        assert save.span is not None
        now_ns = self._session.now_ns()
        self._session.end_span(save.span, now_ns)
        self._steps.saves_since_step.append((save.span.begin_ns, now_ns))
        if is_done:
            self._done(save)

    def settle(self, is_last: bool = False) -> None:
        """Commit what was waiting; `is_last`: nothing comes after this, a file keeps the name that it has."""
        unfinished: list[Save] = []
        while self.waiting:
            save = self.waiting.pop(0)
            name = _current_name(save.fd)
            if name and _UNFINISHED.search(os.path.basename(name)) and not is_last:
                unfinished.append(save)
                continue
            if name and save.saved is None:
                self._keep(save, content_of(f"/proc/self/fd/{save.fd}"))
            os.close(save.fd)
            if name and not _UNFINISHED.search(os.path.basename(name)):
                self._commit(save, name)
        self.waiting = unfinished

    @property
    def is_committing_rank(self) -> bool:
        return self._session.run.rank == 0

    def commit_folder(self, save: Save, content: Content, num_bytes: int, uri: str) -> None:
        """Commit a save whose content is not one file; called when it is complete, on any thread."""
        self._keep(save, content)
        self._commit(save, uri, num_bytes)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Save | None:
        value = args[0] if args else kwargs.get("obj")
        return self.begin(state_kind(value), args[1] if len(args) > 1 else kwargs.get("f"))

    def _after(self, token: Save, result: object, is_done: bool) -> None:
        self.end(token, is_done)

    def _done(self, save: Save) -> None:
        target = save.target
        if isinstance(target, str | os.PathLike):
            save.fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
            self._keep(save, content_of(target))
            name = os.fspath(target)
            if not _UNFINISHED.search(os.path.basename(name)) and "init" not in self._session.run.said:
                os.close(save.fd)
                self._commit(save, os.path.abspath(name))
            else:
                self.waiting.append(save)
        elif (descriptor := descriptor_of(target)) is not None:
            save.fd = os.dup(descriptor)
            self.waiting.append(save)

    def _keep(self, save: Save, content: Content | None) -> None:
        if content is None:
            return
        try:
            save.saved = SavedState(
                digest=content.digest(),
                num_bytes=content.num_bytes,
                step=save.step,
                cursor=save.cursor,
                ckpt_id=save.ckpt_id,
                has_optimizer=save.kind.has_optimizer,
                is_position_known=self._positions.is_known,
            )
            self._files.add(save.saved)
        finally:
            content.close()

    def _commit(self, save: Save, uri: str | bytes, num_bytes: int | None = None) -> None:
        run, saved = self._session.run, save.saved
        if run.rank == 0 and saved is not None and self._session.is_on("saves"):
            run.emit(
                "ckpt_commit",
                id=save.ckpt_id,
                step=save.step,
                cursor=save.cursor,
                uri=os.fsdecode(uri),
                bytes=saved.num_bytes if num_bytes is None else num_bytes,
                digest=saved.digest,
                tier="local",
                inferred=True,
            )


def _current_name(fd: int) -> str:
    """Return the path that the open file has now; "" where it has none any more."""
    if os.fstat(fd).st_nlink == 0:
        return ""
    return os.readlink(f"/proc/self/fd/{fd}")
