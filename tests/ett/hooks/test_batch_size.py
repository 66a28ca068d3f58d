from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from ett.hooks.batch_size import batch_size


class Pair(NamedTuple):
    text: list[str]
    ids: torch.Tensor


class Holder:
    def __init__(self) -> None:
        self.name = "x"
        self.rows = torch.zeros(6, 2)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(5, 3), 5),
        ([torch.zeros(4, 3), torch.zeros(4)], 4),
        ((torch.zeros(4, 3), {"y": torch.zeros(4)}), 4),
        ({"count": torch.tensor(9), "ids": torch.zeros(7, 2)}, 7),
        ({"offsets": torch.zeros(12), "labels": torch.zeros(3)}, 3),
        ({"a": {"b": [np.zeros((2, 2))]}}, 2),
        (Pair(["a", "b"], torch.zeros(2)), 2),
        (["a", "b", "c"], 3),
        (Holder(), 6),
        (torch.tensor(1.0), None),
        ([], None),
        (None, None),
        ("text", None),
        (7, None),
    ],
)
def test_the_first_dimension_of_the_first_tensor_counts(batch: object, size: int | None) -> None:
    assert batch_size(batch) == size


def test_a_batch_that_holds_itself_ends() -> None:
    batch: list[object] = []
    batch.append(batch)
    assert batch_size(batch) is None
