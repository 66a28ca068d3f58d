"""What a rank of the plain leg of `ett bench ett` does, one thing after the other.

Model, reader, training step and row exchange are those of the optimised leg, so that both learn the same from the same
samples. What is stock is all around them: the order of a start, a compilation into an empty cache at every attempt,
`torch.distributed.checkpoint.save` while training waits, and publishing while the ranks are held.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch._dynamo  # what torch.compile needs: two seconds of a start
from torch import nn

from ett.hooks.compile_callbacks import CompileCallbacks
from ett.hooks.module_watch import ModuleWatch
from ett.hooks.session import HookSession
from ett.tracker import Run
from ett.trainer.bench.plain_checkpoint import PlainCheckpoints
from ett.trainer.bench.plain_leg import COMPILED_PART, EVERY_STEPS
from ett.trainer.bench.plain_publish import publish
from ett.trainer.comm.process_group import join_process_group
from ett.trainer.job_recipe import read_recipe
from ett.trainer.loop import TrainingStep
from ett.trainer.loss_log import LossLog
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import build_model, open_reader
from ett.trainer.sparse.tiers.tiers import RankPlace
from ett.trainer.worker import METRICS

PUBLISHED = "published"
_TIMEOUT_S = 300.0


class PlainTraining:
    """Args: environ: torchrun's, with the two names above."""

    def __init__(self, run: Run, job_dir: Path, environ: Mapping[str, str]) -> None:
        recipe = read_recipe(job_dir / "recipe.json")
        self._config, self._every = recipe.trainer, int(environ[EVERY_STEPS])
        self._run, self._job_dir = run, job_dir
        torch.set_num_threads(self._config.dense.threads)
        with run.span("process_group"):
            self._collectives, _ = join_process_group(environ, _TIMEOUT_S)
        with run.span("data_warmup"):
            reader = open_reader(recipe, RankPlace(job_dir=job_dir, rank=run.rank, world_size=run.world_size))
        with run.span("model_build"):
            self._model = build_model(self._config, self._collectives, data=recipe.data)
            self._training_step = TrainingStep(self._config, self._model, self._collectives)
            _compile_later(run, self._model.get_submodule(environ[COMPILED_PART]))
        clock = StageClock(self._config.train.prefetch_depth)
        self._batches = PrefetchedBatches(reader, self._model.ebc, self._collectives.beside(), clock, _is_never_stopped)
        self._checkpoints = PlainCheckpoints(job_dir / "checkpoints", self._training_step, self._batches, run.rank)
        with run.span("restore"):
            self._step, self._cursor = self._checkpoints.load()
            if self._step:
                run.restored(self._step, self._cursor)
        self._losses = LossLog(job_dir / METRICS, restored_step=self._step) if run.rank == 0 else None
        with run.span("data_warmup"):
            self._batches.await_first()

    def run(self) -> None:
        """Train to the last step, save and publish."""
        max_steps = self._config.train.max_steps
        with self._batches as batches:
            for ready in batches:
                self._take(ready)
                if self._step == max_steps:
                    break
                if self._step % self._every == 0:
                    self._save("ckpt_save")
        self._run.train_end()
        self._save("final_save")
        with self._run.span("publish_final"):
            publish(self._model, self._collectives, self._job_dir / PUBLISHED)

    def _take(self, ready: ReadyBatch) -> None:
        size = ready.batch.global_size
        with self._run.step(samples=len(ready.batch.labels), global_samples=size, step=self._step + 1):
            loss, _ = self._training_step.take(self._step + 1, ready, self._batches.clock)
        self._step, self._cursor = self._step + 1, self._cursor + size
        if self._losses is not None:
            self._losses.append(self._step, loss, 1.0)

    def _save(self, span: str) -> None:
        name = f"step-{self._step}"
        with self._run.span(span):
            self._run.ckpt_begin(name, self._step, self._cursor)
            folder = self._checkpoints.save(self._step, self._cursor)
            self._run.committed(self._step, self._cursor, str(folder), ckpt_id=name)


def _compile_later(run: Run, part: nn.Module) -> None:
    """Have a part of the model compiled at its first step; what that takes is a span."""
    watch = ModuleWatch()
    watch.when_imported("torch._dynamo.callback", CompileCallbacks(HookSession(run, ("compile",), watch)).install)
    part.compile()


def _is_never_stopped() -> bool:
    return False  # SIGTERM ends this program, as it ends most
