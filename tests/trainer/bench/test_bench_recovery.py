"""Parts of `ett bench recovery` at sizes that measure nothing, and that each refuses what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ett.errors import ThresholdMissed
from ett.trainer.bench import bench_recovery, partial_restore, startup_modes
from ett.trainer.bench.campaign_job import Ended
from ett.trainer.sparse.embedding_shard import EmbeddingShard

PLAN: dict[str, Any] = tomllib.loads(bench_recovery.WORKLOAD.read_text())
SMALL = {"partial": {**PLAN["partial"], "tables": 2, "dim": 8, "quick_rows": 3000, "quick_rounds": 1}}


def test_a_rank_that_lives_on_reads_less_where_fewer_rows_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    figures, detail = partial_restore.partial_figures(SMALL, True, said.append)
    rows = detail["restore_partial"]
    assert not figures and len(said) == len(rows) == len(PLAN["partial"]["changed"])
    kept = [row["partial_kept_mb"] for row in rows]
    assert kept == sorted(kept, reverse=True) and kept[-1] > 0
    assert {row["full_kept_mb"] for row in rows} == {0.0}
    assert all(row["full_mb"] >= row["partial_mb"] > 0 for row in rows)
    assert not list(tmp_path.iterdir())


def test_another_bit_in_what_stayed_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = EmbeddingShard.begin_rollback

    def begun(self: EmbeddingShard, ids: Any) -> None:
        begin(self, ids)
        self._storage._weights.rows.mul_(2)  # type: ignore[attr-defined]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(EmbeddingShard, "begin_rollback", begun)
    with pytest.raises(ThresholdMissed, match="a partial restore brought other rows"):
        partial_restore.partial_figures(SMALL, True, lambda line: None)


def test_the_slowest_rank_of_each_attempt_counts() -> None:
    starts = [{"attempt": a, "total_ns": n} for a, n in ((1, 10**9), (1, 2 * 10**9), (2, 3 * 10**9))]
    assert startup_modes.starts_s({"starts": starts}) == {"fresh": 2.0, "restored": 3.0}
    for lacking in (starts[:2], [*starts, {"attempt": 2, "total_ns": None}]):
        with pytest.raises(ThresholdMissed, match="attempt 2 has not come to its first step"):
            startup_modes.starts_s({"starts": lacking})


def test_modes_that_train_other_bits_are_no_result() -> None:
    ended = Ended(code=0, err="", job_dir=Path(), facts={"step": 8})
    assert startup_modes._facts_of(ended, "serial", [{"step": 8}]) == {"step": 8}
    with pytest.raises(ThresholdMissed, match="the serial job has other bits"):
        startup_modes._facts_of(ended, "serial", [{"step": 7}])
    with pytest.raises(ThresholdMissed, match="ended with 1: why"):
        startup_modes._facts_of(Ended(code=1, err="why", job_dir=Path()), "serial", [])


def test_a_figure_that_no_part_shows_is_null_with_its_reason(tmp_path: Path) -> None:
    workload = tmp_path / "recovery.toml"
    workload.write_text("")
    found = bench_recovery.run(True, workload, [lambda workload, quick, say: ([], {"seen": quick})])
    assert found.detail == {"seen": True}
    assert len(found.figures) == 9 and all(figure.value is None and figure.reason for figure in found.figures)
