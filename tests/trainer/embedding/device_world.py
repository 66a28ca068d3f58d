"""Small tables in device memory, without a GPU in the host's, and who takes their rows at a step boundary."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ett.checkpoint.capture.boundary_rows import DeviceStaging
from ett.checkpoint.capture.staging_pool import StagingPool
from ett.checkpoint.stall_budget import Patience
from ett.checkpoint.table import copy_of_rows
from ett.checkpoint.table_segments import Bytes
from ett.trainer import EmbeddingBagCollection, EmbeddingBagConfig, EmbOptimType, FusedParams, KeyedJaggedTensor
from ett.trainer.embedding.cache_params import CacheParams
from ett.trainer.embedding.device_tables import DeviceTable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TABLES = [
    EmbeddingBagConfig(170, 8, "a", feature_names=["f1", "f3"]),
    EmbeddingBagConfig(90, 4, "b", feature_names=["f2"]),
    EmbeddingBagConfig(130, 8, "c", feature_names=["f1"]),
]
KEYS = ["f1", "f3", "f2"]
LIMITS = {"f1": 130, "f3": 170, "f2": 90}
PATIENT = Patience(60.0)
Make = Callable[..., EmbeddingBagCollection]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    if DEVICE.type == "cpu":
        place = "ett.trainer.embedding.embedding_bag_collection.is_on_device"
        monkeypatch.setattr(place, lambda device: device is not None)

    def made(optimizer: EmbOptimType, cache: CacheParams | None = None) -> EmbeddingBagCollection:
        fused = FusedParams(optimizer=optimizer, learning_rate=0.1)
        return EmbeddingBagCollection(TABLES, device=DEVICE, fused_params=fused, seed=3, cache_params=cache)

    return made


def batch(rng: random.Random, size: int = 6) -> KeyedJaggedTensor:
    lengths = [rng.randrange(4) for _ in range(len(KEYS) * size)]
    counts = [sum(lengths[n * size : (n + 1) * size]) for n in range(len(KEYS))]
    # Half of the ids are of a few rows, so that rows come again.
    ids = [
        rng.randrange(LIMITS[key] if rng.random() < 0.5 else 20)
        for key, n in zip(KEYS, counts, strict=True)
        for _ in range(n)
    ]
    return KeyedJaggedTensor(KEYS, torch.tensor(ids, dtype=torch.int64), None, torch.tensor(lengths)).to(DEVICE)


def train(tables: EmbeddingBagCollection, features: KeyedJaggedTensor) -> None:
    values = tables(features).values()
    (values * torch.linspace(-1, 1, values.numel(), device=DEVICE).view(values.shape)).sum().backward()


def rows_now(table: DeviceTable) -> list[list[bytes]]:
    """Return the bytes of each column of each row."""
    rows = copy_of_rows(table)
    columns = [rows.weights, *rows.states.values()]
    as_bytes = [column.contiguous().view(torch.uint8).view(len(rows.ids), -1).numpy() for column in columns]
    return [[column[number].tobytes() for column in as_bytes] for number in range(len(rows.ids))]


def empty_columns(table: DeviceTable, num_rows: int) -> tuple[Bytes, ...]:
    columns = [table.weight, *table.state_rows.values()]
    return tuple(np.full((num_rows, c.shape[1] * c.element_size()), 0xAA, np.uint8) for c in columns)


def bits_set(bits: NDArray[np.uint8], num_rows: int) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:num_rows]).tolist())


def staging(host_bytes: int = 1 << 20, block_bytes: int = 512) -> DeviceStaging:
    """A ring of 64 rows, and blocks of a few rows: as little as there can be."""
    return DeviceStaging(StagingPool(host_bytes, 1 << 20, block_bytes), 0)


CACHES = [None, CacheParams(load_factor=0.5), CacheParams(load_factor=0.5, state_load_factor=0.6)]


class Nobody:
    """Is told of slots, and forgets them: not NOBODY_TRACKS, with which nothing is marked."""

    def grow(self, num_slots: int) -> None:
        return None

    def touched(self, slots: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        return None
