"""transformers.Trainer -> steps, samples, evaluations, checkpoints and restores as the trainer itself knows them.

Where the generic hooks have to guess, the trainer says: which batches make an update step (it collects them before the
step, and accelerate reads one more), when the step is complete, and that a `checkpoint-N` is one checkpoint of many
files, a model in safetensors among them. Methods of Trainer are watched rather than a TrainerCallback added, which the
program would see in its own list. Needs transformers 4.46 or later; with an earlier one the generic hooks are alone.
"""

from __future__ import annotations

import os
from typing import Any

from ett.hooks.around import patch
from ett.hooks.batch_hook import BatchHook
from ett.hooks.batch_size import batch_size
from ett.hooks.load_hook import LoadHook, LoadToken
from ett.hooks.save_hook import Save, SaveHook
from ett.hooks.saved_files import folder_content
from ett.hooks.session import HookSession, OpenSpan
from ett.hooks.state_kind import StateKind
from ett.hooks.step_hook import StepHook

# Every rank writes its own of these, when it comes to it: a commit of rank 0 cannot tell whether it is there yet.
_OF_EACH_RANK = "rng_state*"


class TrainerHook:
    """Around the methods of Trainer; the other hooks do the writing."""

    def __init__(
        self, session: HookSession, steps: StepHook, batches: BatchHook, saves: SaveHook, loads: LoadHook
    ) -> None:
        self._session, self._steps, self._batches, self._saves, self._loads = session, steps, batches, saves, loads

    def install(self, module: Any) -> None:
        """Args: module: transformers.trainer."""
        trainer, handler = module.Trainer, module.CallbackHandler
        if not self._session.is_on("transformers") or not hasattr(trainer, "get_batch_samples"):
            return
        patch([trainer], "train", self._before_train, self._after_train)
        patch([trainer], "get_batch_samples", self._before_batches, self._after_batches)
        patch([handler], "on_step_end", self._step_ended, lambda *_: None)
        for name in ("evaluate", "predict"):
            patch([trainer], name, self._before_eval, self._after_eval)
        patch([trainer], "_save_checkpoint", self._before_checkpoint, self._after_save)
        patch([trainer], "save_model", self._before_model, self._after_save)
        for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_rng_state"):
            patch([trainer], name, self._before_load, self._after_load)

    def _before_train(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        if self._steps.is_led:
            return None
        self._session.work()
        self._steps.intervals.flush()
        self._steps.is_led = True
        return True

    def _after_train(self, token: bool, result: object, is_done: bool) -> None:
        self._steps.is_led = False

    def _before_batches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        return self._steps.is_led or None

    def _after_batches(self, token: bool, result: Any, is_done: bool) -> None:
        if is_done and result[0]:
            sizes = [batch_size(batch) for batch in result[0]]
            known = [size for size in sizes if size is not None]
            samples = sum(known) if len(known) == len(sizes) else None
            self._steps.intervals.collected(self._session.now_ns(), samples)

    def _step_ended(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._steps.is_led and self._session.is_on("steps"):
            self._steps.intervals.completed(self._session.now_ns())

    def _before_eval(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[OpenSpan | None] | None:
        session, batches = self._session, self._batches
        if batches.is_told_eval:  # evaluate() of several data sets calls itself
            return None
        session.work()
        session.close_idle(session.now_ns())
        self._steps.intervals.flush()
        batches.is_told_eval = True
        return (session.begin_span("eval") if session.is_on("eval") else None,)

    def _after_eval(self, token: tuple[OpenSpan | None], result: object, is_done: bool) -> None:
        self._batches.is_told_eval = False
        if token[0] is not None:
            self._session.end_span(token[0])

    def _before_checkpoint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Save | None:
        trainer = args[0]
        trial = args[2] if len(args) > 2 else kwargs.get("trial")
        folder = os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")
        return self._saves.begin(StateKind(True, not trainer.args.save_only_model), os.path.abspath(folder))

    def _before_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Save | None:
        folder = (args[1] if len(args) > 1 else kwargs.get("output_dir")) or args[0].args.output_dir
        return self._saves.begin(StateKind(True, False), os.path.abspath(folder))

    def _after_save(self, save: Save, result: object, is_done: bool) -> None:
        self._saves.end(save, is_done=False)
        if is_done and self._saves.is_committing_rank:
            assert isinstance(save.target, str)
            content, num_bytes = folder_content(save.target, pattern="*", without=_OF_EACH_RANK)
            self._saves.commit_folder(save, content, num_bytes, save.target)

    def _before_load(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LoadToken | None:
        folder = args[1] if len(args) > 1 else kwargs.get("resume_from_checkpoint", kwargs.get("checkpoint"))
        if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
            return None
        return self._loads.begin(lambda: folder_content(folder, pattern="*", without=_OF_EACH_RANK)[0])

    def _after_load(self, token: LoadToken, result: object, is_done: bool) -> None:
        self._loads.end(token, is_done)
