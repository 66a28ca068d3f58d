"""One rank: against torch's own EmbeddingBag and optimizers on dense tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ett.checkpoint.table import copy_of_rows
from ett.errors import ConfigError, DataError
from ett.trainer import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbOptimType,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
)

TABLES = [
    EmbeddingBagConfig(40, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(30, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(20, 5, "c", feature_names=["f1"], weight_init_min=0.5, weight_init_max=1.0),
]
KEYS = ["f2", "f1", "unused", "f3"]  # not in the order of the tables
LIMITS = {"f1": 20, "f2": 30, "f3": 40, "unused": 1000}
BATCH = 12
# Sums of up to 6 terms below 4, and products with gradients below 4: a few dozen roundings of 2^-24 of values below 32.
TOLERANCE = 64 * 32 * 2**-24


def batch(seed: int, size: int = BATCH, weighted: bool = False) -> KeyedJaggedTensor:
    """Bags of 0 to 6 ids with many repeats; the first bag of each feature is empty."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 7, (len(KEYS), size), generator=generator)
    lengths[:, :1] = 0
    values = [
        torch.randint(0, LIMITS[key], (int(n.sum()),), generator=generator)
        for key, n in zip(KEYS, lengths, strict=True)
    ]
    joined = torch.cat(values)
    weights = torch.randn(len(joined), generator=generator) if weighted else None
    return KeyedJaggedTensor(KEYS, joined, weights, lengths.reshape(-1))


def plain_pool(weights: dict[str, Tensor], kjt: KeyedJaggedTensor, is_weighted: bool = False) -> Tensor:
    """Return what torch pools from dense tables."""
    pooled = []
    for table in TABLES:
        for feature in table.features:
            part = kjt[feature]
            pooled.append(
                nn.functional.embedding_bag(
                    part.values(),
                    weights[table.name],
                    part.offsets(),
                    mode="sum",
                    per_sample_weights=part.weights() if is_weighted else None,
                    include_last_offset=True,
                )
            )
            if table.pooling is PoolingType.MEAN:
                pooled[-1] = pooled[-1] / part.lengths().clamp(min=1)[:, None]
    return torch.cat(pooled, dim=1)


def dense_weights(ebc: EmbeddingBagCollection) -> dict[str, Tensor]:
    return {t.name: ebc.state_dict()[f"embedding_bags.{t.name}.weight"].clone().requires_grad_() for t in TABLES}


@pytest.mark.parametrize("is_weighted", [False, True])
def test_rows_are_pooled_as_by_torch(is_weighted: bool) -> None:
    ebc = EmbeddingBagCollection(TABLES, is_weighted)
    kjt = batch(1, weighted=is_weighted)
    out = ebc(kjt)
    assert out.keys() == ["f1@a", "f3", "f2", "f1@c"]
    assert out.length_per_key() == [8, 8, 4, 5]
    torch.testing.assert_close(out.values(), plain_pool(dense_weights(ebc), kjt, is_weighted), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_gradients_are_those_of_torch(is_weighted: bool) -> None:
    ebc = EmbeddingBagCollection(TABLES, is_weighted)
    kjt = batch(2, weighted=is_weighted)
    theirs = dense_weights(ebc)
    scale = torch.randn(BATCH, 25, generator=torch.Generator().manual_seed(0))
    if is_weighted:
        kjt.weights().requires_grad_()
    (ebc(kjt).values() * scale).sum().backward()
    of_weights = kjt.weights().grad if is_weighted else None
    if is_weighted:
        kjt.weights().grad = None
    (plain_pool(theirs, kjt, is_weighted) * scale).sum().backward()
    for name, parameter in ebc.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[name.split(".")[1]].grad, rtol=0, atol=TOLERANCE)
    if of_weights is not None:
        torch.testing.assert_close(of_weights, kjt.weights().grad, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_any_torch_optimizer_trains_tables_without_fused_params() -> None:
    ebc = EmbeddingBagCollection(TABLES)
    theirs = dense_weights(ebc)
    pairs = [(torch.optim.Adam(ebc.parameters()), ebc), (torch.optim.Adam(list(theirs.values())), None)]
    for step in range(5):
        for optimizer, model in pairs:
            kjt = batch(step)
            out = model(kjt).values() if model is not None else plain_pool(theirs, kjt)
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
    for name, parameter in ebc.named_parameters():
        torch.testing.assert_close(parameter.detach(), theirs[name.split(".")[1]].detach(), rtol=0, atol=2e-5)


def torch_optimizer(kind: EmbOptimType, parameters: list[Tensor]) -> torch.optim.Optimizer:
    if kind is EmbOptimType.EXACT_SGD:
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.Adagrad(parameters, lr=0.1, eps=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EmbOptimType.EXACT_SGD, EmbOptimType.EXACT_ADAGRAD])
def test_the_backward_pass_updates_as_torch_does_on_dense_tables(kind: EmbOptimType) -> None:
    ebc = EmbeddingBagCollection(TABLES, fused_params=FusedParams(optimizer=kind, learning_rate=0.1))
    theirs = dense_weights(ebc)
    optimizer = torch_optimizer(kind, list(theirs.values()))
    for step in range(10):
        kjt = batch(step)
        scale = torch.randn(BATCH, 25, generator=torch.Generator().manual_seed(step))
        (ebc(kjt).values() * scale).sum().backward()
        optimizer.zero_grad()
        (plain_pool(theirs, kjt) * scale).sum().backward()
        optimizer.step()
    assert all(parameter.grad is None for parameter in ebc.parameters())
    for name, parameter in ebc.named_parameters():
        torch.testing.assert_close(parameter.detach(), theirs[name.split(".")[1]].detach(), rtol=0, atol=10 * TOLERANCE)


