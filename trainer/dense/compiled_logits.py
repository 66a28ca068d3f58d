"""A model's arithmetic through torch.compile, for one number of examples: its bits follow from nothing else.

torch specialises code for the sizes that it sees first, and turns to another code once it has seen others, so with
sizes that differ a restarted job would compute with other code than the one that ran through. Here there is one size:
fewer examples are filled up with zeros, whose logits are dropped and whose gradients are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Logits = Callable[[Any, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


class CompiledLogits:
    """Calls a function of (model, dense features [B, N], pooled rows [B, F, D] by width, masks [B, W]), compiled."""

    def __init__(self, logits: Logits, num_examples: int) -> None:
        self.num_examples, self._logits = num_examples, logits

    def __call__(self, model: nn.Module, dense_BN: Tensor, pooled: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor:
        """Return the logits, float32 [B], of at most num_examples examples."""
        num_given = len(dense_BN)
        missing = self.num_examples - num_given
        logits = _compiled(self._logits)
        assert missing >= 0, f"{num_given} examples, compiled for {self.num_examples}"
        if not missing:
            return logits(model, dense_BN, list(pooled), list(masks))
        filled = [pad(sums, (0, 0, 0, 0, 0, missing)) for sums in pooled]
        filled_masks = [pad(mask, (0, 0, 0, missing)) for mask in masks]
        return logits(model, pad(dense_BN, (0, 0, 0, missing)), filled, filled_masks)[:num_given]


@functools.cache
def _compiled(logits: Logits) -> Logits:
    """One wrapper for each function: what a stand-in of the model has compiled, the model finds."""
    return cast(Logits, torch.compile(logits, dynamic=False, fullgraph=True))
