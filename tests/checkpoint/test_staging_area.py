"""Dense tensors on a device as of a step boundary."""

from __future__ import annotations

import pytest
import torch

from ett.checkpoint.staging_area import StagingArea, within


def test_one_that_does_not_fit_takes_no_room_of_those_after_it() -> None:
    parts = [(str(size), torch.empty(size, dtype=torch.uint8)) for size in (6, 20, 3, 2, 1)]
    assert [name for name, _ in within(10, parts)] == ["6", "3", "1"]
    assert within(0, parts) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("device_bytes", [0, 5 << 20, 1 << 30])
def test_a_change_after_the_boundary_is_in_no_copy_wherever_there_was_room_for_it(device_bytes: int) -> None:
    area = StagingArea(device_bytes)
    live = {str(n): torch.full((1 << 20,), float(n), device="cuda") for n in range(4)}
    for base in (0.0, 10.0):
        for n, tensor in enumerate(live.values()):
            tensor.fill_(base + n)
        before = torch.cuda.memory_allocated()
        staged = area.stage(live)
        assert torch.cuda.memory_allocated() - before <= device_bytes
        for tensor in live.values():
            tensor.fill_(-1.0)
        area.bring()
        for n, name in enumerate(live):
            assert (staged[name].values == base + n).all()
