from __future__ import annotations

import math

import numpy as np
import pytest

from ett.trainer.normalized_entropy import normalized_entropy


def scored(rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal(rows, np.float32), (rng.random(rows) < 0.2).astype(np.float32)


def test_it_is_the_mean_log_loss_over_that_of_the_base_rate() -> None:
    logits, labels = scored()
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    loss = -np.mean(np.where(labels > 0.5, np.log(probabilities), np.log(1 - probabilities)))
    rate = labels.astype(np.float64).mean()
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert normalized_entropy(logits, labels) == pytest.approx(loss / base, rel=1e-12)


def test_predicting_the_base_rate_gives_one() -> None:
    _, labels = scored()
    rate = float(labels.mean(dtype=np.float64))
    logits = np.full(len(labels), math.log(rate / (1 - rate)), np.float32)
    # The logit is rounded to float32; the loss is flat there, so the error is of second order.
    assert normalized_entropy(logits, labels) == pytest.approx(1.0, abs=1e-12)


def test_the_order_of_rows_does_not_matter_to_the_last_bit() -> None:
    logits, labels = scored()
    order = np.random.default_rng(2).permutation(len(labels))
    assert normalized_entropy(logits, labels) == normalized_entropy(logits[order], labels[order])


def test_a_sure_and_wrong_prediction_is_finite() -> None:
    value = normalized_entropy(np.array([900, -900], np.float32), np.array([0, 1], np.float32))
    assert value == pytest.approx(900 / math.log(2))


@pytest.mark.parametrize("labels", [[], [1.0, 1.0], [0.0]])
def test_rows_of_one_class_have_none(labels: list[float]) -> None:
    assert math.isnan(normalized_entropy(np.zeros(len(labels), np.float32), np.array(labels, np.float32)))
