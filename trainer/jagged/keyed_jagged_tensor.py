"""The sparse features of a batch: for each key, each example's ids.

Values stand by key, then example. K keys; key k has B_k examples (its stride), all equal except in a batch of variable
size (VBE), where a key holds only the distinct examples and `inverse_indices` says which of them each example has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ett.errors import ConfigError
from ett.trainer.jagged.jagged_parts import JaggedParts, shown_rows
from ett.trainer.jagged.jagged_tensor import JaggedTensor, _unchecked
from ett.trainer.jagged.segments import gather_segments

InverseIndices = tuple[list[str], Tensor]


class KeyedJaggedTensor(JaggedParts):
    """Immutable; a view of the tensors that it was made from. Lengths and offsets are int64."""

    def __init__(  # noqa: PLR0917 - TorchRec's signature
        self,
        keys: Sequence[str],
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> None:
        """Wrap tensors without a copy.

        Args:
            values: int64 [L] ids (or any dtype). weights: float [L].
            lengths: [sum of B_k], by key, then example; offsets: one more. One of them, or both.
            stride: B, where all keys have as many examples; else it follows from the lengths.
            stride_per_key_per_rank: K lists, examples of the key by rank.
            inverse_indices: keys and int64 [K, B]: the row of a key's own examples that each example has.
        Raises: ConfigError: what was given does not fit together.
            DataError: on the CPU, where it costs no waiting: the lengths do not cover the values.
        """
        super().__init__(values, weights, lengths, offsets)
        if len(set(keys)) != len(keys):
            raise ConfigError(f"a key comes twice in {list(keys)}", expected="each key once")
        self._keys = list(keys)
        if self._lengths is not None:
            num_segments = self._lengths.numel()
        else:
            num_segments = 0 if offsets is None else offsets.numel() - 1
        self._strides_by_rank = None if stride_per_key_per_rank is None else [list(s) for s in stride_per_key_per_rank]
        self._strides = _strides(len(keys), num_segments, stride, self._strides_by_rank)
        self._inverse_indices = inverse_indices
        self._length_per_key: list[int] | None = None
        self._index_per_key: dict[str, int] | None = None
        if values.device.type == "cpu":
            self.check()

    def check(self) -> KeyedJaggedTensor:
        """Return self. Raises: DataError: the lengths do not cover the values; waits for the device."""
        what = f"KeyedJaggedTensor of {', '.join(self._keys[:5])}{', …' if len(self._keys) > 5 else ''}"
        self._check_cover(what)
        return self

    @staticmethod
    def from_lengths_sync(  # noqa: PLR0917 - TorchRec's signature
        keys: Sequence[str],
        values: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Make one and compute its values per key now; lengths are checked on any device."""
        made = KeyedJaggedTensor(keys, values, weights, lengths, None, stride, stride_per_key_per_rank, inverse_indices)
        return made.check().sync()

    @staticmethod
    def from_offsets_sync(  # noqa: PLR0917 - TorchRec's signature
        keys: Sequence[str],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | None = None,
        inverse_indices: InverseIndices | None = None,
    ) -> KeyedJaggedTensor:
        """Make one and compute its values per key now; offsets are checked on any device."""
        made = KeyedJaggedTensor(keys, values, weights, None, offsets, stride, stride_per_key_per_rank, inverse_indices)
        return made.check().sync()

    @staticmethod
    def from_jt_dict(jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Join features; either all have weights or none has."""
        parts = list(jt_dict.values())
        strides = [[part.lengths().numel()] for part in parts]
        is_even = len({stride for (stride,) in strides}) <= 1
        return KeyedJaggedTensor(
            list(jt_dict),
            torch.cat([part.values() for part in parts]),
            _joined([part.weights_or_none() for part in parts]),
            torch.cat([part.lengths() for part in parts]),
            stride_per_key_per_rank=None if is_even else strides,
        )

    @staticmethod
    def empty(
        is_weighted: bool = False, device: torch.device | None = None, values_dtype: torch.dtype | None = None
    ) -> KeyedJaggedTensor:
        weights = torch.empty(0, device=device) if is_weighted else None
        lengths = torch.empty(0, dtype=torch.int64, device=device)
        return KeyedJaggedTensor([], torch.empty(0, dtype=values_dtype, device=device), weights, lengths, stride=0)

    @staticmethod
    def empty_like(kjt: KeyedJaggedTensor, device: torch.device | None = None) -> KeyedJaggedTensor:
        return KeyedJaggedTensor.empty(kjt.weights_or_none() is not None, device or kjt.device(), kjt.values().dtype)

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """Join the keys of several; either all have weights or none has, and all have the same examples (or VBE)."""
        if not kjt_list:
            raise ConfigError("an empty list has no keys to join", expected="at least one KeyedJaggedTensor")
        is_vbe = any(kjt.variable_stride_per_key() for kjt in kjt_list)
        if not is_vbe and len({kjt.stride() for kjt in kjt_list}) != 1:
            raise ConfigError(
                f"strides {[kjt.stride() for kjt in kjt_list]} differ", expected="the same examples in each"
            )
        strides = [s for kjt in kjt_list for s in kjt.stride_per_key_per_rank()] if is_vbe else None
        inverse = [kjt.inverse_indices_or_none() for kjt in kjt_list]
        joined_inverse = None
        if is_vbe and all(part is not None for part in inverse):
            parts = [part for part in inverse if part is not None]
            joined_inverse = ([key for part in parts for key in part[0]], torch.cat([part[1] for part in parts]))
        return KeyedJaggedTensor(
            [key for kjt in kjt_list for key in kjt._keys],
            torch.cat([kjt.values() for kjt in kjt_list]),
            _joined([kjt.weights_or_none() for kjt in kjt_list]),
            torch.cat([kjt.lengths() for kjt in kjt_list]),
            stride=None if is_vbe else kjt_list[0].stride(),
            stride_per_key_per_rank=strides,
            inverse_indices=joined_inverse,
        )

    def keys(self) -> list[str]:
        return self._keys

    def stride(self) -> int:
        """Return B; of a batch of variable size the examples that `inverse_indices` gives, else the most of a key."""
        if self._inverse_indices is not None:
            return int(self._inverse_indices[1].shape[-1])
        return max(self._strides, default=0)

    def stride_per_key(self) -> list[int]:
        return self._strides

    def stride_per_key_per_rank(self) -> list[list[int]]:
        return [[stride] for stride in self._strides] if self._strides_by_rank is None else self._strides_by_rank

    def variable_stride_per_key(self) -> bool:
        return self._strides_by_rank is not None

    def inverse_indices(self) -> InverseIndices:
        if self._inverse_indices is None:
            raise ConfigError("this KeyedJaggedTensor has no inverse_indices", expected="a batch of variable size")
        return self._inverse_indices

    def inverse_indices_or_none(self) -> InverseIndices | None:
        return self._inverse_indices

    def length_per_key(self) -> list[int]:
        """Return the number of values of each key; computed once, with one wait for the device."""
        if self._length_per_key is None:
            offsets = self.offsets()
            ends = offsets[torch.tensor(self.lengths_offset_per_key(), device=offsets.device)].tolist()
            self._length_per_key = [end - begin for begin, end in pairwise(ends)]
        return self._length_per_key

    def length_per_key_or_none(self) -> list[int] | None:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        return list(accumulate(self.length_per_key(), initial=0))

    def offset_per_key_or_none(self) -> list[int] | None:
        return None if self._length_per_key is None else self.offset_per_key()

    def lengths_offset_per_key(self) -> list[int]:
        return list(accumulate(self._strides, initial=0))

    def index_per_key(self) -> dict[str, int]:
        if self._index_per_key is None:
            self._index_per_key = {key: index for index, key in enumerate(self._keys)}
        return self._index_per_key

    def sync(self) -> KeyedJaggedTensor:
        """Compute values per key now."""
        self.length_per_key()
        return self

    def to_dict(self) -> dict[str, JaggedTensor]:
        """Return each key's feature, as views."""
        weights = self._weights
        parts = zip(pairwise(self.lengths_offset_per_key()), pairwise(self.offset_per_key()), strict=True)
        features = [
            _unchecked(
                self._values[begin:end],
                None if weights is None else weights[begin:end],
                self.lengths()[first:last],
                None,
            )
            for (first, last), (begin, end) in parts
        ]
        return dict(zip(self._keys, features, strict=True))

    def __getitem__(self, key: str) -> JaggedTensor:
        if key not in self._keys:
            raise KeyError(key)
        return self.to_dict()[key]

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Return the first segments[0] keys, the next segments[1], …; as views."""
        if sum(segments) != len(self._keys):
            raise ConfigError(
                f"segments {list(segments)} sum to {sum(segments)}", expected=f"{len(self._keys)}, the number of keys"
            )
        return [self._slice(begin, end) for begin, end in pairwise(accumulate(segments, initial=0))]

    def permute(self, indices: Sequence[int]) -> KeyedJaggedTensor:
        """Return the keys of indices, in that order; a copy."""
        parts = [self._slice(index, index + 1) for index in indices]
        return KeyedJaggedTensor.concat(parts) if parts else KeyedJaggedTensor.empty_like(self)

    def select_examples(self, examples: Tensor) -> KeyedJaggedTensor:
        """Return a batch of the examples (int64 [T], in any order and any number of times) of every key; a copy.

        Raises: ConfigError: the batch is of variable size.
        """
        if self.variable_stride_per_key():
            raise ConfigError("examples of a batch of variable size cannot be selected", expected="equal strides")
        stride, num_keys = self.stride(), len(self._keys)
        order = (torch.arange(num_keys, device=examples.device)[:, None] * stride + examples).reshape(-1)
        positions = gather_segments(self.lengths(), order)
        weights = None if self._weights is None else self._weights[positions]
        return KeyedJaggedTensor(
            self._keys, self._values[positions], weights, self.lengths()[order], stride=examples.numel()
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> KeyedJaggedTensor:
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> KeyedJaggedTensor:
        return self._mapped(lambda tensor: tensor.pin_memory())

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work that `stream` has now is done."""
        super().record_stream(stream)
        if self._inverse_indices is not None:
            self._inverse_indices[1].record_stream(stream)

    def __str__(self) -> str:
        rows = ", ".join(f"{key!r}: {shown_rows(part.to_dense())}" for key, part in self.to_dict().items())
        return f"KeyedJaggedTensor({{{rows}}})"

    def _slice(self, begin: int, end: int) -> KeyedJaggedTensor:
        """Return the keys [begin, end), as views."""
        value_ends, length_ends = self.offset_per_key(), self.lengths_offset_per_key()
        values = slice(value_ends[begin], value_ends[end])
        by_rank = self._strides_by_rank
        return self._derived(
            keys=self._keys[begin:end],
            values=self._values[values],
            weights=None if self._weights is None else self._weights[values],
            lengths=self.lengths()[length_ends[begin] : length_ends[end]],
            offsets=None,
            strides=self._strides[begin:end],
            strides_by_rank=None if by_rank is None else by_rank[begin:end],
            inverse_indices=self._inverse_of(begin, end),
            length_per_key=self.length_per_key()[begin:end],
        )

    def _inverse_of(self, begin: int, end: int) -> InverseIndices | None:
        if self._inverse_indices is None:
            return None
        keys, indices = self._inverse_indices
        rows = [keys.index(key) for key in self._keys[begin:end]]
        return self._keys[begin:end], indices[torch.tensor(rows, dtype=torch.int64, device=indices.device)]

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> KeyedJaggedTensor:
        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        inverse = self._inverse_indices
        return self._derived(
            keys=self._keys,
            values=change(self._values),
            weights=changed(self._weights),
            lengths=changed(self._lengths),
            offsets=changed(self._offsets),
            strides=self._strides,
            strides_by_rank=self._strides_by_rank,
            inverse_indices=None if inverse is None else (inverse[0], change(inverse[1])),
            length_per_key=self._length_per_key,
        )

    @staticmethod
    def _derived(**attributes: Any) -> KeyedJaggedTensor:
        """Return one of parts that were checked already."""
        made = KeyedJaggedTensor.__new__(KeyedJaggedTensor)
        made._index_per_key = None
        for name, value in attributes.items():
            setattr(made, f"_{name}", value)
        return made


def _strides(
    num_keys: int, num_segments: int, stride: int | None, by_rank: Sequence[Sequence[int]] | None
) -> list[int]:
    """Return the examples of each key. Raises: ConfigError: they are not those of the lengths."""
    if by_rank is not None:
        strides = [sum(ranks) for ranks in by_rank]
    elif num_keys == 0:
        strides = []
    else:
        strides = [num_segments // num_keys if stride is None else stride] * num_keys
    if len(strides) != num_keys or sum(strides) != num_segments:
        raise ConfigError(
            f"{num_segments} lengths came with {num_keys} keys of {strides[:5] if strides else 'no'} examples",
            expected="a length for each example of each key",
            do="pass lengths by key, then example; stride_per_key_per_rank where keys have different numbers",
        )
    return strides


def _joined(weights: Sequence[Tensor | None]) -> Tensor | None:
    given = [weight for weight in weights if weight is not None]
    if given and len(given) != len(weights):
        raise ConfigError(
            f"{len(given)} of {len(weights)} features have weights", expected="weights for all of them, or for none"
        )
    return torch.cat(given) if given else None
