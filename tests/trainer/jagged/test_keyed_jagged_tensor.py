from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jagged_batches import Batch, as_lists, batches, weights_as_lists

from ett.errors import ConfigError, DataError
from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor


def int64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.slow
@given(batch=batches())
def test_it_holds_what_it_was_made_from(batch: Batch) -> None:
    kjt = batch.kjt()
    assert (as_lists(kjt), weights_as_lists(kjt)) == (batch.ids, batch.weights)
    assert kjt.length_per_key() == [sum(map(len, bags)) for bags in batch.ids.values()]
    again = KeyedJaggedTensor.from_offsets_sync(kjt.keys(), kjt.values(), kjt.offsets(), stride=kjt.stride())
    assert as_lists(again) == batch.ids
    assert again.offset_per_key()[-1] == len(kjt.values())


@pytest.mark.slow
@given(batch=batches(), data=st.data())
def test_permute_takes_keys_in_the_order_asked_for(batch: Batch, data: st.DataObject) -> None:
    keys = list(batch.ids)
    order = data.draw(st.lists(st.integers(0, len(keys) - 1), unique=True))
    permuted = batch.kjt().permute(order)
    assert list(as_lists(permuted).items()) == [(keys[i], batch.ids[keys[i]]) for i in order]
    assert list(weights_as_lists(permuted).items()) == [(keys[i], batch.weights[keys[i]]) for i in order]


@pytest.mark.slow
@given(batch=batches(), cut=st.integers(0, 4))
def test_concat_undoes_split(batch: Batch, cut: int) -> None:
    kjt, cut = batch.kjt(), min(cut, len(batch.ids))
    parts = kjt.split([cut, len(batch.ids) - cut])
    assert as_lists(parts[0]) | as_lists(parts[1]) == batch.ids
    joined = KeyedJaggedTensor.concat([part for part in parts if part.keys()])
    assert (as_lists(joined), weights_as_lists(joined)) == (batch.ids, batch.weights)
    assert joined.stride() == kjt.stride()


@pytest.mark.slow
@given(batch=batches(), data=st.data())
def test_select_examples_is_indexing_of_every_key(batch: Batch, data: st.DataObject) -> None:
    size = len(next(iter(batch.ids.values())))
    chosen = data.draw(st.lists(st.integers(0, size - 1), max_size=7)) if size else []
    selected = batch.kjt().select_examples(torch.tensor(chosen, dtype=torch.int64))
    assert as_lists(selected) == {key: [bags[i] for i in chosen] for key, bags in batch.ids.items()}
    assert weights_as_lists(selected) == {key: [bags[i] for i in chosen] for key, bags in batch.weights.items()}
    assert selected.stride() == len(chosen)


@pytest.mark.slow
@given(batch=batches())
def test_joining_the_features_of_to_dict_gives_the_batch(batch: Batch) -> None:
    joined = KeyedJaggedTensor.from_jt_dict(batch.kjt().to_dict())
    assert (as_lists(joined), weights_as_lists(joined)) == (batch.ids, batch.weights)


def test_a_batch_of_variable_size_keeps_each_keys_examples_and_their_inverse() -> None:
    kjt = KeyedJaggedTensor(
        ["a", "b"],
        int64(1, 2, 3, 4, 5),
        lengths=int64(2, 1, 2),
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=(["a", "b"], torch.tensor([[0, 1, 0], [0, 0, 0]])),
    )
    assert kjt.variable_stride_per_key()
    assert (kjt.stride(), kjt.stride_per_key()) == (3, [2, 1])
    assert as_lists(kjt) == {"a": [[1, 2], [3]], "b": [[4, 5]]}
    swapped = kjt.permute([1, 0])
    assert as_lists(swapped) == {"b": [[4, 5]], "a": [[1, 2], [3]]}
    keys, indices = swapped.inverse_indices()
    assert (keys, indices.tolist()) == (["b", "a"], [[0, 0, 0], [0, 1, 0]])
    with pytest.raises(ConfigError, match="variable size"):
        kjt.select_examples(int64(0))


