"""One feature of a batch: values of all examples back to back, and how many each example has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ett.errors import ConfigError
from ett.trainer.jagged.segments import (
    as_int64,
    check_lengths,
    check_offsets,
    lengths_of,
    offsets_of,
    segment_of_values,
)


class JaggedTensor:
    """Immutable. Lengths and offsets are int64; values have one row a value and any dtype.

    Shapes: B examples, L values in all.
    """

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        """Wrap tensors without a copy.

        Args:
            values: [L] or [L, …].
            weights: float [L], one a value.
            lengths: [B]; offsets: [B + 1]. One of them, or both.
        Raises: ConfigError: neither lengths nor offsets, or weights of another length.
            DataError: on the CPU, where it costs no waiting: they do not cover the values.
        """
        if lengths is None and offsets is None:
            raise ConfigError("a JaggedTensor got neither lengths nor offsets", expected="one of them, or both")
        if weights is not None and weights.shape[:1] != values.shape[:1]:
            raise ConfigError(
                f"{weights.shape[0]} weights came with {values.shape[0]} values", expected="one weight a value"
            )
        self._values, self._weights = values, weights
        self._lengths = None if lengths is None else as_int64(lengths)
        self._offsets = None if offsets is None else as_int64(offsets)
        if values.device.type == "cpu":
            self.check()

    def check(self) -> JaggedTensor:
        """Return self. Raises: DataError: lengths or offsets do not cover the values; waits for the device."""
        if self._lengths is not None:
            check_lengths(self._lengths, self._values.shape[0], "JaggedTensor")
        if self._offsets is not None:
            check_offsets(self._offsets, self._values.shape[0], "JaggedTensor")
        return self

    @staticmethod
    def empty(
        is_weighted: bool = False, device: torch.device | None = None, values_dtype: torch.dtype | None = None
    ) -> JaggedTensor:
        weights = torch.empty(0, device=device) if is_weighted else None
        lengths = torch.empty(0, dtype=torch.int64, device=device)
        return JaggedTensor(torch.empty(0, dtype=values_dtype, device=device), weights, lengths=lengths)

    @staticmethod
    def from_dense(values: Sequence[Tensor], weights: Sequence[Tensor] | None = None) -> JaggedTensor:
        """Join the values of each example."""
        lengths = torch.tensor([len(value) for value in values], dtype=torch.int64, device=values[0].device)
        return JaggedTensor(torch.cat(list(values)), None if weights is None else torch.cat(list(weights)), lengths)

    @staticmethod
    def from_dense_lengths(values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> JaggedTensor:
        """Take the first lengths[b] values of each row of values, [B, N, …]."""
        is_there = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
        return JaggedTensor(values[is_there], None if weights is None else weights[is_there], lengths)

    def values(self) -> Tensor:
        return self._values

    def weights(self) -> Tensor:
        if self._weights is None:
            raise ConfigError("this JaggedTensor has no weights", expected="weights given when it was made")
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        """Return int64 [B]."""
        if self._lengths is None:
            self._lengths = lengths_of(self.offsets())
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        """Return int64 [B + 1]."""
        if self._offsets is None:
            self._offsets = offsets_of(self.lengths())
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def device(self) -> torch.device:
        return self._values.device

    def to_dense(self) -> list[Tensor]:
        """Return the values of each example, as views."""
        return list(torch.split(self._values, self.lengths().tolist()))

    def to_dense_weights(self) -> list[Tensor] | None:
        return None if self._weights is None else list(torch.split(self._weights, self.lengths().tolist()))

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Return [B, N, …]: the first N values of each example, N = desired_length or the longest one."""
        return self._padded(self._values, desired_length, padding_value)

    def to_padded_dense_weights(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor | None:
        return None if self._weights is None else self._padded(self._weights, desired_length, padding_value)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> JaggedTensor:
        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        values = self._values.to(device, non_blocking=non_blocking)
        return _unchecked(values, moved(self._weights), moved(self._lengths), moved(self._offsets))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work that `stream` has now is done."""
        for tensor in (self._values, self._weights, self._lengths, self._offsets):
            if tensor is not None:
                tensor.record_stream(stream)

    def __str__(self) -> str:
        return f"JaggedTensor({[value.tolist() for value in self.to_dense()]})"

    def _padded(self, rows: Tensor, desired_length: int | None, padding_value: float) -> Tensor:
        lengths, num_values = self.lengths(), rows.shape[0]
        length = (int(lengths.max()) if lengths.numel() else 0) if desired_length is None else desired_length
        padded = rows.new_full((lengths.numel(), length, *rows.shape[1:]), padding_value)
        example = segment_of_values(lengths, num_values)
        place = torch.arange(num_values, device=rows.device) - self.offsets()[:-1][example]
        fits = place < length
        padded[example[fits], place[fits]] = rows[fits]
        return padded


def _unchecked(values: Tensor, weights: Tensor | None, lengths: Tensor | None, offsets: Tensor | None) -> JaggedTensor:
    """Return a view or copy of a tensor that was checked already."""
    made = JaggedTensor.__new__(JaggedTensor)
    made._values, made._weights, made._lengths, made._offsets = values, weights, lengths, offsets
    return made
