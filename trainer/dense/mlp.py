"""Stacks of linear layers whose weights the model draws, and how it draws them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ett.trainer.dense.precision import Float32Linear
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
        kind = nn.Linear if i < last or ends_in_relu else Float32Linear
        layers.append(linear(widths[i], widths[i + 1], kind=kind))
        if i < last or ends_in_relu:
            layers.append(nn.ReLU())
        if i < last and dropout is not None:
            layers.append(dropout)
    return nn.Sequential(*layers)


def linear(width_in: int, width_out: int, *, bias: bool = True, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """Return a layer with weights that nobody has drawn yet: drawing them here would use torch's global generator."""
    layer: nn.Linear = nn.utils.skip_init(kind, width_in, width_out, bias=bias)  # type: ignore[no-untyped-call]
    return layer


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