@pytest.mark.slow
def test_row_wise_adagrad_is_one_update_of_the_summed_gradient() -> None:
    ebc = EmbeddingBagCollection(TABLES, fused_params=FusedParams(learning_rate=0.1))
    theirs = dense_weights(ebc)
    totals = {name: torch.zeros(len(weight)) for name, weight in theirs.items()}
    for step in range(10):
        kjt = batch(step)
        ebc(kjt).values().square().sum().backward()
        plain_pool(theirs, kjt).square().sum().backward()
        for name, weight in theirs.items():
            assert weight.grad is not None
            totals[name] += weight.grad.square().mean(1)
            with torch.no_grad():
                weight.sub_(0.1 * weight.grad / (totals[name].sqrt() + 1e-8)[:, None])
            weight.grad = None
    assert set(ebc.fused_state()) == {"a.momentum1", "b.momentum1", "c.momentum1"}
    for name, weight in theirs.items():
        ours = ebc.state_dict()[f"embedding_bags.{name}.weight"]
        torch.testing.assert_close(ours, weight.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ebc.fused_state()[f"{name}.momentum1"], totals[name], rtol=1e-4, atol=1e-5)


def test_each_table_may_have_an_optimizer_of_its_own() -> None:
    params = {
        "a": FusedParams(optimizer=EmbOptimType.ADAM),
        "b": FusedParams(optimizer=EmbOptimType.EXACT_SGD, learning_rate=0.0),
        "c": FusedParams(optimizer=EmbOptimType.EXACT_ADAGRAD),
    }
    ebc = EmbeddingBagCollection(TABLES, fused_params=params)
    before = dense_weights(ebc)
    ebc(batch(1)).values().sum().backward()
    after = dense_weights(ebc)
    assert [torch.equal(before[t], after[t]) for t in "abc"] == [False, True, False]
    assert set(ebc.fused_state()) == {"a.exp_avg", "a.exp_avg_sq", "a.step", "c.momentum1"}
    ebc.set_learning_rate(1.0, "b")
    ebc(batch(1)).values().sum().backward()
    assert not torch.equal(dense_weights(ebc)["b"], after["b"])


def test_rows_start_between_the_limits_that_are_given() -> None:
    weights = {name: weight.detach() for name, weight in dense_weights(EmbeddingBagCollection(TABLES)).items()}
    assert 0.5 <= float(weights["c"].min()) < float(weights["c"].max()) <= 1.0
    assert 0.1 < float(weights["a"].abs().max()) <= 40**-0.5


def test_an_init_fn_fills_the_table() -> None:
    table = EmbeddingBagConfig(4, 2, "t", init_fn=lambda weight: nn.init.constant_(weight, 3.0))
    assert (EmbeddingBagCollection([table]).state_dict()["embedding_bags.t.weight"] == 3).all()


DYNAMIC = [EmbeddingBagConfig(0, 4, "d", feature_names=["f"])]
FUSED = FusedParams(optimizer=EmbOptimType.EXACT_SGD, learning_rate=1.0)


