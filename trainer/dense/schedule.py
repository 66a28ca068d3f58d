"""The learning rate's factor, a pure function of the step."""

from __future__ import annotations

import math

from ett.trainer.config import OptimizerConfig


def learning_rate_factor(config: OptimizerConfig, step: int) -> float:
    """Return the factor on both learning rates for step 1, 2, ...: linear warm-up, then constant or half a cosine."""
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - config.warmup_steps) / config.decay_steps)
    return config.min_factor + (1.0 - config.min_factor) * 0.5 * (1.0 + math.cos(math.pi * progress))
