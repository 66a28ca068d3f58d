"""Tables in device memory against those in host memory; without a GPU the same code runs on the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ett.checkpoint.table import copy_of_rows
from ett.errors import ConfigError, DataError
from ett.trainer import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbOptimType,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
)
from ett.trainer.embedding.device_tables import make_blocks
from ett.trainer.embedding.embedding_bag_collection import is_on_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLES = [
    EmbeddingBagConfig(40, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(30, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(20, 8, "c", feature_names=["f1"], weight_init_min=0.5, weight_init_max=1.0),
]
KEYS = ["f2", "f1", "unused", "f3"]  # not in the order of the tables
LIMITS = {"f1": 20, "f2": 30, "f3": 40, "unused": 1000}
Make = Callable[..., EmbeddingBagCollection]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Make:
    if DEVICE.type == "cpu":
        place = "ett.trainer.embedding.embedding_bag_collection.is_on_device"
        monkeypatch.setattr(place, lambda device: device is not None)

    def make(optimizer: EmbOptimType = EmbOptimType.EXACT_SGD, **more: Any) -> EmbeddingBagCollection:
        fused = FusedParams(optimizer=optimizer, learning_rate=0.1)
        return EmbeddingBagCollection(TABLES, device=DEVICE, **({"fused_params": fused, "seed": 3} | more))

    return make


def on_host(optimizer: EmbOptimType = EmbOptimType.EXACT_SGD, **more: Any) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(
        TABLES, fused_params=FusedParams(optimizer=optimizer, learning_rate=0.1), seed=3, **more
    )


def batch(seed: int, size: int = 12, weighted: bool = False) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 7, (len(KEYS), size), generator=generator)
    lengths[:, :1] = 0
    counts = lengths.sum(1).tolist()
    ids = [torch.randint(0, LIMITS[key], (n,), generator=generator) for key, n in zip(KEYS, counts, strict=True)]
    values = torch.cat(ids)
    weights = torch.randn(len(values), generator=generator) if weighted else None
    return KeyedJaggedTensor(KEYS, values, weights, lengths.reshape(-1))


def rows_of(collection: EmbeddingBagCollection) -> dict[str, torch.Tensor]:
    """Return copies of all rows and states."""
    states = {name: state.cpu().clone() for name, state in collection.fused_state().items()}
    return {name: weight.detach().cpu().clone() for name, weight in collection.state_dict().items()} | states


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_rows_are_the_hosts_to_the_bit(on_device: Make, weighted: bool) -> None:
    ours, theirs = on_device(is_weighted=weighted), on_host(is_weighted=weighted)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for seed, size in enumerate((12, 1, 0, 300)):
        features = batch(seed, size, weighted)
        expected = theirs(features)
        found = ours(features.to(DEVICE))
        assert found.keys() == expected.keys()
        assert torch.equal(found.values().cpu(), expected.values())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", list(EmbOptimType))
def test_updated_rows_are_the_hosts(on_device: Make, optimizer: EmbOptimType) -> None:
    """Sums over more than 32 duplicates have another order: 5 steps of a few dozen roundings of values below 64."""
    ours, theirs = on_device(optimizer), on_host(optimizer)
    for seed in range(5):
        features = batch(seed, 40)
        factor = torch.randn(40, 28, generator=torch.Generator().manual_seed(seed))
        (theirs(features).values() * factor).sum().backward()
        (ours(features.to(DEVICE)).values() * factor.to(DEVICE)).sum().backward()
    ours.check()
    found, expected = rows_of(ours), rows_of(theirs)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        torch.testing.assert_close(found[name], rows, rtol=1e-5, atol=5 * 64 * 64 * 2**-24)
    assert not torch.equal(found["embedding_bags.a.weight"], on_host().embedding_bags["a"].weight)


def test_gradients_of_the_weights_of_ids_are_the_hosts(on_device: Make) -> None:
    grads = []
    for make, device in ((on_host, torch.device("cpu")), (on_device, DEVICE)):
        features = batch(1, weighted=True)
        weights = features.weights().to(device).requires_grad_()
        with_grad = KeyedJaggedTensor(KEYS, features.values().to(device), weights, features.lengths().to(device))
        make(is_weighted=True)(with_grad).values().square().sum().backward()
        assert weights.grad is not None
        grads.append(weights.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=64 * 16 * 2**-24)


@pytest.mark.parametrize("wrong", [-1, 40])
def test_a_batch_with_an_id_out_of_range_changes_no_row(on_device: Make, wrong: int) -> None:
    collection = on_device()
    before = rows_of(collection)
    lengths = torch.ones(4 * 3, dtype=torch.int64)
    values = torch.tensor([1, 2, 3, 4, 5, 6, 0, 0, 0, 7, wrong, 8])
    collection(KeyedJaggedTensor(KEYS, values, None, lengths).to(DEVICE)).values().sum().backward()
    with pytest.raises(DataError, match=rf"table a: id {wrong} of feature f3 is out of range \(1 such"):
        collection.check()
    assert all(torch.equal(rows, before[name]) for name, rows in rows_of(collection).items())
    values[10] = 9
    collection(KeyedJaggedTensor(KEYS, values, None, lengths).to(DEVICE)).values().sum().backward()
    collection.check()
    assert not torch.equal(rows_of(collection)["embedding_bags.a.weight"], before["embedding_bags.a.weight"])


def test_a_gradient_that_is_not_finite_changes_no_row(on_device: Make) -> None:
    collection = on_device()
    before = rows_of(collection)
    pooled = collection(batch(0).to(DEVICE)).values()
    (pooled * torch.full_like(pooled, float("nan"))).sum().backward()
    with pytest.raises(DataError, match="not finite; no row changed"):
        collection.check()
    assert all(torch.equal(rows, before[name]) for name, rows in rows_of(collection).items())


def test_what_is_wrong_rises_at_the_next_batch_without_a_check(on_device: Make) -> None:
    collection = on_device()
    with torch.no_grad():
        collection(KeyedJaggedTensor(KEYS, torch.tensor([99]), None, torch.tensor([1, 0, 0, 0])).to(DEVICE))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    with pytest.raises(DataError, match="table b: id 99 of feature f2"):
        collection(batch(0).to(DEVICE))


def test_rows_move_between_host_and_device_through_a_checkpoint(on_device: Make) -> None:
    ours, theirs = on_device(EmbOptimType.ADAM), on_host(EmbOptimType.ADAM)
    theirs(batch(1)).values().sum().backward()
    for name, part in theirs.embedding_bags.items():
        other: Any = ours.embedding_bags[name]
        assert (other.name, other.states) == (part.name, part.states)
        other.begin_import(0)
        other.import_rows(copy_of_rows(part))
        other.end_import()
    found, expected = rows_of(ours), rows_of(theirs)
    assert all(torch.equal(found[name], rows) for name, rows in expected.items())
    exported: Any = copy_of_rows(ours.embedding_bags["a"])
    assert exported.ids.tolist() == list(range(40))
    assert torch.equal(exported.weights, expected["embedding_bags.a.weight"])


def test_tables_of_one_block_have_one_learning_rate(on_device: Make) -> None:
    collection = on_device()
    collection.set_learning_rate(0.5)
    with pytest.raises(ConfigError, match="one block"):
        collection.set_learning_rate(0.1, "a")
    collection.set_learning_rate(0.1, "b")  # of another width, so of another block


def test_what_a_device_cannot_hold_is_refused(on_device: Make) -> None:
    with pytest.raises(ConfigError, match="no fused_params"):
        on_device(fused_params=None)
    with pytest.raises(ConfigError, match="table g grows"):
        make_blocks([EmbeddingBagConfig(0, 8, "g")], {"g": FusedParams()}, DEVICE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="torch finds no CUDA device"):
        EmbeddingBagCollection(TABLES, device=torch.device("cuda"), fused_params=FusedParams())


def test_a_device_is_host_memory_or_cuda() -> None:
    with pytest.raises(ConfigError, match="device is meta"):
        is_on_device("meta")
    assert [is_on_device(device) for device in (None, "cpu", "cuda:1")] == [False, False, True]
