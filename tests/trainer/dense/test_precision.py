"""bfloat16 in the dense part: what is narrow, and what stays float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import DenseConfig, ModelConfig, TrainerConfig
from ett.trainer.dense.adam import DenseAdam
from ett.trainer.dense.mlp import draw_weights, mlp
from ett.trainer.dense.precision import computing_in
from ett.trainer.embedding.table_outputs import SparseInputs
from ett.trainer.rank_start import build_model

CPU = torch.device("cpu")


def logits_and_gradients(kind: Any, precision: Any) -> tuple[Tensor, list[Tensor]]:
    config = TrainerConfig(model=ModelConfig(kind=kind), dense=DenseConfig(precision=precision))
    model = build_model(config, LocalCollectives())
    generator = torch.Generator().manual_seed(1)
    pooled = torch.randn(32, 26, 16, generator=generator).requires_grad_()
    logits = model(torch.randn(32, 13, generator=generator), SparseInputs([pooled], {}))
    logits.square().sum().backward()
    grads = [pooled.grad, *(param.grad for param in model.parameters())]
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {s.dtype for s in DenseAdam(model, config.optimizer).state_dict()["exp_avg"].values()} == {torch.float32}
    return logits.detach(), [grad for grad in grads if grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dlrm", "dcn_v2"])
def test_bfloat16_is_near_float32_and_gives_float32_logits_and_gradients(kind: str) -> None:
    wide, wide_grads = logits_and_gradients(kind, "float32")
    narrow, narrow_grads = logits_and_gradients(kind, "bfloat16")
    assert narrow.dtype == torch.float32
    assert not torch.equal(wide, narrow)
    # Each of six products rounds its inputs, weights and outputs by 2^-9 of what they are, and sums cancel to half.
    bound = 6 * 3 * 2 * 2.0**-9
    assert float((wide - narrow).norm()) <= bound * float(wide.norm())
    for want, got in zip(wide_grads, narrow_grads, strict=True):
        assert got.dtype == torch.float32
        assert float((want - got).norm()) <= 2 * bound * float(want.norm())  # there and back


def test_logits_are_not_rounded_to_bfloat16() -> None:
    layers = mlp([4, 8, 1])
    draw_weights(layers, torch.Generator().manual_seed(1))
    with computing_in("bfloat16", CPU):
        logits = layers(torch.randn(50, 4, generator=torch.Generator().manual_seed(2)))
    assert not torch.equal(logits, logits.bfloat16().float())


def test_only_what_runs_within_the_context_is_narrow() -> None:
    layer = nn.Linear(2, 2)
    with computing_in("float32", CPU):
        assert layer(torch.ones(1, 2)).dtype == torch.float32
    with computing_in("bfloat16", CPU):
        assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
    assert layer(torch.ones(1, 2)).dtype == torch.float32
