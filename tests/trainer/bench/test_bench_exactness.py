"""Layouts that differ are counted, and equality that means nothing is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ett.errors import ThresholdMissed
from ett.trainer.bench import bench_exactness

ROOT = Path(__file__).parents[3]
WORKLOAD = tomllib.loads((ROOT / "benchmarks" / "workloads" / "core.toml").read_text())["exactness"]


def told(digests: list[str], other_seed: str) -> dict[str, Any]:
    return {"layouts": [{"name": str(i), "digest": d} for i, d in enumerate(digests)], "other_seed": other_seed}


def test_layouts_with_other_bits_are_counted_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_exactness, "run_ranks", lambda *args, **more: told(["a", "a", "b"], "c"))
    figure, detail = bench_exactness.exactness_figure(WORKLOAD | {"worlds": [1, 2]}, quick=True)
    assert figure.value == 2
    assert detail["exactness"]["wrong"] == ["1 ranks, 2", "2 ranks, 2"]


def test_a_digest_that_does_not_see_the_seed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_exactness, "run_ranks", lambda *args, **more: told(["a", "a"], "a"))
    with pytest.raises(ThresholdMissed, match="another seed"):
        bench_exactness.exactness_figure(WORKLOAD, quick=True)


@pytest.mark.process
def test_the_smallest_cache_and_a_deep_pipeline_change_no_bit() -> None:
    small = WORKLOAD | {"worlds": [2], "depths": [0, 4], "caches": [0, WORKLOAD["batch"]], "quick_steps": 6}
    figure, detail = bench_exactness.exactness_figure(small, quick=True)
    assert (figure.value, detail["exactness"]["layouts"]) == (0, 4)
