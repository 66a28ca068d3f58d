from __future__ import annotations

import numpy as np
import pytest

from ett.trainer.data.order import is_held_out, mix64, shuffled


def test_mix64_is_splitmix64() -> None:
    # First outputs of the published generator from seed 0: its state grows by the golden ratio's word each time.
    golden = 0x9E3779B97F4A7C15
    states = np.array([n * golden % 2**64 for n in range(3)], np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mix64(states).tolist() == expected


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.9])
def test_the_held_out_share_is_what_was_asked_for(share: float) -> None:
    # Five standard deviations of a share of 100,000 rows are below 0.008.
    assert np.mean(is_held_out(np.arange(100_000), share)) == pytest.approx(share, abs=0.008)


def test_a_larger_share_holds_out_the_rows_of_a_smaller_one() -> None:
    rows = np.arange(10_000)
    assert np.all(is_held_out(rows, 0.2)[is_held_out(rows, 0.1)])


def test_a_shuffle_is_a_permutation_of_seed_and_epoch() -> None:
    rows = np.arange(500, 900)
    orders = [shuffled(rows, seed, epoch).tolist() for seed, epoch in ((1, 0), (1, 1), (2, 0), (1, 0))]
    assert all(sorted(order) == rows.tolist() for order in orders)
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3
