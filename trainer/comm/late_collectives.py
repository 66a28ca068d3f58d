"""Collectives of a group that is still being joined, for what needs only rank and world size to be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ett.trainer.comm.collectives import Collectives, Wait


class LateCollectives:
    """Implements `ett.trainer.comm.collectives.Collectives`; the first call needs the group.

    Args: joined: returns the group's collectives; asked once, at the first call.
    """

    def __init__(self, rank: int, world_size: int, joined: Callable[[], Collectives]) -> None:
        self.rank, self.world_size = rank, world_size
        self._joined: Callable[[], Collectives] | None = joined
        self._found: Collectives | None = None

    @property
    def _group(self) -> Collectives:
        if self._found is None:
            assert self._joined is not None
            self._found, self._joined = self._joined(), None
        return self._found

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
