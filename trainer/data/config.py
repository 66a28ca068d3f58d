"""The [data] section of a recipe; importable without numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ett.errors import ConfigError

DEFAULT_MAX_LENGTH = 21_000  # ids of the longest generated history: where FreeScale clips them


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """The file that is made where data.path is empty."""

    rows: int = 200_000
    seed: int = 1  # another seed is another population: ids, weights and rows all differ
    items: int = 1_000_000  # sequence only: different ids of items
    max_length: int = DEFAULT_MAX_LENGTH  # sequence only: ids of the longest history

    def __post_init__(self) -> None:
        for name in ("rows", "items", "max_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"data.generate.{name} is {getattr(self, name)}", expected="at least 1")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"data.generate.seed is {self.seed}", expected="an integer, 0 <= seed < 2^32")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    path: str = ""  # a file, a folder of files or an fsspec URL, plain, gzip or Parquet; empty: as [data.generate] says
    format: Literal["criteo", "sequence"] = "criteo"  # or user histories in Parquet
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    label: str = "label"  # sequence only, as are the next three: the column with 0 or 1
    ids: tuple[str, ...] = ("item_id",)  # columns of one id a row, none of them null
    histories: tuple[str, ...] = ("history",)  # columns of lists of ids, the latest last; a null is an empty one
    max_length: int = 0  # the latest ids of a longer history are kept; 0 = all
    max_bad_lines: int = 0  # malformed lines of one epoch that are counted and skipped; one more stops the job
    shuffle: bool = True  # shuffle the rows of each window; the order is a function of files, train.seed and epoch
    window_rows: int = 65536  # rows of one file that are shuffled together
    lanes: int = 1  # windows read side by side and mixed; with as many as ranks, each rank reads its own windows
    readers: int = 1  # threads of a rank that parse; changes no batch
    prefetch_batches: int = 4  # batches ready ahead of the training step; 0 reads in step; changes no batch
    heldout_share: float = 0.05  # share of the rows that are never trained on, and scored at the end

    def __post_init__(self) -> None:
        if self.max_bad_lines < 0:
            raise ConfigError(f"data.max_bad_lines is {self.max_bad_lines}", expected="zero or more lines")
        if self.window_rows < 1:
            raise ConfigError(f"data.window_rows is {self.window_rows}", expected="at least 1 row")
        for name, least in (("lanes", 1), ("readers", 1), ("prefetch_batches", 0), ("max_length", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"data.{name} is {getattr(self, name)}", expected=f"at least {least}")
        if not 0.0 <= self.heldout_share < 1.0:
            raise ConfigError(f"data.heldout_share is {self.heldout_share}", expected="a share, 0 <= s < 1")

    @property
    def id_features(self) -> tuple[str, ...]:
        """Return the columns of ids, each of which has a table (or a part in one) of [sparse.tables]."""
        return tuple(f"C{n}" for n in range(1, 27)) if self.format == "criteo" else (*self.ids, *self.histories)

    @property
    def num_dense(self) -> int:
        """Return how many numbers a row has beside its ids."""
        return 13 if self.format == "criteo" else 0
