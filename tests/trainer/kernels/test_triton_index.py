"""The device's index against a dictionary, through collisions, erased entries and rebuilds."""

from __future__ import annotations

import random

import pytest
import torch

NUM_SLOTS = 100


def tensor(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_it_answers_like_a_dictionary(seed: int, device: torch.device) -> None:
    from ett.trainer.kernels.triton_index import TritonIndex

    rng, model, free = random.Random(seed), dict[int, int](), list(range(NUM_SLOTS))
    index = TritonIndex(NUM_SLOTS, device)
    for _ in range(12):
        drawn = {rng.choice([rng.randrange(-5, 150), rng.randrange(-(2**63), 2**63)]) for _ in range(80)}
        new = sorted(drawn - model.keys())[: len(free)]
        slots = [free.pop() for _ in new]
        index.insert(tensor(new, device), tensor(slots, device))
        model |= dict(zip(new, slots, strict=True))
        gone = rng.sample(sorted(model), len(model) // 2)
        erased = index.erase(tensor(gone, device)).tolist()
        assert erased == [model.pop(id_) for id_ in gone]
        free += erased
        asked = [*model, *range(-5, 150)]
        assert index.find(tensor(asked, device)).tolist() == [model.get(id_, -1) for id_ in asked]
        ids, slots_of_ids = index.items()
        assert dict(zip(ids.tolist(), slots_of_ids.tolist(), strict=True)) == model
        assert len(index) == len(model)


def test_it_can_be_full(device: torch.device) -> None:
    from ett.trainer.kernels.triton_index import TritonIndex

    index = TritonIndex(8, device)
    index.insert(tensor(list(range(8)), device), tensor(list(range(8)), device))
    assert index.find(tensor([7, 8], device)).tolist() == [7, -1]
    with pytest.raises(AssertionError, match="8 slots"):
        index.insert(tensor([9], device), tensor([0], device))


def test_nothing_is_asked_of_an_empty_batch(device: torch.device) -> None:
    from ett.trainer.kernels.triton_index import TritonIndex

    index = TritonIndex(8, device)
    index.insert(tensor([], device), tensor([], device))
    assert index.find(tensor([], device)).tolist() == []
    assert index.erase(tensor([], device)).tolist() == []
