"""The restores of `ett bench recovery`, at sizes that measure nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ett.checkpoint.bench.capped_proxy import Pace
from ett.checkpoint.bench.capped_store import capped_store
from ett.checkpoint.bench.seaweed import s3_options
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import open_store
from ett.errors import ThresholdMissed
from ett.recovery.bench import restore_figures
from ett.recovery.bench.capped_restores import BASELINES, _figure, _Policy
from ett.recovery.bench.restore_bench import OURS, Reader
from ett.recovery.bench.zipf_job import ZipfJob, ZipfModel

ROOT = Path(__file__).parents[3]
RECIPE: dict[str, Any] = {
    **tomllib.loads((ROOT / "benchmarks" / "workloads" / "recovery.toml").read_text())["restore"],
    "tables": 1,
    "dim": 32,
}
ROWS = 9000  # of 128 bytes of weights: more than the 1 MiB from which an embedding is a table


@pytest.mark.slow
def test_a_bound_on_live_rows_holds_at_every_checkpoint(tmp_path: Path) -> None:
    listed: dict[float, list[float]] = {}
    for bound in (0.0, 1.5):
        job = ZipfJob(tmp_path / str(bound), RECIPE, ROWS, 40, {"policy": "adaptive", "max_live": bound})
        listed[bound] = [commit.tables[0].num_bytes / job.model.num_table_bytes for commit in map_saves(job, 40)]
        held = job.hold(tmp_path / f"held-{bound}")
        reader = Reader(ZipfModel(RECIPE, ROWS))
        reader.check("test", held, open_store(str(held.folder)))
        job.close()
    assert max(listed[1.5]) <= 1.5
    assert max(listed[0.0]) > 1.6


def map_saves(job: ZipfJob, count: int) -> list[Any]:
    return [job.checkpoint() for _ in range(count)]


@pytest.mark.slow
def test_another_bit_stops_the_benchmark(tmp_path: Path) -> None:
    job = ZipfJob(tmp_path / "job", RECIPE, ROWS, 2, {"policy": "adaptive"})
    map_saves(job, 1)
    held = job.hold(tmp_path / "held")
    job.checkpoint()
    later = job.hold(tmp_path / "later")
    job.close()
    reader = Reader(ZipfModel(RECIPE, ROWS))
    with pytest.raises(ThresholdMissed, match="ours: a restore of step 1 brought another"):
        reader.check("ours", held, open_store(str(later.folder)))


def test_a_pace_is_kept_over_late_wakes() -> None:
    pace, now = Pace(1000.0), 100.0
    for _ in range(500):
        now += pace.wait_s(10, now) + 0.001  # woken a millisecond late each time
    assert 4.9 < now - 100 < 5.2
    now += 50  # what was not used is gone
    assert pace.wait_s(100, now) > 0.08


@pytest.mark.slow
def test_a_folder_is_read_as_a_bucket_through_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(range(256)) * 1000)
    with capped_store(tmp_path, 50e6) as url:
        store = S3Store("s3://bench/a", options=s3_options(url), reads=1)
        assert store.list("") == ["b"]
        assert store.size("b") == 256_000
        assert store.read("b") == bytes(range(256)) * 1000
        with store.open("b") as reader:
            target = bytearray(300)
            assert reader.size == 256_000
            assert reader.read_into(255_900, memoryview(target)) == 100
        with pytest.raises(FileNotFoundError):
            store.read("c")


@pytest.mark.slow
def test_every_figure_of_restores_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"quick_rows": ROWS, "quick_rounds": 1}
    plan = {
        **RECIPE,
        "disk": {**RECIPE["disk"], **sizes, "checkpoints": 2},
        "growth": {**RECIPE["growth"], **sizes, "first": 2, "checkpoints": 4},
        "capped": {**RECIPE["capped"], **sizes, "checkpoints": 3, "quick_restores": [3]},
    }
    said: list[str] = []
    figures, detail = restore_figures.restore_figures({"restore": plan}, True, said.append)
    assert {figure.name for figure in figures} == {
        "restore_vs_disk",
        "restore_vs_check_n_run_capped_store",
        "restore_vs_incremental_capped_store",
        "restore_growth_10_to_200_checkpoints",
        "live_bytes_vs_base",
    }
    measured = [figure for figure in figures if not figure.name.endswith("capped_store")]
    assert all(figure.value is not None and figure.value > 0 for figure in measured)
    assert detail.keys() == {"restore_disk", "restore_capped", "restore_growth"}
    assert len(said) == 3 and not list(tmp_path.iterdir())


def played(seconds: float, read_bytes: int, reads: int = 1) -> _Policy:
    return _Policy([], [], reads, seconds=[[seconds, seconds]], read_bytes=[read_bytes])


def test_a_ratio_counts_only_where_the_cap_holds_the_others() -> None:
    policies = {OURS: played(0.5, 300_000_000, 32), **{name: played(4.0, 380_000_000) for name in BASELINES}}
    plain = {1: [98e6], 32: [1e9]}
    figure = _figure("incremental", policies, 100e6, plain)
    assert (figure.value, list(figure.samples)) == (8.0, [8.0, 8.0])
    assert "95 MB/s; ours 600 MB/s; who looks at no byte gets 98 with 1 connection, 1000 with 32" in figure.reason
    busy = _figure("incremental", policies, 100e6, plain | {1: [85e6]})
    assert busy.value is None and busy.reason.startswith("this machine is too busy")
    slow = _figure("incremental", policies | {"incremental": played(8.0, 380_000_000)}, 100e6, plain)
    assert slow.value is None and slow.reason.startswith("it is not the cap that holds the others")
    with pytest.raises(ThresholdMissed, match="one connection read 190 MB/s"):
        _figure("incremental", policies | {"incremental": played(2.0, 380_000_000)}, 100e6, plain)
