"""An error that every rank meets is printed by rank 0 alone; one that only some meet is printed by each of them."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta

from torch.distributed import DistError, Store  # type: ignore[attr-defined]

from ett.errors import ConfigError, DataError, EttError, NotFound

# Errors of the input: every rank reads the same files, so rank 0 most likely meets them too, a moment later or sooner.
_LIKELY_SHARED = (ConfigError, DataError, NotFound)
_WAIT_S = 3.0
# The supervisor takes the first rank that ends for the cause, and quotes its log: that must be the one that printed.
_AFTER_RANK_0_S = 0.5
_KEY = "ett/error-of-rank-0"


def say_once(err: EttError, rank: int, store: Store | None, *, wait_s: float = _WAIT_S) -> None:
    """Print an error to stderr, unless rank 0 said the very same.

    Args:
        store: shared by the ranks; None where there is one rank, or none has been joined.
        wait_s: how long to wait for rank 0 to meet it.
    """
    text = err.render()
    if rank and store is not None and isinstance(err, _LIKELY_SHARED) and _said_by_rank_0(store, wait_s) == text:
        threading.Event().wait(_AFTER_RANK_0_S)
        return
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if rank == 0 and store is not None:
        try:
            store.set(_KEY, text)
        except DistError:
            return  # the store is gone, and whoever asks it will know


def _said_by_rank_0(store: Store, wait_s: float) -> str:
    try:
        store.wait([_KEY], timedelta(seconds=wait_s))
        said: bytes = store.get(_KEY)
    except DistError:
        return ""
    return said.decode()
