"""torch.load of what this job saved -> span `restore`, and the position of that save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ett.hooks.around import patch
from ett.hooks.positions import Positions
from ett.hooks.saved_files import Content, SavedFiles, SavedState, content_of
from ett.hooks.session import HookSession, OpenSpan
from ett.hooks.step_hook import StepHook

LoadToken = tuple[OpenSpan, SavedState | None]


class LoadHook:
    """Looks at loads before the process's first step: one after it (the best model, for a last test) moves nothing."""

    def __init__(self, session: HookSession, steps: StepHook, positions: Positions, files: SavedFiles) -> None:
        self._session, self._steps, self._positions, self._files = session, steps, positions, files
        self._is_loading = False

    def install(self, torch: Any) -> None:
        patch([torch.serialization, torch], "load", self._before, self._after)

    def begin(self, find: Callable[[], Content | None]) -> LoadToken | None:
        """Note the begin of a load, also for another way to load; `end` must follow where something was returned.

        Args: find: returns the content to be loaded, None where nobody can tell.
        """
        session = self._session
        session.work()
        if self._is_loading or self._steps.num_steps or not session.is_on("loads"):
            return None
        try:
            content = find()
        except OSError:
            return None  # torch says so itself
        if content is None:
            return None
        try:
            saved = self._files.find(content)
        finally:
            content.close()
        self._is_loading = True
        return session.begin_span("model_build" if saved is None else "restore"), saved

    def end(self, token: LoadToken, is_done: bool) -> None:
        self._is_loading = False
        span, saved = token
        self._session.end_span(span)
        if is_done and saved is not None and self._session.is_on("loads"):
            self._positions.loaded(saved)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoadToken | None:
        return self.begin(lambda: content_of(args[0] if args else kwargs.get("f")))

    def _after(self, token: LoadToken, result: object, is_done: bool) -> None:
        self.end(token, is_done)
