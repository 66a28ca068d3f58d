"""The dense part: model, dropout, buckets and schedule against plain references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, OptimizerConfig, SparseConfig
from ett.trainer.dense.adam import DenseAdam
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.dense.gradient_buckets import GradientBuckets
from ett.trainer.dense.interaction import LowRankCross
from ett.trainer.dense.schedule import learning_rate_factor
from ett.trainer.dense.seeded_dropout import SeededDropout
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.embedding.table_outputs import SparseInputs

TABLES, DIM, DENSE = 4, 6, 3


def make_model(seed: int = 1, dropout: float = 0.0, **kind: Any) -> Dlrm:
    tables = [EmbeddingBagConfig(0, name=f"t{i}", embedding_dim=DIM) for i in range(TABLES)]
    embeddings = JobTables(tables, SparseConfig(), LocalCollectives(), seed=seed)
    config = ModelConfig(embedding_dim=DIM, bottom_mlp=(8,), top_mlp=(9, 5), dropout=dropout, **kind)
    return Dlrm(config, embeddings, num_dense=DENSE, seed=seed)


def plain_forward(model: Dlrm, dense: Tensor, pooled: Tensor) -> Tensor:
    bottom = model.bottom(dense)
    vectors = [bottom, *pooled.unbind(1)]
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
    logits: Tensor = model.top(torch.cat([bottom, torch.stack(dots, 1)], 1))
    return logits.squeeze(1)


def test_the_interaction_equals_pair_by_pair_dot_products_forward_and_backward() -> None:
    model = make_model()
    dense, pooled = torch.randn(7, DENSE), torch.randn(7, TABLES, DIM)
    results = []
    for forward in (model, lambda d, p: plain_forward(model, d, p.pooled[0])):
        leaf = pooled.clone().requires_grad_()
        logits = forward(dense, SparseInputs([leaf], {}))
        logits.square().sum().backward()
        results.append((logits.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1])


def test_dcn_v2_crosses_the_vectors_as_its_formula_says_forward_and_backward() -> None:
    model = make_model(kind="dcn_v2", cross_layers=2, cross_rank=3)
    weights = model.state_dict()
    dense, pooled = torch.randn(7, DENSE), torch.randn(7, TABLES, DIM)

    def formula(dense: Tensor, sparse: SparseInputs) -> Tensor:
        first = crossed = torch.cat([model.bottom(dense), *sparse.pooled[0].unbind(1)], 1)
        for layer in range(2):
            low = crossed @ weights[f"interaction.down.{layer}.weight"].T
            wide = low @ weights[f"interaction.up.{layer}.weight"].T + weights[f"interaction.up.{layer}.bias"]
            crossed = first * wide + crossed
        logits: Tensor = model.top(crossed)
        return logits.squeeze(1)

    results = []
    for forward in (model, formula):
        leaf = pooled.clone().requires_grad_()
        logits = forward(dense, SparseInputs([leaf], {}))
        logits.square().sum().backward()
        results.append((logits.detach(), leaf.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.slow
def test_dcn_v2_equals_torchrecs_cross_network() -> None:
    crossnet = pytest.importorskip("torchrec.modules.crossnet", reason="torchrec is not installed: make peers")
    ours = LowRankCross(TABLES, DIM, num_layers=3, rank=5)
    theirs = crossnet.LowRankCrossNet(TABLES * DIM, num_layers=3, low_rank=5)
    with torch.no_grad():
        for layer in range(3):
            ours.down[layer].weight.copy_(theirs.V_kernels[layer])
            ours.up[layer].weight.copy_(theirs.W_kernels[layer])
            ours.up[layer].bias.copy_(theirs.bias[layer].normal_())
    vectors = torch.randn(9, TABLES, DIM)
    torch.testing.assert_close(ours(vectors), theirs(vectors.flatten(1)))


def test_models_of_one_seed_have_equal_dense_weights_whatever_was_drawn_before() -> None:
    first = make_model().state_dict()
    torch.rand(5)
    second = make_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["top.0.weight"], make_model(seed=2).state_dict()["top.0.weight"])


def test_building_a_model_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    make_model()
    assert torch.equal(before, torch.get_rng_state())


def test_embedding_rows_are_not_dense_state() -> None:
    assert all(name.startswith(("bottom.", "top.")) for name in make_model().state_dict())


def drawn(dropout: SeededDropout, *key: int) -> Tensor:
    dropout.seed_step(*key)
    return dropout(torch.ones(64, 8))


def test_dropout_masks_follow_from_seed_step_rank() -> None:
    dropout = SeededDropout(0.5)
    masks = [drawn(dropout, *key) for key in ((1, 1, 0), (1, 1, 1), (1, 2, 0), (2, 1, 0), (1, 1, 0))]
    assert torch.equal(masks[0], masks[4])
    assert all(not torch.equal(masks[0], other) for other in masks[1:4])


def test_dropout_keeps_the_mean() -> None:
    values = drawn(SeededDropout(0.25), 1, 1, 1)
    assert values.unique().tolist() == pytest.approx([0.0, 4 / 3])
    # 512 draws: the standard deviation of the mean is 0.026, so 0.1 is almost four of them; the seed is fixed.
    assert values.mean().item() == pytest.approx(1.0, abs=0.1)


def test_dropout_is_off_in_evaluation() -> None:
    dropout = SeededDropout(0.5).eval()
    assert torch.equal(dropout(torch.ones(9)), torch.ones(9))


class TwoParts(nn.Module):
    def __init__(self, shift: float) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.arange(40.0) + shift)
        self.a = nn.Parameter(torch.ones(3, 5) * shift)
        self.c = nn.Parameter(torch.ones(()) * shift)


@pytest.mark.parametrize(("bucket_bytes", "num_buckets"), [(4, 3), (256, 2), (1 << 20, 1)])
def test_gradients_are_summed_over_ranks(
    on_ranks: Callable[[int, Callable[[Any], Any]], list[Any]], bucket_bytes: int, num_buckets: int
) -> None:
    def body(collectives: Any) -> tuple[float, int, list[Tensor]]:
        model = TwoParts(1.0 + collectives.rank)
        buckets = GradientBuckets(model, collectives, bucket_bytes=bucket_bytes)
        for _ in range(2):  # the second time must start from zero
            buckets.zero()
            loss = sum(p.square().sum() for p in model.parameters()) / 2
            loss.backward()
            total = buckets.start_sum(torch.tensor(0.5 + collectives.rank))()
        return total, len(buckets), [p.grad for p in model.parameters() if p.grad is not None]

    for total, count, grads in on_ranks(3, body):
        assert (total, count) == (4.5, num_buckets)
        parameters = [list(TwoParts(shift).parameters()) for shift in (1.0, 2.0, 3.0)]
        expected = [sum(p.detach() for p in group) for group in zip(*parameters, strict=True)]
        assert all(torch.equal(grad, want) for grad, want in zip(grads, expected, strict=True))


def backward(model: nn.Module, scale: float) -> None:
    model.zero_grad()
    sum((param * scale).sin().sum() for param in model.parameters()).backward()


def test_adam_equals_torch_to_the_bit() -> None:
    config = OptimizerConfig(learning_rate=0.01, beta1=0.8, eps=1e-7)
    ours, theirs = TwoParts(0.5), TwoParts(0.5)
    adam = DenseAdam(ours, config)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.8, config.beta2), eps=1e-7, foreach=True)
    for step in range(1, 20):
        backward(ours, step)
        backward(theirs, step)
        reference.param_groups[0]["lr"] = 0.01 / step
        reference.step()
        adam.step(0.01 / step)
    assert all(torch.equal(p, q) for p, q in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_adam_goes_on_from_its_state() -> None:
    first, second = TwoParts(0.5), TwoParts(0.5)
    adam, restored = DenseAdam(first, OptimizerConfig()), DenseAdam(second, OptimizerConfig())
    backward(first, 1.0)
    adam.step(0.1)
    second.load_state_dict(first.state_dict())
    restored.load_state_dict(adam.state_dict())
    for model, optimizer in ((first, adam), (second, restored)):
        backward(model, 2.0)
        optimizer.step(0.1)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_the_factor_rises_then_falls_by_half_a_cosine() -> None:
    config = OptimizerConfig(schedule="cosine", warmup_steps=4, decay_steps=10, min_factor=0.2)
    factors = [learning_rate_factor(config, step) for step in (1, 2, 4, 9, 14, 1000)]
    assert factors == pytest.approx([0.25, 0.5, 1.0, 0.6, 0.2, 0.2])


def test_a_constant_schedule_stays_after_its_warm_up() -> None:
    config = OptimizerConfig(warmup_steps=2)
    assert [learning_rate_factor(config, step) for step in (1, 2, 3, 99)] == [0.5, 1.0, 1.0, 1.0]
