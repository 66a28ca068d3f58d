"""How much of tables in host memory is cached in device memory, with TorchRec's name."""

from __future__ import annotations

from dataclasses import dataclass

from ett.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheParams:
    load_factor: float  # rows in device memory, of all; at least the distinct rows of the batches in flight
    # The same for the rows' optimizer state. None: all of it where it is one number a row or less, as with row-wise
    # Adagrad, whose state below would cost a transfer to save a sixty-fourth of the memory; else as load_factor.
    state_load_factor: float | None = None

    def __post_init__(self) -> None:
        for name, factor in (("load_factor", self.load_factor), ("state_load_factor", self.state_load_factor)):
            if factor is not None and not 0.0 < factor <= 1.0:
                raise ConfigError(f"cache_params.{name} is {factor}", expected="a number, 0 < factor <= 1")

    def state_factor(self, state_width: int) -> float:
        """Return the share of the states in device memory; 1: they are there alone, and nothing below."""
        if self.state_load_factor is not None:
            return self.state_load_factor
        return 1.0 if state_width <= 1 else self.load_factor
