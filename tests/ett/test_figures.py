"""Figures are judged against benchmarks/figures.toml, which keeps names and targets of the shared file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ett.errors import NotFound
from ett.figures import FIGURES, Measured, judge, load_targets

SHARED = Path(__file__).parents[3] / "shared" / "figures.toml"


@pytest.mark.skipif(not SHARED.exists(), reason="the shared figures are only beside a developer's checkout")
def test_the_copy_has_the_shared_names_and_targets() -> None:
    assert tomllib.loads(FIGURES.read_text()) == tomllib.loads(SHARED.read_text())


def test_quick_replaces_the_target_where_one_is_given() -> None:
    assert load_targets("ett", quick=False)["gain_points"].target == 25
    assert load_targets("ett", quick=True)["gain_points"].target == 15
    assert load_targets("faults", quick=True)["silent"].target == 0


def test_every_target_gets_a_row_even_if_nothing_was_measured() -> None:
    rows = judge(load_targets("core", quick=False), [], "cpu")
    assert len(rows) == len(load_targets("core", quick=False))
    assert all(row["met"] is None and row["reason"] for row in rows)


@pytest.mark.parametrize(("value", "met"), [(9.99, False), (10000.0, True)])
def test_a_figure_is_met_by_its_operator(value: float, met: bool) -> None:
    rows = judge(
        load_targets("faults", quick=False), [Measured(name="injected", unit="faults", samples=[value])], "cpu"
    )
    assert next(row["met"] for row in rows if row["name"] == "injected") is met


def test_a_gpu_figure_is_never_judged_on_a_machine_without_one() -> None:
    figure = Measured(name="lost_pct_at_100_hbm", unit="%", samples=[0.5])
    rows = judge(load_targets("checkpoint", quick=False), [figure], "cpu")
    assert next(row["met"] for row in rows if row["name"] == "lost_pct_at_100_hbm") is None


def test_the_spread_is_the_interquartile_range() -> None:
    assert Measured(name="x", unit="s", samples=[1.0, 2.0, 3.0, 4.0, 5.0]).spread == 3.0
    assert Measured(name="x", unit="s", samples=[1.0]).spread is None


def test_an_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(NotFound) as caught:
        load_targets("nope", quick=False)
    assert "telemetry" in caught.value.expected
