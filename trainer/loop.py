"""The training loop: one global batch a step, the same bits on every run of one recipe, seed and world size.

Step n of rank k uses the reader's n-th batch, dropout masks of (seed, n, k, micro-batch) and the learning rates of n;
nothing else enters, so a restored job that knows n, the weights, the optimizer state and the cursor does what the first
one did.
The loss is a sum over samples divided by the global count, so ranks may hold unequal slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ett.checkpoint import Checkpointer
from ett.checkpoint.commit import Commit
from ett.errors import ConfigError
from ett.tracker import Run
from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import TrainerConfig
from ett.trainer.data.criteo import Batch
from ett.trainer.dense.adam import DenseAdam
from ett.trainer.dense.device import CPU, moved
from ett.trainer.dense.gradient_sums import gradient_sums
from ett.trainer.dense.micro_batches import MicroBatches
from ett.trainer.dense.owned_tensor import owned_tensor
from ett.trainer.dense.recipe_model import RecipeModel
from ett.trainer.dense.schedule import learning_rate_factor
from ett.trainer.embedding.job_tables import LookedUp
from ett.trainer.embedding.table_outputs import SparseInputs
from ett.trainer.evaluation import HeldOutScore
from ett.trainer.loss_log import LossLog
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches, ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.progress import ProgressLines
from ett.trainer.sparse.exchange import STOP


@dataclass(frozen=True, slots=True)
class Progress:
    step: int  # completed optimizer steps
    cursor: int  # global samples consumed
    stopped: bool = False  # a rank was asked to stop before training was over
    commit: Commit | None = None  # of this very place, where it was saved


class TrainingStep:
    """Model, optimizers and exchange of one rank; `take` is one optimizer step."""

    def __init__(
        self, config: TrainerConfig, model: RecipeModel, collectives: Collectives, device: torch.device = CPU
    ) -> None:
        """Args: device: where the dense part computes; it is moved there. Tables stay where they are."""
        self._config, self._collectives, self.device = config, collectives, device
        self.model = model.to(device)
        self._gradients = gradient_sums(config.dense, model, collectives)
        self.optimizer = DenseAdam(model, config.optimizer)

    def take(self, step: int, ready: ReadyBatch, clock: StageClock) -> tuple[float, bool]:
        """Train on this rank's slice of a global batch; every rank calls with the same step.

        Returns: the global batch's mean loss, and whether any rank has a stop requested: the same on all ranks.
        Raises: ConfigError: the loss is not finite, on all ranks.
        """
        factor = learning_rate_factor(self._config.optimizer, step)
        looked_up = self._look_up(ready, clock)
        with clock.run("forward_backward", ready.number):
            loss = self._forward_backward(step, ready.batch, looked_up.inputs)
        with clock.run("update_colliding", ready.number):
            wait_for_sums = self._gradients.start_sum(loss)
            update_others = self._start_update(looked_up, factor)
        clock.start("update_exclusive", ready.number, update_others)
        with clock.run("update_dense", ready.number):
            global_loss = self._finite(step, wait_for_sums())
            self.optimizer.step(self._config.optimizer.learning_rate * factor)
        return global_loss, bool(looked_up.control & STOP)

    def _forward_backward(self, step: int, batch: Batch, sparse: SparseInputs) -> Tensor:
        """Return this rank's part of the loss; the gradients of its samples are in the parameters and the rows."""
        num_parts = self._config.train.accumulate
        device = self.device
        micro_batches = MicroBatches(sparse, num_parts, device)
        self._gradients.zero(
            lambda model: model(moved(owned_tensor(batch.dense[:0]), device), sparse.leaves(slice(0, 0), device))
        )
        total = torch.zeros((), device=device)
        for number, (part, sparse_part) in enumerate(micro_batches):
            self.model.dropout.seed_step(self._config.train.seed, step, self._collectives.rank, number)
            with self._gradients.one_pass(is_last=number == num_parts - 1):
                logits = self._gradients.model(moved(owned_tensor(batch.dense[part]), device), sparse_part)
                labels = moved(owned_tensor(batch.labels[part]), device)
                loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum") / batch.global_size
                torch.autograd.backward(loss)
            total += loss.detach()
        micro_batches.join_gradients()
        return total

    def _look_up(self, ready: ReadyBatch, clock: StageClock) -> LookedUp:
        if ready.announced is None:
            with clock.run("look_up", ready.number):
                return self.model.ebc.look_up(ready.batch.features, ready.control)
        with clock.run("fetch_colliding", ready.number):
            return self.model.ebc.complete(ready.announced, ready.batch.features)

    def _start_update(self, looked_up: LookedUp, factor: float) -> Callable[[], None]:
        if self._config.train.freeze_embeddings:
            looked_up.drop()  # now: the next batch waits for it
            return _nothing
        return looked_up.start_update(factor)

    @staticmethod
    def _finite(step: int, loss: float) -> float:
        if not math.isfinite(loss):
            raise ConfigError(
                f"step {step}: the loss is {loss}",
                expected="a finite number: training has diverged",
                do="lower the learning rates; the newest checkpoint is from before this step",
            )
        return loss


def _nothing() -> None:
    """What is left to update where embeddings are frozen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLoop:
    """What one rank trains with; `run_from` drives it."""

    config: TrainerConfig
    training_step: TrainingStep
    batches: PrefetchedBatches
    checkpointer: Checkpointer
    run: Run
    losses: LossLog | None  # on rank 0
    lines: ProgressLines | None = None  # on rank 0
    score: Callable[[], HeldOutScore | None] | None = None  # None from it: all ranks agreed to stop

    def run_from(self, start: Progress) -> Progress:
        """Train from `start` until the epochs or train.max_steps are over, or until any rank is asked to stop."""
        at, max_steps = start, self.config.train.max_steps
        if max_steps and at.step >= max_steps:
            return at
        with self.batches as batches:
            for ready in batches:
                at, is_over = self._step(at, ready)
                if is_over:
                    break
        return at

    def _step(self, before: Progress, ready: ReadyBatch) -> tuple[Progress, bool]:
        """Take a step, score and save as is due; return where training is then, and whether it ends there."""
        step, batch, max_steps = before.step + 1, ready.batch, self.config.train.max_steps
        with self.run.step(samples=len(batch.labels), global_samples=batch.global_size, step=step):
            loss, stop = self.training_step.take(step, ready, self.batches.clock)
        at = Progress(step, before.cursor + batch.global_size, stopped=stop)
        if self.losses is not None:
            self.losses.append(step, loss, learning_rate_factor(self.config.optimizer, step))
        if self.lines is not None:
            self.lines.step(step, at.cursor, loss)
        if stop:
            return at, True
        # Scored before the save: a restored job has the score of every step up to its own.
        if step != max_steps and not self._score_if_due(step):
            return replace(at, stopped=True), True
        return replace(at, commit=self.checkpointer.step(step, at.cursor)), step == max_steps

    def _score_if_due(self, step: int) -> bool:
        """Return False where all ranks agreed to stop rather than to go on scoring."""
        every = self.config.eval.every_steps
        if self.score is None or not every or step % every:
            return True
        with self.run.span("eval"):
            score = self.score()
        if score is None:
            return False
        if self.losses is not None:
            self.losses.append_score(step, score)
        if self.lines is not None:
            self.lines.scored(step, score)
        return True
