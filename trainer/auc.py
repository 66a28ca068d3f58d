"""Area under the ROC curve, exact: the share of (positive, negative) pairs in the right order, ties counted half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(scores: NDArray[np.float32], labels: NDArray[np.float32]) -> float:
    """Return the AUC of scores against labels (0 or 1), both [N]; NaN without both classes.

    The count of pairs is an integer, so the order of the rows does not matter to the last bit.
    """
    _, group = np.unique(scores, return_inverse=True)
    positives = np.bincount(group, weights=labels > 0.5).astype(np.int64)
    negatives = np.bincount(group).astype(np.int64) - positives
    num_pairs = int(positives.sum()) * int(negatives.sum())
    if not num_pairs:
        return float("nan")
    negatives_below = np.cumsum(negatives) - negatives
    twice_right = int((positives * (2 * negatives_below + negatives)).sum())
    return twice_right / (2 * num_pairs)
