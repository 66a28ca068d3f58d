from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from ett.trainer.data.pinned import pinned

ARRAY = np.arange(12, dtype=np.int64).reshape(3, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to pin for")
def test_without_a_device_an_array_is_left_where_it_is() -> None:
    assert pinned(ARRAY) is ARRAY


def test_without_torch_an_array_is_left_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert pinned(ARRAY) is ARRAY


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_with_a_device_the_copy_is_a_pinned_tensor() -> None:
    copy = pinned(ARRAY)
    np.testing.assert_array_equal(copy, ARRAY)
    assert torch.from_numpy(copy).is_pinned()
    assert pinned(ARRAY[:0]).shape == (0, 4)
