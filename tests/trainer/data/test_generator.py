from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from ett.trainer.auc import auc
from ett.trainer.data import generator
from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID, CriteoLines, dense_features, parse_lines
from ett.trainer.data.generator import CARDINALITIES, CATEGORY_MISSING, GENERATOR_VERSION, criteo_lines
from ett.trainer.data.order import is_held_out

ROWS, SEED = 60_000, 7


def text_of(rows: int, seed: int) -> bytes:
    return b"".join(criteo_lines(rows, seed))


@pytest.fixture(scope="module")
def lines() -> CriteoLines:
    return parse_lines(text_of(ROWS, SEED), ROWS)


@pytest.mark.slow
def test_every_line_is_well_formed(lines: CriteoLines) -> None:
    assert not lines.states.any()
    text = text_of(1000, SEED)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1000
    categories = [field for line in text.splitlines() for field in line.split(b"\t")[14:]]
    assert {len(field) for field in categories} == {0, 8}
    assert b"".join(categories).islower() or b"".join(categories).isdigit()


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [1, 7, 149, 150, 1000])
def test_bytes_do_not_depend_on_the_size_of_chunks(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = text_of(150, SEED)
    monkeypatch.setattr(generator, "_CHUNK_ROWS", chunk_rows)
    assert text_of(150, SEED) == whole


def test_a_shorter_file_is_the_beginning_of_a_longer_one() -> None:
    assert text_of(2000, SEED).startswith(text_of(500, SEED))


def test_another_seed_gives_other_data() -> None:
    ids = [parse_lines(text_of(300, seed), 300).ids for seed in (1, 2)]
    assert not np.intersect1d(ids[0][ids[0] != MISSING_ID], ids[1][ids[1] != MISSING_ID]).size


def test_the_output_of_this_version_is_fixed() -> None:
    # A change of these bytes is a change of every published figure: it needs a new GENERATOR_VERSION.
    digest = hashlib.sha256(text_of(1000, SEED)).hexdigest()[:16]
    assert (GENERATOR_VERSION, digest) == (1, "49cdc476c597555f")


@pytest.mark.slow
def test_about_a_quarter_of_the_rows_are_clicks(lines: CriteoLines) -> None:
    assert 0.23 < lines.labels.mean() < 0.27


def test_categories_are_missing_at_the_rates_of_the_challenge(lines: CriteoLines) -> None:
    # Four standard deviations of a share of ROWS rows are below 0.01.
    np.testing.assert_allclose(np.mean(lines.ids == MISSING_ID, axis=0), CATEGORY_MISSING, atol=0.01)


def test_counts_have_the_gaps_and_the_skew_of_the_challenge(lines: CriteoLines) -> None:
    gaps = np.mean(lines.counts == MISSING_COUNT, axis=0)
    # Shares of missing fields in the public sample of the challenge, by column.
    sample = [0.45, 0.0, 0.22, 0.21, 0.05, 0.25, 0.05, 0.0, 0.05, 0.45, 0.05, 0.78, 0.21]
    np.testing.assert_allclose(gaps, sample, atol=0.05)
    second = lines.counts[:, 1]
    assert 0.05 < np.mean(second < 0) < 0.2
    for column in np.flatnonzero(gaps < 0.5):
        known = lines.counts[:, column][lines.counts[:, column] != MISSING_COUNT]
        assert known.max() > 5 * known.mean()  # a long tail to the right


def test_categories_follow_a_power_law_over_realistic_cardinalities(lines: CriteoLines) -> None:
    assert min(CARDINALITIES) < 10
    assert max(CARDINALITIES) > 10**7
    for column, cardinality in enumerate(CARDINALITIES):
        known = lines.ids[:, column][lines.ids[:, column] != MISSING_ID]
        uses = np.sort(np.unique(known, return_counts=True)[1])[::-1]
        assert len(uses) <= cardinality
        if cardinality < 1000:
            assert len(uses) > 0.95 * cardinality
        if cardinality > 100:
            # Zipf with an exponent near 1: the most frequent id is used about twice as often as the second, ten times
            # as often as the tenth.
            assert 1.5 < uses[0] / uses[1] < 2.2
            assert 6 < uses[0] / uses[9] < 13


@pytest.mark.slow
def test_the_signal_lies_in_the_ids(lines: CriteoLines) -> None:
    held = is_held_out(np.arange(ROWS), 0.1)
    scores = sparse_logistic_regression(lines.ids[~held], lines.labels[~held], lines.ids[held])
    assert auc(scores, lines.labels[held]) > 0.75


@pytest.mark.slow
def test_counts_alone_say_nothing(lines: CriteoLines) -> None:
    held = is_held_out(np.arange(ROWS), 0.1)
    dense = np.concatenate([dense_features(lines.counts), lines.counts == MISSING_COUNT], axis=1).astype(np.float64)
    design = np.concatenate([dense, dense**2, np.ones((ROWS, 1))], axis=1)
    weights = np.linalg.lstsq(design[~held], lines.labels[~held], rcond=None)[0]
    assert auc((design[held] @ weights).astype(np.float32), lines.labels[held]) < 0.55


def sparse_logistic_regression(
    ids: NDArray[np.int64], labels: NDArray[np.float32], held_ids: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Train one weight per (column, id) by Adagrad, two passes in batches of 256; return the scores of held_ids."""
    keys, slots = np.unique((np.arange(26) << 33) + np.concatenate([ids, held_ids]), return_inverse=True)
    slots = slots.reshape(-1, 26)
    train, held = slots[: len(ids)], slots[len(ids) :]
    weights, squares, bias = np.zeros(len(keys)), np.full(len(keys), 1e-8), -1.0
    for begin in [*range(0, len(train), 256)] * 2:
        batch, target = train[begin : begin + 256], labels[begin : begin + 256]
        error = 1.0 / (1.0 + np.exp(-(weights[batch].sum(axis=1) + bias))) - target
        used, place = np.unique(batch, return_inverse=True)
        gradient = np.bincount(place.ravel(), weights=np.repeat(error, 26)) / len(batch)
        squares[used] += gradient**2
        weights[used] -= 0.05 * gradient / np.sqrt(squares[used])
        bias -= 0.05 * error.mean()
    scores: NDArray[np.float32] = weights[held].sum(axis=1).astype(np.float32)
    return scores
