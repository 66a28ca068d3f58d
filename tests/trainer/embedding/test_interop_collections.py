"""Collections against TorchRec's own: the same rows, outputs, gradients and checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ett.errors import ConfigError
from ett.trainer import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    FusedParams,
    KeyedJaggedTensor,
    PoolingType,
)
from ett.trainer.interop import from_torchrec, to_torchrec

pytestmark = pytest.mark.slow  # torchrec takes ten seconds to import
BAGS = [
    EmbeddingBagConfig(40, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(30, 4, "b", feature_names=["f2"], pooling=PoolingType.MEAN),
    EmbeddingBagConfig(20, 4, "c", feature_names=["f1"]),
]
ROWS = [EmbeddingConfig(20, 4, "a", feature_names=["f1", "f3"]), EmbeddingConfig(20, 4, "c", feature_names=["f1"])]
# Pooled sums of up to 6 rows below 1 in another order, and updates of such: a few roundings of 2^-24.
TOLERANCE = 2**-20


@pytest.fixture(scope="module", autouse=True)
def torchrec() -> Any:
    return pytest.importorskip("torchrec", reason="torchrec is not installed")


def batch(seed: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 7, (3 * 10,), generator=generator)
    values = torch.randint(0, 20, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(["f2", "f1", "f3"], values, None, lengths)


def test_bags_go_there_and_back_without_a_copy() -> None:
    ours = EmbeddingBagCollection(BAGS)
    theirs = to_torchrec(ours)
    back = from_torchrec(theirs)
    assert isinstance(back, EmbeddingBagCollection)
    assert list(theirs.state_dict()) == list(ours.state_dict()) == list(back.state_dict())
    for name, weight in ours.state_dict().items():
        assert weight.data_ptr() == theirs.state_dict()[name].data_ptr() == back.state_dict()[name].data_ptr()
    assert [config.pooling for config in back.embedding_bag_configs()] == [config.pooling for config in BAGS]
    pooled, other = ours(batch(1)), theirs(to_torchrec(batch(1)))
    assert pooled.keys() == other.keys() and pooled.length_per_key() == other.length_per_key()
    torch.testing.assert_close(pooled.values(), other.values(), rtol=0, atol=TOLERANCE)


def test_rows_of_positions_go_there_and_back_without_a_copy() -> None:
    ours = EmbeddingCollection(ROWS, need_indices=True)
    theirs = to_torchrec(ours)
    back = from_torchrec(theirs)
    assert isinstance(back, EmbeddingCollection) and back.need_indices()
    for name, weight in ours.state_dict().items():
        assert weight.data_ptr() == theirs.state_dict()[name].data_ptr() == back.state_dict()[name].data_ptr()
    rows, others = ours(batch(1)), theirs(to_torchrec(batch(1)))
    assert list(rows) == list(others) == ["f1@a", "f3", "f1@c"]
    for name, part in rows.items():
        assert torch.equal(part.values(), others[name].values())
        assert torch.equal(part.weights(), others[name].weights())
        assert torch.equal(part.lengths(), others[name].lengths())


@pytest.mark.parametrize(
    "make", [lambda: EmbeddingBagCollection(BAGS, seed=5), lambda: EmbeddingCollection(ROWS, seed=5)]
)
def test_checkpoints_move_both_ways(make: Any) -> None:
    ours = make()
    theirs = to_torchrec(make())
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(1.0)
    assert not ours.load_state_dict(theirs.state_dict()).missing_keys
    assert all(torch.equal(ours.state_dict()[name], weight) for name, weight in theirs.state_dict().items())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.mul_(2.0)
    assert not theirs.load_state_dict(ours.state_dict()).missing_keys
    assert all(torch.equal(ours.state_dict()[name], weight) for name, weight in theirs.state_dict().items())


def loss_of(out: Any) -> Tensor:
    parts = out.values() if isinstance(out, dict) else [out]
    total = torch.zeros(())
    for part in parts:
        total = total + part.values().square().sum()
    return total


@pytest.mark.parametrize(
    "make", [lambda **k: EmbeddingBagCollection(BAGS, **k), lambda **k: EmbeddingCollection(ROWS, **k)]
)
def test_row_wise_adagrad_is_that_of_torchrec(make: Any) -> None:
    from torch.distributed.optim import _apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    ours = make(fused_params=FusedParams(learning_rate=0.1, eps=1e-10), seed=7)
    theirs = to_torchrec(make(seed=7))
    _apply_optimizer_in_backward(RowWiseAdagrad, theirs.parameters(), {"lr": 0.1, "eps": 1e-10})
    for step in range(10):
        ours_loss, their_loss = loss_of(ours(batch(step))), loss_of(theirs(to_torchrec(batch(step))))
        torch.testing.assert_close(ours_loss, their_loss, rtol=1e-5, atol=0)
        ours_loss.backward()
        their_loss.backward()
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_converted_is_refused(torchrec: Any) -> None:
    grows = EmbeddingBagCollection([EmbeddingBagConfig(0, 4, "d")], fused_params=FusedParams())
    with pytest.raises(ConfigError, match="table d has not all its rows here"):
        to_torchrec(grows)
    configs = torchrec.modules.embedding_configs
    half = configs.EmbeddingBagConfig(4, 4, "h", data_type=configs.DataType.FP16, feature_names=["f"])
    with pytest.raises(ConfigError, match="table h: data_type is FP16"):
        from_torchrec(torchrec.EmbeddingBagCollection([half]))
    position = configs.EmbeddingBagConfig(4, 4, "p", need_pos=True, feature_names=["f"])
    with pytest.raises(ConfigError, match="table p has need_pos"):
        from_torchrec(torchrec.EmbeddingBagCollection([position]))
