"""Memory that is lent for rows on their way, and comes back however its borrower ended."""

from __future__ import annotations

import gc
import threading

import pytest

from ett.checkpoint.buffer_pool import BufferPool


def test_what_is_given_back_is_lent_again() -> None:
    pool = BufferPool()
    with pool.taken(100) as first:
        address = first.ctypes.data
    with pool.taken(50) as second, pool.taken(50) as third:
        assert second.ctypes.data == address != third.ctypes.data


@pytest.mark.slow
def test_the_collector_may_give_back_while_a_buffer_is_being_taken() -> None:
    """It ran within the lock of the pool, for a piece that a failed save had left, and waited for itself."""
    pool = BufferPool()
    left = pool.taken(100)
    left.__enter__()
    cycle: list[object] = [left]
    cycle.append(cycle)
    del left, cycle

    def collect_within_the_lock() -> None:
        with pool._lock:
            gc.collect()

    taking = threading.Thread(target=collect_within_the_lock, daemon=True)
    taking.start()
    taking.join(timeout=60)
    assert not taking.is_alive()
