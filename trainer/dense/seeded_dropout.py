"""Dropout whose masks follow from (seed, step, rank, micro-batch), so a restored job draws what the first one drew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ett.checkpoint.digest import U64, mix


class SeededDropout(nn.Module):
    """One instance may stand at several places of a model; they draw one after the other."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._generator = torch.Generator()
        self._seed = 0

    def seed_step(self, seed: int, step: int, rank: int, micro_batch: int = 0) -> None:
        """Fix the masks of one micro-batch of one step on one rank."""
        key = mix(np.array([seed], U64))
        for part in (step, rank, micro_batch):
            key = mix(key + U64(part) + U64(1))
        self._seed = int(key[0] >> U64(1))
        self._generator.manual_seed(self._seed)

    def forward(self, values: Tensor) -> Tensor:
        """Zero a share of the values and scale the others up, in training mode only."""
        if not self.training or self._share == 0.0:
            return values
        return values * self._factors(values.shape, values.device)

    def masks(self, num_examples: int, widths: Sequence[int], device: torch.device) -> list[Tensor]:
        """Return what training at places of these widths would multiply with, float32 [B, width]; [] for a share of 0.

        For compiled code, which cannot draw from a generator of ours.
        """
        return [self._factors((num_examples, width), device) for width in widths if self._share]

    def _factors(self, shape: Sequence[int], device: torch.device) -> Tensor:
        if self._generator.device != device:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        kept = torch.rand(tuple(shape), generator=self._generator, device=device).ge_(self._share)
        return kept.div_(1.0 - self._share)
