from __future__ import annotations

import pytest
import torch

from ett.hooks.state_kind import state_kind

MODEL = torch.nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("value", "is_state", "has_optimizer"),
    [
        (MODEL.state_dict(), True, False),
        ({"model": MODEL.state_dict(), "optimizer": OPTIMIZER.state_dict(), "epoch": 1}, True, True),
        (OPTIMIZER.state_dict(), True, True),
        (MODEL, True, False),
        ({"net": MODEL}, True, False),
        ([MODEL.state_dict(), OPTIMIZER.state_dict()], True, True),
        ({"predictions": torch.zeros(3)}, False, False),
        (torch.zeros(3), False, False),
        ([1.0, 2.0], False, False),
        ({"loss": 1.0, "args": {"model": "resnet"}}, False, False),
    ],
)
def test_a_state_is_told_from_other_data(value: object, is_state: bool, has_optimizer: bool) -> None:
    assert state_kind(value) == (is_state, has_optimizer)
