"""One feature of a batch: values of all examples back to back, and how many each example has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ett.trainer.jagged.jagged_parts import JaggedParts, shown_rows
from ett.trainer.jagged.segments import segment_of_values


class JaggedTensor(JaggedParts):
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
        super().__init__(values, weights, lengths, offsets)
        if values.device.type == "cpu":
            self.check()

    def check(self) -> JaggedTensor:
        """Return self. Raises: DataError: lengths or offsets do not cover the values; waits for the device."""
        self._check_cover("JaggedTensor")
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

    def __str__(self) -> str:
        return f"JaggedTensor({shown_rows(self.to_dense())})"

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
