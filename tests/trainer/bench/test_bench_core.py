"""The parts of `ett bench core`, at sizes that measure nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from ett.errors import ThresholdMissed
from ett.trainer.bench import bench_index, bench_torchrec
from ett.trainer.bench.bench_cost import cost_detail
from ett.trainer.bench.torchrec_model import ModelWorkload, make_batches
from ett.trainer.bench.zipf_ids import ZipfIds
from ett.trainer.sparse.numpy_id_index import NumpyIdIndex

ROOT = Path(__file__).parents[3]
WORKLOAD = tomllib.loads((ROOT / "benchmarks" / "workloads" / "core.toml").read_text())
SMALL = {"quick_rows": 5000, "lookups": 1000, "repeats": 4, "inserted_at_once": 600, "checked": 500}


@pytest.mark.skipif(bench_index.NATIVE is None, reason="_index.cpp is not built")
def test_the_index_is_measured_after_it_was_compared() -> None:
    rate, memory = bench_index.index_figures(SMALL, quick=True)
    assert len(rate.samples) == 4 and all(sample > 0 for sample in rate.samples)
    assert memory.value is not None and 16 <= memory.value <= 40  # a few thousand ids leave segments half empty


@pytest.mark.skipif(bench_index.NATIVE is None, reason="_index.cpp is not built")
def test_an_index_that_differs_from_its_reference_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(NumpyIdIndex):
        def erase(self, ids: np.ndarray) -> np.ndarray:
            return super().erase(ids[::-1])

    monkeypatch.setattr(bench_index, "id_index", lambda threads: Wrong())
    with pytest.raises(ThresholdMissed, match="other slots"):
        bench_index.index_figures(SMALL, quick=True)


def test_without_torchrec_its_figures_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_torchrec, "version_of", lambda package: None)
    figures, _ = bench_torchrec.torchrec_figures(WORKLOAD, quick=True)
    assert [figure.name for figure in figures] == ["vs_torchrec_tablewise", "vs_torchrec_rowwise_ec"]
    assert all(figure.value is None and "make peers" in figure.reason for figure in figures)


def test_ids_are_those_of_a_zipf_distribution() -> None:
    ids = ZipfIds(1000, 1.05, seed=3).draw(50_000)
    counts = np.sort(np.bincount(ids, minlength=1000))[::-1]
    shares = np.arange(1, 1001.0) ** -1.05
    expected = 50_000 * shares / shares.sum()
    # Five standard deviations of a binomial count.
    assert np.abs(counts[:10] - expected[:10]).max() < 5 * expected[0] ** 0.5
    assert counts.sum() == 50_000


@pytest.mark.slow
@pytest.mark.parametrize(("table", "is_jagged"), [("tablewise", False), ("rowwise_ec", True)])
def test_batches_are_as_the_workload_says_and_differ_by_rank(table: str, is_jagged: bool) -> None:
    workload = ModelWorkload(**WORKLOAD[table])
    first, second = (make_batches(workload, rank, is_jagged=is_jagged)[0] for rank in (0, 1))
    assert first.ids.keys() == workload.names and first.ids.stride() == workload.batch
    lengths = first.ids.lengths().float()
    assert abs(float(lengths.mean()) - workload.ids) < 1.0 and (float(lengths.std()) > 0) is is_jagged
    assert not np.array_equal(first.dense.numpy(), second.dense.numpy())
    assert first.ids.values().max() < workload.rows


def test_the_cost_of_an_id_is_measured_by_batch_and_by_table() -> None:
    cost = {"dim": 4, "quick_table_rows": [100, 300], "batches": [20, 50], "repeats": 3}
    found = cost_detail(cost, quick=True)
    assert list(found["us_per_id_by_batch"]) == ["20", "50"]
    assert list(found["us_per_id_by_table_rows"]) == ["100", "300"]
    assert all(us > 0 for by in found.values() for us in by.values())
