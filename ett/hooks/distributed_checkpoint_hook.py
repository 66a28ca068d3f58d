"""torch.distributed.checkpoint -> spans, commits and restores, as `save_hook.py` and `load_hook.py` do for torch.save.

A commit is written when `save` has returned, or when the future of `async_save` is done; the checkpoint is the whole
folder, known by the names, sizes and bytes of its files.
"""

from __future__ import annotations

import os
from typing import Any

from ett.hooks.around import patch, quiet
from ett.hooks.load_hook import LoadHook, LoadToken
from ett.hooks.save_hook import Save, SaveHook
from ett.hooks.saved_files import folder_content
from ett.hooks.state_kind import StateKind, state_kind


class DistributedCheckpointHook:
    """Around save, async_save and load."""

    def __init__(self, saves: SaveHook, loads: LoadHook) -> None:
        self._saves, self._loads = saves, loads
        self._in_background: set[str] = set()  # async_save calls save on a thread of its own

    def install(self, module: Any) -> None:
        """Args: module: torch.distributed.checkpoint."""
        saver, loader = module.state_dict_saver, module.state_dict_loader
        patch([saver, module], "save", self._before_save, self._after_save)
        patch([saver, module], "async_save", self._before_async_save, self._after_async_save)
        patch([loader, module], "load", self._before_load, self._after_load)

    def _before_save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Save | None:
        value = args[0] if args else kwargs.get("state_dict")
        if _folder(kwargs, "storage_writer") in self._in_background:
            return None
        return self._saves.begin(StateKind(True, state_kind(value).has_optimizer), _folder(kwargs, "storage_writer"))

    def _after_save(self, save: Save, result: object, is_done: bool) -> None:
        self._saves.end(save, is_done=False)
        if is_done:
            self._commit(save)

    def _before_async_save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Save | None:
        save = self._before_save(args, kwargs)
        if save is not None:
            self._in_background.add(str(save.target))
        return save

    def _after_async_save(self, save: Save, result: Any, is_done: bool) -> None:
        self._saves.end(save, is_done=False)
        future = getattr(result, "upload_completion", result)  # torch returns both futures, or this one alone
        if not is_done or future is None:
            self._in_background.discard(str(save.target))
            return

        def done(future: Any) -> None:
            self._in_background.discard(str(save.target))
            if future.exception() is None:
                self._commit(save)

        future.add_done_callback(quiet(done))

    def _commit(self, save: Save) -> None:
        if isinstance(save.target, str) and self._saves.is_committing_rank:
            content, num_bytes = folder_content(save.target)
            self._saves.commit_folder(save, content, num_bytes, save.target)

    def _before_load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoadToken | None:
        folder = _folder(kwargs, "storage_reader")
        return self._loads.begin(lambda: folder_content(folder)[0] if folder and os.path.isdir(folder) else None)

    def _after_load(self, token: LoadToken, result: object, is_done: bool) -> None:
        self._loads.end(token, is_done)


def _folder(kwargs: dict[str, Any], storage: str) -> str:
    """Return the checkpoint's local folder, "" where it is elsewhere."""
    target = kwargs.get("checkpoint_id")
    if target is None:
        target = getattr(kwargs.get(storage), "path", None)
    return os.path.abspath(target) if isinstance(target, str | os.PathLike) else ""
