"""What decides whether ranks share memory; tests/process/test_collections_over_gloo.py has real ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ett.trainer.comm import host_memory
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.comm.host_memory import HostMemoryCollectives, share_host_memory

Run = Callable[[int, Callable[[Any], Any]], list[Any]]


def test_one_rank_needs_no_memory() -> None:
    alone = LocalCollectives()
    assert share_host_memory(alone) is alone


def test_ranks_that_see_each_other_share_memory(on_ranks: Run) -> None:
    def body(collectives: Any) -> list[int]:
        shared = share_host_memory(collectives)
        assert isinstance(shared, HostMemoryCollectives)
        rows = torch.tensor([[10 * shared.rank + peer] for peer in range(3)])
        return shared.all_to_all(rows, [1, 1, 1], [1, 1, 1]).flatten().tolist()

    assert on_ranks(3, body) == [[peer * 10 + rank for peer in range(3)] for rank in range(3)]


def test_one_rank_that_cannot_read_another_decides_for_all(on_ranks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(collectives: Any) -> bool:
        return share_host_memory(collectives) is collectives

    opened, calls = host_memory._opened, []

    def sometimes(pid: int, descriptor: int, size: int) -> Any:
        calls.append(pid)
        if len(calls) == 2:
            raise PermissionError(13, "not yours")
        return opened(pid, descriptor, size)

    monkeypatch.setattr(host_memory, "_opened", sometimes)
    assert on_ranks(2, body) == [True, True]


def test_memory_of_another_process_is_not_taken_for_a_peers(on_ranks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, a peer's process id may be that of a stranger."""
    strange = host_memory._OwnMemory(1 << 20, 0)
    monkeypatch.setattr(host_memory, "_opened", lambda pid, descriptor, size: strange.bytes)
    assert on_ranks(2, lambda collectives: share_host_memory(collectives) is collectives) == [True, True]


@pytest.mark.slow
def test_descriptors_are_given_back(on_ranks: Run) -> None:
    def body(collectives: Any) -> None:
        shared = share_host_memory(collectives)
        for size in (1, 10_000_000, 20_000_000, 1):
            rows = torch.zeros(2 * size, dtype=torch.uint8)
            shared.all_to_all(rows, [size, size], [size, size])

    before = len(os.listdir("/proc/self/fd"))
    on_ranks(2, body)
    assert len(os.listdir("/proc/self/fd")) == before
