"""A step in several forward and backward passes, against the same samples in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, SparseConfig, TrainConfig, TrainerConfig
from ett.trainer.dense.micro_batches import MicroBatches
from ett.trainer.embedding.table_outputs import SparseInputs
from ett.trainer.jagged import JaggedTensor
from ett.trainer.loop import TrainingStep
from ett.trainer.pipeline.prefetched_batches import ReadyBatch
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.rank_start import build_model

OnRanks = Callable[[int, Callable[[Any], Any]], list[Any]]
BATCH = 13
CONFIG = TrainerConfig(
    model=ModelConfig(embedding_dim=4, bottom_mlp=(5,), top_mlp=(6,)),
    sparse=SparseConfig(optimizer="sgd", learning_rate=1.0, init_scale=0.5),
    train=TrainConfig(batch_size=BATCH),
)
# Elements of the longest sum before a parameter's gradient: those over layers, none wider than 4 + 27 * 26 / 2 vectors.
SUMMANDS = 4 * 355


@dataclass
class PlainBatch:
    labels: np.ndarray[Any, Any]
    dense: np.ndarray[Any, Any]
    features: dict[str, np.ndarray[Any, Any]]
    global_size: int = BATCH


def batch(seed: int = 1, rows: slice = slice(None)) -> Any:
    rng = np.random.default_rng(seed)
    labels, dense = (rng.random(BATCH) < 0.4).astype(np.float32), rng.standard_normal((BATCH, 13)).astype(np.float32)
    ids = rng.integers(0, 5, (26, BATCH))[:, rows]
    return PlainBatch(labels[rows], dense[rows], {f"C{i + 1}": of_table for i, of_table in enumerate(ids)})


def after_a_step(config: TrainerConfig, rows: slice = slice(None)) -> tuple[float, list[Tensor], Tensor]:
    """Return the loss, the dense gradients, and how far the rows of all tables moved."""
    step = TrainingStep(config, build_model(config, LocalCollectives()), LocalCollectives())
    every_row = {f"C{i}": np.arange(5) for i in range(1, 27)}
    before = step.model.ebc.look_up(every_row).inputs.pooled[0].detach()
    clock = StageClock(0)
    with clock.run("read", 1):
        pass
    with clock.run("exchange_samples", 1):
        ready = ReadyBatch(1, batch(rows=rows), 0, None)
    loss, _ = step.take(1, ready, clock)
    after = step.model.ebc.look_up(every_row).inputs.pooled[0].detach()
    return (
        loss,
        [param.grad for _, param in sorted(step.model.named_parameters()) if param.grad is not None],
        after - before,
    )


def accumulating(num_parts: int, config: TrainerConfig = CONFIG) -> TrainerConfig:
    return replace(config, train=replace(config.train, accumulate=num_parts))


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [2, 5, BATCH, BATCH + 4])
@pytest.mark.parametrize("kind", ["dlrm", "dcn_v2"])
def test_a_step_in_parts_differs_from_one_in_a_batch_by_the_order_of_its_sums(kind: Any, num_parts: int) -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, kind=kind))
    loss, grads, moved = after_a_step(config)
    part_loss, part_grads, part_moved = after_a_step(accumulating(num_parts, config))
    # Each is a sum over samples of what each sample has alone. Two orders of n summands differ by at most
    # 2 n 2^-24 times the sum of their magnitudes; so do the sums before it, which matrix products may cut otherwise.
    alone = [after_a_step(config, slice(i, i + 1)) for i in range(BATCH)]
    scale = 2 * (BATCH + SUMMANDS) * 2.0**-24
    assert abs(loss - part_loss) <= scale * sum(one[0] for one in alone)
    for number, (got, want) in enumerate(zip(part_grads, grads, strict=True)):
        magnitude = sum(one[1][number].abs().max() for one in alone)
        assert float((got - want).abs().max()) <= scale * float(magnitude)
    assert float((part_moved - moved).abs().max()) <= scale * float(sum(one[2].abs().max() for one in alone))
    assert moved.any()


def test_parts_cover_each_example_once_and_their_gradients_are_put_back_in_order() -> None:
    rows = torch.arange(7.0 * 2 * 3).view(7, 2, 3).requires_grad_()
    lengths = torch.tensor([2, 0, 3, 1, 0, 4, 1])
    history = torch.arange(11.0 * 2).view(11, 2).requires_grad_()
    parts = MicroBatches(SparseInputs([rows], {"history": JaggedTensor(history, lengths=lengths)}), 3)
    seen, histories = [], []
    for part, sparse in parts:
        seen.extend(range(7)[part])
        assert torch.equal(sparse.pooled[0], rows[part])
        assert sparse.sequences["history"].lengths().tolist() == lengths[part].tolist()
        histories.append(sparse.sequences["history"].values())
        sum((leaf * leaf.detach()).sum() for leaf in sparse.values()).backward()
    parts.join_gradients()
    assert seen == list(range(7))
    assert torch.equal(torch.cat(histories), history)
    assert all(leaf.grad is not None and torch.equal(leaf.grad, leaf.detach()) for leaf in (rows, history))


def test_a_part_that_the_loss_does_not_use_has_gradients_of_zero() -> None:
    rows = torch.ones(4, 1, 1, requires_grad=True)
    parts = MicroBatches(SparseInputs([rows], {}), 2)
    for number, (_, sparse) in enumerate(parts):
        if number:
            sparse.pooled[0].sum().backward()
    parts.join_gradients()
    assert rows.grad is not None and rows.grad.flatten().tolist() == [0, 0, 1, 1]


def test_a_part_of_more_than_there_are_examples_is_empty() -> None:
    rows = torch.ones(2, 1, 1, requires_grad=True)
    parts = MicroBatches(SparseInputs([rows], {}), 5)
    lengths = []
    for _, sparse in parts:
        lengths.append(sparse.num_examples)
        sparse.pooled[0].sum().backward()
    parts.join_gradients()
    assert lengths == [0, 0, 1, 0, 1]
    assert rows.grad is not None and rows.grad.sum() == 2


def test_each_part_has_dropout_masks_of_its_own() -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, dropout=0.5))
    dropout = build_model(config, LocalCollectives()).dropout
    masks = []
    for micro_batch in (0, 1, 0):
        dropout.seed_step(1, 1, 0, micro_batch)
        masks.append(dropout(torch.ones(64)))
    assert torch.equal(masks[0], masks[2]) and not torch.equal(masks[0], masks[1])
