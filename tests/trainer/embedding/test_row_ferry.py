"""The host's part of an exchange, against plain indexing; and a cache whose rows cross by it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ett.trainer.embedding.device_cache import WEIGHT, RowsCache
from ett.trainer.embedding.row_ferry import RowFerry, can_ferry
from ett.trainer.kernels.segments import segments_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(not can_ferry() and DEVICE.type == "cuda", reason="no CUDA runtime is found")


def tables(num_rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    weights = torch.rand(num_rows, 5, generator=generator)
    steps = torch.randint(0, 2**40, (num_rows, 1), generator=generator)
    if DEVICE.type == "cuda":
        weights, steps = weights.pin_memory(), steps.pin_memory()  # the device reaches what has no room in the ferry
    return {"weight": weights, "step": steps}


@pytest.mark.slow
@pytest.mark.parametrize("room", [1, 7, 1 << 20])
def test_rows_that_come_and_leave_are_those_of_a_flat_table(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ett.trainer.embedding.row_ferry.STAGED_BYTES", room * 20)
    rng = random.Random(room)
    below = tables(4000, torch.Generator().manual_seed(room))
    flat = {name: rows.clone() for name, rows in below.items()}
    cache = RowsCache(below, 2500, DEVICE, ferried=True)
    for name, rows in cache.rows.items():
        rows.fill_(float("nan") if name == "weight" else -1)
    short = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for now in range(1, 13):
        drawn = torch.tensor(rng.choices(range(4000), k=rng.choice([3, 900, 2300])), device=DEVICE)
        _, at = cache.place(segments_of(drawn), short, now=now, in_flight=now)
        for name, rows in cache.rows.items():
            assert torch.equal(rows[at.long()].cpu(), flat[name][drawn.cpu()])
            rows[at.long()] += 1
            flat[name][drawn.cpu()] += 1
        some = torch.arange(0, 4000, 37, device=DEVICE)
        assert torch.equal(cache.read_through("weight", some).cpu(), flat["weight"][some.cpu()])
    assert not int(short) and cache.use().missed > 2500
    cache.flush()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    assert all(torch.equal(rows, flat[name]) for name, rows in below.items())


@pytest.mark.slow
def test_copies_are_as_large_as_the_last_exchanges_were() -> None:
    below = tables(100_000, torch.Generator().manual_seed(1))
    cache = RowsCache(below, 50_000, DEVICE, ferried=True)
    assert cache._ferry is not None
    sizes = []
    for now in range(1, 60):
        drawn = torch.arange(now * 100, now * 100 + 300, device=DEVICE)
        rows, short = segments_of(drawn), torch.zeros(1, dtype=torch.int64, device=DEVICE)
        found_before = cache._ferry.rooms()
        cache.place(rows, short, now=now, in_flight=now)
        sizes.append(found_before[0])
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
    assert sizes[0] == 100_000 and sizes == sorted(sizes, reverse=True)  # what comes first is not known
    assert sizes[-1] == 4096


def test_a_ferry_is_only_for_a_cache_in_another_memory() -> None:
    cache = RowsCache({WEIGHT: torch.zeros(4, 2)}, 2, torch.device("cpu"))
    assert cache._ferry is None
    assert isinstance(RowFerry([(torch.zeros(2, 2), torch.zeros(4, 2))], torch.device("cpu")), RowFerry)