def test_views_share_memory_with_the_batch() -> None:
    kjt = Batch(ids={"a": [[1], [2, 3]], "b": [[4], []]}, weights={}).kjt(is_weighted=False)
    kjt.values()[3] = 9
    assert as_lists(kjt.split([1, 1])[1]) == {"b": [[9], []]}
    assert kjt["b"].values().tolist() == [9]


@pytest.mark.parametrize(
    ("lengths", "says"),
    [((1, 1), "sum to 2, there are 3 values"), ((4, -1), "length 1 is -1"), ((2, 2), "sum to 4")],
)
def test_lengths_that_do_not_cover_the_values_are_refused(lengths: tuple[int, int], says: str) -> None:
    with pytest.raises(DataError, match=says):
        KeyedJaggedTensor(["a"], int64(1, 2, 3), lengths=int64(*lengths))


@pytest.mark.parametrize("offsets", [(1, 3), (0, 2), (0, 4, 3), ()])
def test_offsets_that_do_not_cover_the_values_are_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises((DataError, ConfigError)):
        KeyedJaggedTensor(["a"], int64(1, 2, 3), offsets=int64(*offsets))


def test_parts_that_do_not_fit_together_are_refused() -> None:
    values, lengths = int64(1, 2), int64(1, 1)
    with pytest.raises(ConfigError, match="comes twice"):
        KeyedJaggedTensor(["a", "a"], values, lengths=lengths)
    with pytest.raises(ConfigError, match="neither lengths nor offsets"):
        KeyedJaggedTensor(["a"], values)
    with pytest.raises(ConfigError, match="3 keys"):
        KeyedJaggedTensor(["a", "b", "c"], values, lengths=lengths)
    with pytest.raises(ConfigError, match="1 weights came with 2 values"):
        KeyedJaggedTensor(["a"], values, torch.ones(1), lengths=lengths)
    with pytest.raises(ConfigError, match="segments"):
        KeyedJaggedTensor(["a"], values, lengths=lengths).split([2])
    weighted = JaggedTensor(values, torch.ones(2), lengths=lengths)
    with pytest.raises(ConfigError, match="1 of 2 features have weights"):
        KeyedJaggedTensor.from_jt_dict({"a": weighted, "b": JaggedTensor(values, lengths=lengths)})
    with pytest.raises(ConfigError, match="strides"):
        one, two = (KeyedJaggedTensor([k], values, lengths=n) for k, n in (("a", lengths), ("b", int64(2))))
        KeyedJaggedTensor.concat([one, two])


def test_int32_lengths_become_int64() -> None:
    kjt = KeyedJaggedTensor(["a"], int64(1, 2), lengths=torch.tensor([2], dtype=torch.int32))
    assert kjt.lengths().dtype == kjt.offsets().dtype == torch.int64


def test_more_values_than_32_bits_can_count_are_counted() -> None:
    values = torch.empty(3 * 2**30, dtype=torch.int64, device="meta")
    kjt = KeyedJaggedTensor(["a", "b", "c"], values, lengths=torch.full((3,), 2**30, dtype=torch.int64))
    assert kjt.offset_per_key() == [0, 2**30, 2**31, 3 * 2**30]
    assert kjt["c"].values().shape == (2**30,)


def test_a_large_batch_is_shown_by_its_first_rows() -> None:
    small = KeyedJaggedTensor(["a", "b"], torch.arange(3), None, torch.tensor([2, 0, 0, 1]))
    assert str(small) == "KeyedJaggedTensor({'a': [[0, 1], []], 'b': [[], [2]]})"
    large = KeyedJaggedTensor(["a"], torch.arange(9000), None, torch.full((9,), 1000))
    assert "[[0, 1, 2, 3, 4, 5, ... 994 more], " in str(large)
    assert str(large).endswith(", ... 3 more]})")
