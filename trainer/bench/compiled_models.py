"""The models of `ett bench compile`, each as a step that can be taken again: forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ett.recipe import resolve
from ett.trainer.compile_ahead import stand_in
from ett.trainer.compile_plan import compile_plan
from ett.trainer.embedding.table_outputs import SparseInputs
from ett.trainer.job_recipe import build_recipe

Step = Callable[[], list[Tensor]]  # results and gradients, the same in every process


def compiled_step(name: str, model: Mapping[str, Any], threads: int) -> Step:
    """Return the step of a model of benchmarks/workloads/compile.toml; its first call compiles."""
    torch.set_num_threads(threads)
    return _STEPS[name](model)


def _mlp(model: Mapping[str, Any]) -> Step:
    width = model["width"]
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(model["blocks"])]
    return _step_of(nn.Sequential(*blocks, nn.Linear(width, 1)), (model["batch"], width))


def _sequence(model: Mapping[str, Any]) -> Step:
    widths = model["widths"]
    layers: list[nn.Module] = []
    for width, following in zip(widths, [*widths[1:], 1], strict=True):
        layers.append(nn.TransformerEncoderLayer(width, model["heads"], 2 * width, dropout=0.0, batch_first=True))
        layers.append(nn.Linear(width, following))
    return _step_of(nn.Sequential(*layers), (model["batch"], model["length"], widths[0]))


def _step_of(model: nn.Module, shape: tuple[int, ...]) -> Step:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    given = torch.randn(shape, generator=generator, requires_grad=True)
    compiled: list[Callable[[Tensor], Tensor]] = []

    def step() -> list[Tensor]:
        if not compiled:  # torch.compile imports the compiler
            compiled.append(cast(Callable[[Tensor], Tensor], torch.compile(model, dynamic=False)))
        values = compiled[0](given)
        return [values, *torch.autograd.grad(values.sum(), [given, *model.parameters()])]

    return step


def _dlrm(model: Mapping[str, Any]) -> Step:
    recipe = build_recipe(resolve(model["recipe"], ["compile.dense=true"]).sections)
    plan = compile_plan(recipe, 1)
    dlrm = stand_in(recipe.trainer, plan)
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(plan.num_examples, plan.num_dense, generator=generator)
    pooled = [
        torch.randn(plan.num_examples, len(names), dim, generator=generator, requires_grad=True)
        for dim, names in plan.pooled
    ]

    def step() -> list[Tensor]:
        dlrm.dropout.seed_step(1, 1, 0)
        logits = dlrm(dense, SparseInputs(pooled, {}))
        return [logits, *torch.autograd.grad(logits.sum(), [*pooled, *dlrm.parameters()])]

    return step


_STEPS: dict[str, Callable[[Mapping[str, Any]], Step]] = {"mlp": _mlp, "dlrm": _dlrm, "sequence": _sequence}
