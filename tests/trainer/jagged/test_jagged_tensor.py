from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ett.errors import ConfigError, DataError
from ett.trainer.jagged import JaggedTensor

BAGS = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=6)


def jagged(bags: list[list[int]]) -> JaggedTensor:
    return JaggedTensor.from_dense([torch.tensor(bag, dtype=torch.int64) for bag in bags])


@pytest.mark.slow
@given(bags=BAGS)
def test_to_dense_undoes_from_dense(bags: list[list[int]]) -> None:
    assert [bag.tolist() for bag in jagged(bags).to_dense()] == bags


@pytest.mark.slow
@given(bags=BAGS, length=st.one_of(st.none(), st.integers(0, 7)))
def test_padding_cuts_long_examples_and_fills_short_ones(bags: list[list[int]], length: int | None) -> None:
    width = max(map(len, bags)) if length is None else length
    expected = [(bag + [-1] * width)[:width] for bag in bags]
    assert jagged(bags).to_padded_dense(length, padding_value=-1).tolist() == expected


@pytest.mark.slow
@given(bags=BAGS)
def test_padded_rows_with_their_lengths_give_the_tensor_back(bags: list[list[int]]) -> None:
    tensor = jagged(bags)
    rows = torch.stack((tensor.values(), tensor.values() + 1), dim=1)
    wide = JaggedTensor(rows, lengths=tensor.lengths())
    again = JaggedTensor.from_dense_lengths(wide.to_padded_dense(), tensor.lengths())
    assert torch.equal(again.values(), rows)
    assert torch.equal(again.offsets(), tensor.offsets())


def test_weights_are_padded_and_split_like_values() -> None:
    tensor = JaggedTensor(torch.tensor([1, 2, 3]), torch.tensor([0.5, 1.5, 2.5]), offsets=torch.tensor([0, 1, 3]))
    assert [w.tolist() for w in tensor.to_dense_weights() or []] == [[0.5], [1.5, 2.5]]
    padded = tensor.to_padded_dense_weights(2)
    assert padded is not None
    assert padded.tolist() == [[0.5, 0.0], [1.5, 2.5]]


def test_an_empty_tensor_has_no_examples() -> None:
    empty = JaggedTensor.empty(is_weighted=True)
    assert (empty.to_dense(), empty.offsets().tolist(), empty.weights().tolist()) == ([], [0], [])
    assert empty.to_padded_dense().shape == (0, 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="sum to 3, there are 2 values"):
        JaggedTensor(torch.tensor([1, 2]), lengths=torch.tensor([1, 2]))
    with pytest.raises(ConfigError, match="neither"):
        JaggedTensor(torch.tensor([1]))
    with pytest.raises(ConfigError, match="no weights"):
        jagged([[1]]).weights()
