"""id -> slot for dynamic 64-bit ids: native where it is built, else numpy, with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ett.native import native
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.numpy_id_index import NumpyIdIndex


class IdIndex(Protocol):
    """Slots are 0, 1, 2, … in order of insertion; those of erased ids are given out again, the last erased first.

    The native one holds no GIL while it works; lookups may run beside each other, a change waits for them.
    """

    def __len__(self) -> int:
        """Return the number of ids."""

    @property
    def num_slots(self) -> int:
        """One more than the greatest slot ever given out."""

    @property
    def bytes(self) -> int:
        """Memory of the index."""

    def find(self, ids: Ids) -> Ids:
        """Return the slot of each id, -1 where it is not known: int64 [N]."""

    def insert(self, ids: Ids) -> Ids:
        """Add ids, int64 [N], and return their slots: int64 [N].

        Raises: ValueError: an id is known already, or comes twice; nothing was added.
        """

    def erase(self, ids: Ids) -> Ids:
        """Forget ids and return the slots that they had, -1 where one was not known: int64 [N]."""

    def items(self) -> tuple[Ids, Ids]:
        """Return all ids and their slots, int64 [len(self)] each, in no particular order."""

    def clear(self) -> None:
        """Forget all ids."""


_BUILT = native("ett.trainer.sparse._index")
NATIVE: Callable[[int], IdIndex] | None = None if _BUILT is None else _BUILT.IdIndex


def id_index(threads: int = 1) -> IdIndex:
    """Return an empty index whose calls on many ids use up to `threads` threads."""
    return NumpyIdIndex() if NATIVE is None else NATIVE(threads)
