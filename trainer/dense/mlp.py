"""Stacks of linear layers whose weights the model draws, and how it draws them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ett.trainer.dense.precision import Float32Linear, UndrawnLinear
from ett.trainer.dense.projection import Projection
from ett.trainer.dense.seeded_dropout import SeededDropout


def mlp(widths: Sequence[int], *, dropout: SeededDropout | None = None, ends_in_relu: bool = False) -> nn.Sequential:
    """Return Linear, ReLU (and dropout), …, Linear with weights that nobody has drawn yet.

    A last layer without ReLU gives logits, float32 whatever the precision.

    Args:
        widths: of the input, every hidden layer and the output.
    """
    layers: list[nn.Module] = []
    last = len(widths) - 2
    for i in range(last + 1):
        kind = UndrawnLinear if i < last or ends_in_relu else Float32Linear
        layers.append(kind(widths[i], widths[i + 1]))
        if i < last or ends_in_relu:
            layers.append(nn.ReLU())
        if i < last and dropout is not None:
            layers.append(dropout)
    return nn.Sequential(*layers)


def through(layers: nn.Sequential, values: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """Return what the layers make of values, with masks in place of those that their dropout draws; [] for none."""
    left = list(masks)
    for layer in layers:
        if not isinstance(layer, SeededDropout):
            values = layer(values)
        elif left:
            values = values * left.pop(0)
    return values


def draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the linear layers as torch does by default, but from a generator that nothing else uses."""
    for module in model.modules():
        if isinstance(module, Projection):
            bound = module.weight.shape[1] ** -0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=generator)
            if module.bias is not None:
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
