"""Where a restarted attempt goes on: what a load said, here or on another rank, or that nobody knows."""

from __future__ import annotations

from pathlib import Path

from ett.hooks.saved_files import SavedState
from ett.hooks.session import HookSession
from ett.job_folder import read_json, write_json


class Positions:
    """The position of this rank, and what it tells the others through the attempt's folder."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self._found: SavedState | None = None
        self._is_told = False  # by rank 0
        run = session.run
        self._note = None if run.job_dir is None else run.job_dir / "attempts" / str(run.attempt) / "position.json"

    @property
    def is_known(self) -> bool:
        run = self._session.run
        return run.attempt <= 1 or self._found is not None or self._is_told or "restored" in run.said

    def loaded(self, saved: SavedState) -> None:
        """Take over the position of a state that this job saved and the program has loaded before its first step.

        Of several the last one with an optimizer's state counts, else the last: a second model is no place to go on.
        """
        if not saved.is_position_known:
            return
        if self._found is not None and self._found.has_optimizer and not saved.has_optimizer:
            return
        is_same = self._found is not None and (self._found.step, self._found.cursor) == (saved.step, saved.cursor)
        self._found = saved
        run = self._session.run
        run.move_to(saved.step, saved.cursor)
        if not is_same:
            fields = {"step": saved.step, "cursor": saved.cursor, "id": saved.ckpt_id}
            run.emit("restore", scope="full", verified=False, inferred=True, **fields)
            if self._note is not None:
                _write_note(self._note, saved)

    def settle(self) -> None:
        """Called before the first step is recorded."""
        run = self._session.run
        if self.is_known:
            return
        # Rank 0 may be the only one that reads the file, and send the others what is in it.
        note = {} if self._note is None else read_json(self._note)
        if note:
            self._is_told = True
            run.move_to(note["step"], note["cursor"])
        else:
            run.emit("cursor_unknown", step=run.position[0] + 1)


def _write_note(path: Path, saved: SavedState) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"step": saved.step, "cursor": saved.cursor})
