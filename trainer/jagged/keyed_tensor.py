"""Pooled rows of several features side by side: what an `EmbeddingBagCollection` returns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ett.errors import ConfigError


class KeyedTensor:
    """Immutable: values [B, D1 + D2 + …] along key_dim, one block a key."""

    def __init__(self, keys: Sequence[str], length_per_key: Sequence[int], values: Tensor, key_dim: int = 1) -> None:
        """Wrap values without a copy. Raises: ConfigError: the blocks do not cover key_dim, or a key comes twice."""
        if len(keys) != len(length_per_key) or sum(length_per_key) != values.shape[key_dim]:
            raise ConfigError(
                f"{len(keys)} keys with lengths {list(length_per_key)} came with values of shape {tuple(values.shape)}",
                expected=f"a length for each key, which sum to dimension {key_dim}",
            )
        if len(set(keys)) != len(keys):
            raise ConfigError(f"a key comes twice in {list(keys)}", expected="one block a key")
        self._keys, self._lengths, self._values, self._key_dim = list(keys), list(length_per_key), values, key_dim

    @staticmethod
    def from_tensor_list(
        keys: Sequence[str], tensors: Sequence[Tensor], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        return KeyedTensor(keys, [t.shape[key_dim] for t in tensors], torch.cat(list(tensors), dim=cat_dim), key_dim)

    @staticmethod
    def regroup(keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return one tensor a group: its keys' blocks side by side, from whichever of the tensors has the key."""
        blocks: dict[str, Tensor] = {}
        for tensor in keyed_tensors:
            blocks |= tensor.to_dict()
        dim = keyed_tensors[0].key_dim() if keyed_tensors else 1
        for key in (key for group in groups for key in group):
            if key not in blocks:
                raise ConfigError(f"no tensor has the key {key!r}", expected=f"one of {sorted(blocks)}")
        return [torch.cat([blocks[key] for key in group], dim=dim) for group in groups]

    @staticmethod
    def regroup_as_dict(
        keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]], keys: Sequence[str]
    ) -> dict[str, Tensor]:
        return dict(zip(keys, KeyedTensor.regroup(keyed_tensors, groups), strict=True))

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def key_dim(self) -> int:
        return self._key_dim

    def device(self) -> torch.device:
        return self._values.device

    def length_per_key(self) -> list[int]:
        return self._lengths

    def offset_per_key(self) -> list[int]:
        return list(accumulate(self._lengths, initial=0))

    def to_dict(self) -> dict[str, Tensor]:
        """Return each key's block, as a view."""
        return dict(zip(self._keys, torch.split(self._values, self._lengths, dim=self._key_dim), strict=True))

    def __getitem__(self, key: str) -> Tensor:
        index = self._keys.index(key)
        return self._values.narrow(self._key_dim, self.offset_per_key()[index], self._lengths[index])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> KeyedTensor:
        return KeyedTensor(self._keys, self._lengths, self._values.to(device, non_blocking=non_blocking), self._key_dim)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work that `stream` has now is done."""
        self._values.record_stream(stream)
