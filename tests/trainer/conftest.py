"""Ranks as threads of one process: the same Collectives, without sockets. Makes `one_rank` importable here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent))

Meeting = tuple[threading.Barrier, list[Any]]
RankFunction = Callable[["ThreadCollectives"], Any]


class ThreadCollectives:
    """Implements ett.trainer.comm.collectives.Collectives between threads; sums in rank order."""

    def __init__(
        self, rank: int, world_size: int, barrier: threading.Barrier, board: list[Any], beside: Meeting | None = None
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._barrier, self._board, self._beside = barrier, board, beside

    def exchange_words(self, words: Tensor) -> Tensor:
        return torch.stack([sent[self.rank] for sent in self._post(words.clone())])

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        parts = [sent[self.rank] for sent in self._post(torch.split(rows.clone(), list(send_counts)))]
        assert [len(part) for part in parts] == list(recv_counts)
        return torch.cat(parts)

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        parts = [sent[self.rank] for sent in self._post(torch.split(rows.clone(), list(send_counts)))]
        return torch.cat(parts), [len(part) for part in parts]

    def sum_in_place(self, flat: Tensor) -> Callable[[], None]:
        total = torch.zeros_like(flat)
        for part in self._post(flat.clone()):
            total += part
        flat.copy_(total)
        return lambda: None

    def gather(self, rows: Tensor) -> list[Tensor]:
        return self._post(rows.clone())

    def barrier(self) -> None:
        self._barrier.wait()

    def beside(self) -> ThreadCollectives:
        assert self._beside is not None
        return ThreadCollectives(self.rank, self.world_size, *self._beside)

    def _post(self, mine: Any) -> list[Any]:
        self._board[self.rank] = mine
        self._barrier.wait()
        everyone = list(self._board)
        self._barrier.wait()
        return everyone


@pytest.fixture
def on_ranks() -> Callable[[int, RankFunction], list[Any]]:
    """Return a function that runs `body` on every rank of a world and returns the results by rank."""

    def run(world_size: int, body: RankFunction) -> list[Any]:
        meetings: list[Meeting] = [(threading.Barrier(world_size, timeout=300), [None] * world_size) for _ in range(2)]

        def one(rank: int) -> Any:
            try:
                return body(ThreadCollectives(rank, world_size, *meetings[0], meetings[1]))
            except BaseException:
                for barrier, _ in meetings:
                    barrier.abort()
                raise

        with ThreadPoolExecutor(world_size) as pool:
            futures = [pool.submit(one, rank) for rank in range(world_size)]
            return [future.result() for future in futures]

    return run
