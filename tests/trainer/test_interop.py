"""Against TorchRec itself; without it (`docs/core.md` says how to install it) only what needs none of it is tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ett.errors import ConfigError
from ett.trainer.interop import from_torchrec, to_torchrec
from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

VALUES = torch.arange(6)
WEIGHTS = torch.arange(6) / 4
LENGTHS = torch.tensor([1, 0, 2, 3])


@pytest.fixture(scope="module")
def torchrec() -> Any:
    return pytest.importorskip("torchrec.sparse.jagged_tensor", reason="torchrec is not installed")


@pytest.mark.slow
def test_a_batch_goes_there_and_back_without_a_copy(torchrec: Any) -> None:
    ours = KeyedJaggedTensor(["a", "b"], VALUES, WEIGHTS, LENGTHS)
    theirs = to_torchrec(ours)
    assert isinstance(theirs, torchrec.KeyedJaggedTensor)
    assert str(theirs.permute([1, 0])["a"].to_dense()) == str(ours.permute([1, 0])["a"].to_dense())
    back = from_torchrec(theirs)
    assert isinstance(back, KeyedJaggedTensor)
    assert (back.keys(), back.stride()) == (["a", "b"], 2)
    for ours_tensor, back_tensor in (
        (ours.values(), back.values()),
        (ours.weights(), back.weights()),
        (ours.lengths(), back.lengths()),
    ):
        assert ours_tensor.data_ptr() == back_tensor.data_ptr()


@pytest.mark.slow
def test_a_batch_of_variable_size_goes_there_and_back(torchrec: Any) -> None:
    inverse = (["a", "b"], torch.tensor([[0, 0, 0], [2, 1, 0]]))
    ours = KeyedJaggedTensor(
        ["a", "b"], VALUES, None, LENGTHS, stride_per_key_per_rank=[[1], [3]], inverse_indices=inverse
    )
    back = from_torchrec(to_torchrec(ours))
    assert isinstance(back, KeyedJaggedTensor)
    assert back.stride_per_key() == [1, 3]
    assert torch.equal(back.inverse_indices()[1], inverse[1])


def test_pooled_and_jagged_outputs_go_there_and_back(torchrec: Any) -> None:
    pooled = KeyedTensor(["a", "b"], [1, 2], torch.arange(6.0).view(2, 3))
    back = from_torchrec(to_torchrec(pooled))
    assert isinstance(back, KeyedTensor)
    assert torch.equal(back["b"], pooled["b"])
    jagged = from_torchrec(torchrec.JaggedTensor(VALUES, WEIGHTS, lengths=torch.tensor([6], dtype=torch.int32)))
    assert isinstance(jagged, JaggedTensor)
    assert jagged.offsets().tolist() == [0, 6]


def test_the_padded_forms_are_those_of_torchrec(torchrec: Any) -> None:
    lengths = torch.tensor([1, 0, 2, 3])
    ours, theirs = JaggedTensor(VALUES, lengths=lengths), torchrec.JaggedTensor(VALUES, lengths=lengths)
    for length in (None, 1, 2, 5):
        assert torch.equal(ours.to_padded_dense(length), theirs.to_padded_dense(length))


def test_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Tensor was given"):
        from_torchrec(VALUES)
