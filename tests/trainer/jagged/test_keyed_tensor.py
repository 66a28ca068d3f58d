from __future__ import annotations

import pytest
import torch

from ett.errors import ConfigError
from ett.trainer.jagged import KeyedTensor


def test_each_key_has_its_block_as_a_view() -> None:
    values = torch.arange(10.0).view(2, 5)
    tensor = KeyedTensor(["a", "b"], [2, 3], values)
    assert tensor["b"].tolist() == [[2, 3, 4], [7, 8, 9]]
    assert tensor["a"].data_ptr() == values.data_ptr()
    assert {key: block.tolist() for key, block in tensor.to_dict().items()} == {
        "a": [[0, 1], [5, 6]],
        "b": [[2, 3, 4], [7, 8, 9]],
    }
    assert tensor.offset_per_key() == [0, 2, 5]


def test_regroup_takes_blocks_from_any_of_the_tensors() -> None:
    one = KeyedTensor.from_tensor_list(["a", "b"], [torch.ones(1, 1), 2 * torch.ones(1, 2)])
    two = KeyedTensor.from_tensor_list(["c"], [3 * torch.ones(1, 1)])
    groups = KeyedTensor.regroup([one, two], [["c", "a"], ["b"]])
    assert [group.tolist() for group in groups] == [[[3, 1]], [[2, 2]]]
    named = KeyedTensor.regroup_as_dict([one, two], [["a"]], ["only"])
    assert named["only"].tolist() == [[1]]
    with pytest.raises(ConfigError, match="no tensor has the key 'x'"):
        KeyedTensor.regroup([one], [["x"]])


def test_blocks_that_do_not_cover_the_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="sum to dimension 1"):
        KeyedTensor(["a"], [2], torch.ones(1, 3))
    with pytest.raises(ConfigError, match="comes twice"):
        KeyedTensor(["a", "a"], [1, 2], torch.ones(1, 3))
