"""The three ways to sum the dense part's gradients over real ranks, against each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import run_ranks_well

pytestmark = [pytest.mark.process, pytest.mark.slow]


def trained(world_size: int, folder: Path) -> None:
    """Run the ranks; they write what each way has trained."""
    run_ranks_well("dense_over_gloo.py", world_size, folder / "store", folder)


def found(folder: Path, name: str) -> dict[str, np.ndarray]:
    return dict(np.load(folder / f"{name}.npz"))


def test_of_two_ranks_all_three_ways_train_the_same_bits(tmp_path: Path) -> None:
    trained(2, tmp_path)
    for precision in ("float32", "bfloat16"):
        for rank in range(2):
            buckets = found(tmp_path, f"buckets-{precision}-{rank}")
            for way in ("ddp", "fsdp"):
                other = found(tmp_path, f"{way}-{precision}-{rank}")
                assert list(other) == list(buckets)
                assert [name for name, values in buckets.items() if not np.array_equal(other[name], values)] == []


def test_of_four_ranks_gradients_differ_by_the_order_of_their_sums(tmp_path: Path) -> None:
    trained(4, tmp_path)
    alone = [found(tmp_path, f"alone-{rank}") for rank in range(4)]
    for way in ("ddp", "fsdp"):
        buckets, other = (found(tmp_path, f"{name}-float32-0") for name in ("buckets", way))
        gradients = [name for name in buckets if name.startswith("first_gradient.")]
        for name in gradients:
            # Two orders of four summands are at most 2 * 4 roundings of the sum of their magnitudes apart.
            magnitude = sum(np.abs(of_rank[name]) for of_rank in alone)
            assert np.all(np.abs(other[name] - buckets[name]) <= 8 * 2.0**-24 * magnitude), name
        # Six steps of these rates do not amplify that beyond 1e-5, as in test_loop.
        np.testing.assert_allclose(other["losses"], buckets["losses"], rtol=1e-5)