def bags(*ids: list[int]) -> KeyedJaggedTensor:
    lengths = torch.tensor([len(bag) for bag in ids])
    return KeyedJaggedTensor(["f"], torch.tensor([i for bag in ids for i in bag], dtype=torch.int64), None, lengths)


def test_a_table_that_grows_takes_any_id_and_adds_none_without_a_gradient() -> None:
    ebc = EmbeddingBagCollection(DYNAMIC, fused_params=FUSED)
    kjt = bags([-(2**63), 2**63 - 1, -5], [], [-5])
    with torch.no_grad():
        before = ebc(kjt).values()
    assert not before[1].any()
    ebc(kjt).values().sum().backward()
    # Id -5 has gradients of one from two bags; with SGD at rate one each pooled row falls by their number.
    assert torch.allclose(before - ebc(kjt).values(), torch.tensor([4.0, 0.0, 2.0])[:, None], atol=1e-6)
    assert len(copy_of_rows(ebc.embedding_bags["d"]).ids) == 3  # type: ignore[operator,union-attr]


def test_an_empty_batch_changes_nothing() -> None:
    ebc = EmbeddingBagCollection(TABLES, fused_params=FUSED)
    before = dense_weights(ebc)
    out = ebc(batch(1, size=0))
    assert out.values().shape == (0, 25)
    out.values().sum().backward()
    assert all(torch.equal(weight, before[name]) for name, weight in dense_weights(ebc).items())


@pytest.mark.parametrize("wrong", [-1, 40, 2**62])
def test_an_id_out_of_range_is_named_with_its_table(wrong: int) -> None:
    ebc = EmbeddingBagCollection([EmbeddingBagConfig(40, 2, "t", feature_names=["f"])])
    with pytest.raises(DataError, match=rf"table t: id {wrong} of feature f is out of range \(1 such"):
        ebc(bags([1, 2], [3, wrong]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_ids_that_are_no_integers_are_refused(dtype: torch.dtype) -> None:
    """float32 has no 2^24 + 1: another row would be looked up."""
    collection = EmbeddingBagCollection(
        [EmbeddingBagConfig(20, 4, "t", feature_names=["f"])], fused_params=FusedParams()
    )
    features = KeyedJaggedTensor(["f"], torch.ones(2, dtype=dtype), None, torch.tensor([1, 1]))
    with pytest.raises(DataError, match=f"ids of the batch are {dtype}"):
        collection(features)


def test_a_gradient_that_is_not_finite_updates_nothing() -> None:
    ebc = EmbeddingBagCollection(DYNAMIC, fused_params=FUSED)
    out = ebc(bags([1], [2])).values()
    with pytest.raises(DataError, match="table d: 4 elements of the gradient are not finite"):
        out.backward(torch.tensor([[1.0], [torch.nan]]).expand(2, 4))
    assert not len(copy_of_rows(ebc.embedding_bags["d"]).ids)  # type: ignore[operator,union-attr]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no table": (lambda: EmbeddingBagCollection([]), "no tables"),
    "two of one name": (lambda: EmbeddingBagCollection([DYNAMIC[0]] * 2, fused_params=FUSED), "two tables are named"),
    "grows without an optimizer": (lambda: EmbeddingBagCollection(DYNAMIC), "table d grows, and no fused_params"),
    "a GPU": (lambda: EmbeddingBagCollection(TABLES, device=torch.device("cuda")), "device is cuda"),
    "parameters of another table": (
        lambda: EmbeddingBagCollection(DYNAMIC, fused_params={"x": FUSED}),
        "fused_params are given for",
    ),
    "a name with a dot": (lambda: EmbeddingBagConfig(1, 1, "a.b"), "the name of a table"),
    "no columns": (lambda: EmbeddingBagConfig(1, 0, "a"), "embedding_dim is 0"),
    "a type": (lambda: EmbeddingBagConfig(1, 1, "a", data_type="FP16"), "data_type"),  # type: ignore[arg-type]
    "a feature that is missing": (
        lambda: EmbeddingBagCollection([EmbeddingBagConfig(9, 2, "t", feature_names=["g"])])(bags([1])),
        "the batch has no feature 'g'",
    ),
    "a learning rate of no table": (
        lambda: EmbeddingBagCollection(DYNAMIC, fused_params=FUSED).set_learning_rate(1.0, "x"),
        "'x' has no fused optimizer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        make()


def test_only_float32_is_offered() -> None:
    assert list(DataType) == [DataType.FP32]
