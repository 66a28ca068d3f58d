"""Random jagged batches as nested lists, the reference that tests compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from ett.trainer.jagged import KeyedJaggedTensor

KEYS = ("a", "b", "c", "d")


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """ids[key][example] and weights of the same shape."""

    ids: dict[str, list[list[int]]]
    weights: dict[str, list[list[float]]]

    def kjt(self, is_weighted: bool = True) -> KeyedJaggedTensor:
        bags = [bag for examples in self.ids.values() for bag in examples]
        weights = [weight for examples in self.weights.values() for bag in examples for weight in bag]
        return KeyedJaggedTensor(
            list(self.ids),
            torch.tensor([i for bag in bags for i in bag], dtype=torch.int64),
            torch.tensor(weights, dtype=torch.float32) if is_weighted else None,
            lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int64),
            stride=len(next(iter(self.ids.values()), [])),
        )


def as_lists(kjt: KeyedJaggedTensor) -> dict[str, list[list[int]]]:
    return {key: [bag.tolist() for bag in part.to_dense()] for key, part in kjt.to_dict().items()}


def weights_as_lists(kjt: KeyedJaggedTensor) -> dict[str, list[list[float]]]:
    return {key: [bag.tolist() for bag in part.to_dense_weights() or []] for key, part in kjt.to_dict().items()}


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True))
    size = draw(st.integers(0, 5))
    bag = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
    ids = {key: draw(st.lists(bag, min_size=size, max_size=size)) for key in keys}
    # Quarters: exact in float32.
    weights = {k: [[(i % 64) / 4 for i in bag] for bag in examples] for k, examples in ids.items()}
    return Batch(ids=ids, weights=weights)
