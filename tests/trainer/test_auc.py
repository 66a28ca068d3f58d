from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.auc import auc

ROWS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40)


@pytest.mark.slow
@given(rows=ROWS)
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    twice = sum((p > n) * 2 + (p == n) for p in positives for n in negatives)
    got = auc(np.array([s for s, _ in rows], np.float32), np.array([y for _, y in rows], np.float32))
    if positives and negatives:
        assert got == twice / (2 * len(positives) * len(negatives))
    else:
        assert math.isnan(got)


def test_the_order_of_rows_does_not_matter_to_the_last_bit() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.standard_normal(5000, np.float32), (rng.random(5000) < 0.3).astype(np.float32)
    order = rng.permutation(5000)
    assert auc(scores, labels) == auc(scores[order], labels[order])
