"""What both jagged classes are made of: values, their weights, and the lengths or offsets that cut them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ett.errors import ConfigError
from ett.trainer.jagged.segments import as_int64, check_lengths, check_offsets, lengths_of, offsets_of

_SHOWN = 6  # rows of a tensor, and values of a row, that are printed


def shown_rows(rows: Sequence[Tensor]) -> str:
    """Return the first values of the first rows as text, and how many more there are."""
    shown = [_shown(row[:_SHOWN].tolist(), len(row)) for row in rows[:_SHOWN]]
    return _shown(shown, len(rows))


def _shown(parts: Sequence[object], total: int) -> str:
    more = [f"... {total - len(parts)} more"] if total > len(parts) else []
    return f"[{', '.join([*map(str, parts), *more])}]"


class JaggedParts:
    """S segments of L values; lengths and offsets are int64, and the one that was not given is computed once."""

    def __init__(self, values: Tensor, weights: Tensor | None, lengths: Tensor | None, offsets: Tensor | None) -> None:
        """Wrap tensors without a copy; see the two classes for what they raise."""
        if lengths is None and offsets is None:
            raise ConfigError(
                f"a {type(self).__name__} got neither lengths nor offsets", expected="one of them, or both"
            )
        if weights is not None and weights.shape[:1] != values.shape[:1]:
            raise ConfigError(
                f"{weights.shape[0]} weights came with {values.shape[0]} values", expected="one weight a value"
            )
        self._values, self._weights = values, weights
        self._lengths = None if lengths is None else as_int64(lengths).reshape(-1)
        self._offsets = None if offsets is None else as_int64(offsets)

    def values(self) -> Tensor:
        return self._values

    def weights(self) -> Tensor:
        if self._weights is None:
            raise ConfigError(f"this {type(self).__name__} has no weights", expected="weights given when it was made")
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        """Return int64 [S]."""
        if self._lengths is None:
            self._lengths = lengths_of(self.offsets())
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        """Return int64 [S + 1]."""
        if self._offsets is None:
            self._offsets = offsets_of(self.lengths())
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def device(self) -> torch.device:
        return self._values.device

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory until the work that `stream` has now is done."""
        for tensor in (self._values, self._weights, self._lengths, self._offsets):
            if tensor is not None:
                tensor.record_stream(stream)

    def _check_cover(self, what: str) -> None:
        if self._lengths is not None:
            check_lengths(self._lengths, self._values.shape[0], what)
        if self._offsets is not None:
            check_offsets(self._offsets, self._values.shape[0], what)
