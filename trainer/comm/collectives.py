"""The only place of the trainer that calls torch.distributed: the few collectives that training needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ett.checkpoint.lost_peer import peers_named

Wait = Callable[[], None]


class Collectives(Protocol):
    """What every rank calls in the same order; world size 1 has an implementation without a process group."""

    rank: int
    world_size: int

    def exchange_words(self, words: Tensor) -> Tensor:
        """Send row k of words (int64 [world, n]) to rank k; return the rows received, by sending rank."""

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        """Send the next send_counts[k] entries of rows (dim 0) to rank k; return those received, by sending rank."""

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Send as `all_to_all` does, to ranks that do not know how much comes; return also the counts received."""

    def sum_in_place(self, flat: Tensor) -> Wait:
        """Start to add up flat over ranks; the same bits on every rank. The caller waits before it reads."""

    def gather(self, rows: Tensor) -> list[Tensor]:
        """Return every rank's rows, which may differ in length along dim 0, by rank."""

    def barrier(self) -> None:
        """Return when every rank has called."""

    def beside(self) -> Collectives:
        """Return collectives of the same ranks that another thread may call meanwhile; every rank calls."""


class LocalCollectives:
    """World size 1."""

    rank = 0
    world_size = 1

    def exchange_words(self, words: Tensor) -> Tensor:
        return words

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        return rows

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        return rows, list(send_counts)

    def sum_in_place(self, flat: Tensor) -> Wait:
        return _nothing_to_wait_for

    def gather(self, rows: Tensor) -> list[Tensor]:
        return [rows]

    def barrier(self) -> None:
        return None

    def beside(self) -> Collectives:
        return self


class PassedOnCollectives:
    """Those of `_group`, but for what a subclass does in a way of its own."""

    _group: Collectives

    def exchange_words(self, words: Tensor) -> Tensor:
        return self._group.exchange_words(words)

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        return self._group.all_to_all(rows, send_counts, recv_counts)

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        return self._group.all_to_all_uneven(rows, send_counts)

    def sum_in_place(self, flat: Tensor) -> Wait:
        return self._group.sum_in_place(flat)

    def gather(self, rows: Tensor) -> list[Tensor]:
        return self._group.gather(rows)

    def barrier(self) -> None:
        self._group.barrier()

    def beside(self) -> Collectives:
        return self._group.beside()


class GroupCollectives:
    """A torch.distributed process group.

    Sums are the same bits in every run of one world size: gloo's ring reduces element i of a buffer in an order that
    depends only on i, the buffer's length and the world size (tests/process/test_collectives.py), and callers keep
    their buffers' layout for ever.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, timeout: timedelta | None = None) -> None:
        """Args: timeout: longest wait of groups beside this one; None: torch's."""
        self._group, self._timeout = group, timeout
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)

    def exchange_words(self, words: Tensor) -> Tensor:
        received = torch.empty_like(words)
        with peers_named():
            dist.all_to_all_single(received, words, group=self._group)
        return received

    def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
        received = rows.new_empty((sum(recv_counts), *rows.shape[1:]))
        with peers_named():
            dist.all_to_all_single(received, rows, list(recv_counts), list(send_counts), group=self._group)
        return received

    def all_to_all_uneven(self, rows: Tensor, send_counts: Sequence[int]) -> tuple[Tensor, list[int]]:
        recv_counts = self.exchange_words(torch.tensor(send_counts)[:, None])[:, 0].tolist()
        return self.all_to_all(rows, send_counts, recv_counts), recv_counts

    def sum_in_place(self, flat: Tensor) -> Wait:
        with peers_named():
            work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None

        def wait() -> None:
            with peers_named():
                work.wait()

        return wait

    def gather(self, rows: Tensor) -> list[Tensor]:
        counts = self.exchange_words(torch.full((self.world_size, 1), len(rows)))[:, 0].tolist()
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in counts]
        with peers_named():
            dist.all_gather(received, padded, group=self._group)
        return [part[:count] for part, count in zip(received, counts, strict=True)]

    def barrier(self) -> None:
        with peers_named():
            dist.barrier(group=self._group)

    def beside(self) -> Collectives:
        with peers_named():
            return GroupCollectives(dist.new_group(timeout=self._timeout))


def _nothing_to_wait_for() -> None:
    return None
