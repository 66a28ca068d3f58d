"""What publishing takes in memory, measured of a process of its own; the large run is `ett bench shutdown`'s."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ett.checkpoint import live_rows, segment_rows, table_segments
from ett.checkpoint.bench import large_commit
from ett.checkpoint.bench.bench_publish import measure_publish_memory
from ett.checkpoint.bench.large_commit import are_rows, write_large_commit
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publish import publish
from ett.checkpoint.publish_settings import PublishSettings
from ett.checkpoint.table_segments import Bytes
from ett.checkpoint.verify import verify_commit


class Held:
    """What is lent by all pools together, and the most of it."""

    def __init__(self) -> None:
        self.now, self.most, self._lock = 0, 0, threading.Lock()
        real = BufferPool.taken

        @contextmanager
        def taken(pool: BufferPool, num_bytes: int) -> Iterator[Bytes]:
            with real(pool, num_bytes) as memory:
                self._add(num_bytes)
                yield memory
                self._add(-num_bytes)

        self.taken = taken

    def _add(self, num_bytes: int) -> None:
        with self._lock:
            self.now += num_bytes
            self.most = max(self.most, self.now)


@pytest.mark.slow
def test_the_figure_is_the_peak_of_a_process_that_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload = tmp_path / "publish.toml"
    workload.write_text("[memory]\ngb = 10\nquick_gb = 0.01\ndeltas = 2\ndense_mib = 1\n")
    figure = measure_publish_memory(True, workload)
    assert figure.name == "publish_memory_mib_10gb_table"
    assert figure.value is not None
    assert 50 < figure.value < 512
    assert "of a table of 0.01 GB: --quick" in figure.reason
    assert list(tmp_path.iterdir()) == [workload]


def test_a_large_commit_is_one(tmp_path: Path) -> None:
    commit = write_large_commit(LocalStore(tmp_path), 200_000, dense_bytes=4096)
    verify_commit(LocalStore(tmp_path), commit, "load")
    assert [file.identity.kind for file in commit.tables[0].files] == ["base", "cold", "cold", "cold"]
    rows = np.full((3, 256), 5, np.uint8)
    assert are_rows(np.array([0, 0, 0]), rows)
    rows[1, 7] = 6
    assert not are_rows(np.array([0, 0, 0]), rows)


def test_rows_that_are_held_do_not_grow_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lent at once, with segments of 1 MiB: two threads hold a part, a piece of it and 8 MiB to write with."""
    monkeypatch.setattr(table_segments, "BLOCK_BYTES", 64 << 10)
    monkeypatch.setattr(table_segments, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(live_rows, "RANGE_IDS", 1 << 12)
    monkeypatch.setattr(segment_rows, "READ_BYTES", 256 << 10)
    monkeypatch.setattr(large_commit, "_CHANGED", 0.3)
    held = Held()
    peaks = []
    for number, table_bytes in enumerate((4 << 20, 16 << 20)):
        store = LocalStore(tmp_path / f"job{number}")
        write_large_commit(store, table_bytes, dense_bytes=4096)
        held.most = 0
        with monkeypatch.context() as patched:
            patched.setattr(BufferPool, "taken", held.taken)
            done = publish(store, find_commit(store, None)[0], LocalStore(tmp_path / f"out{number}"), PublishSettings())
        parts = done.publication.tables[0].files
        assert len(parts) >= table_bytes >> 20
        peaks.append((held.most, max(file.stored.bytes for file in parts)))
    assert peaks[1][0] < 40 << 20  # of which 8 MiB a thread are the local store's, which writes with them
    assert peaks[1][0] <= peaks[0][0] * 1.1
    assert all(largest < 2 << 20 for _, largest in peaks)
