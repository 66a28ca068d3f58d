"""Normalised entropy: the mean log loss over that of always predicting the base rate; below 1 is better than that.

Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook (2014), equation 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def normalized_entropy(logits: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the normalised entropy of logits against labels (0 or 1), both [N]; NaN without both classes.

    The losses are summed exactly (math.fsum), so the order of the rows does not matter to the last bit.
    """
    num_rows, is_positive = len(labels), labels > 0.5
    num_positive = int(is_positive.sum())
    if num_positive in (0, num_rows):
        return float("nan")
    # log(1 + exp(-x)) for a positive row, log(1 + exp(x)) for a negative one, without overflow.
    losses = np.logaddexp(0.0, np.where(is_positive, -1.0, 1.0) * logits.astype(np.float64))
    rate = num_positive / num_rows
    base = -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))
    return math.fsum(losses) / num_rows / base
