from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ett.errors import ThresholdMissed
from ett.figures import load_targets
from ett.trainer.bench import bench_data
from ett.trainer.data.criteo_parquet import CriteoParquet


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_data, "_QUICK_ROWS", 3000)
    monkeypatch.setattr(bench_data, "_QUICK_PAIRS", 2)


@pytest.mark.slow
def test_every_figure_of_the_input_is_measured_under_its_name() -> None:
    figures = bench_data.data_figures(quick=True)
    targets = load_targets("core", quick=True)
    assert [figure.name for figure in figures] == ["tsv_mb_per_s_core", "gzip_vs_zcat", "parquet_vs_pyarrow"]
    for figure in figures:
        assert figure.name in targets
        assert figure.reason or (len(figure.samples) == 2 and min(figure.samples) > 0)


@pytest.mark.slow
def test_nothing_is_measured_where_formats_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CriteoParquet.take

    def wrong(self: CriteoParquet, window: Any, rows: NDArray[np.int64]) -> Any:
        columns, states = right(self, window, rows)
        return dict(columns) | {"C3": columns["C3"][::-1]}, states  # type: ignore[index]

    monkeypatch.setattr(CriteoParquet, "take", wrong)
    with pytest.raises(ThresholdMissed, match=r"column C3 of the text and of rows\.parquet differ"):
        bench_data.data_figures(quick=True)
