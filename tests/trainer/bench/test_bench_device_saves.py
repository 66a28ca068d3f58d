"""Figures of the device's saves; the saves themselves need a GPU."""

from __future__ import annotations

from ett.checkpoint.save_facts import SaveFacts
from ett.trainer.bench.bench_device_saves import Lost, _figures
from ett.trainer.bench.bench_policies import _OF_DEVICE
from ett.trainer.bench.policy_blocks import LEAST_TRIGGERS


def lost(num_stalls: int) -> Lost:
    found = Lost(lost_pct=[1.5, 2.5], none_step_s=[0.01, 0.01], disk_gb_s=[2.0], staging_mib=[300.0, 400.0])
    found.stalls_s = [n / 1000 for n in range(num_stalls)]
    found.facts = [SaveFacts(stall_s=0.0, write_s=0.5, cold_bytes=10**9)]
    return found


def test_every_figure_of_a_device_is_there_with_what_bounds_it() -> None:
    figures = {f.name: f for f in _figures({"hbm": lost(LEAST_TRIGGERS), "cached": lost(3)}, 100)}
    assert figures.keys() == _OF_DEVICE.keys()
    assert list(figures["lost_pct_at_100_hbm"].samples) == [1.5, 2.5]
    assert figures["lost_pct_at_100_hbm"].reason == "1.0 GB/s to be written, the disk writes 2.00"
    assert 9.8 < figures["stall_p99_steps"].samples[0] < 10.0  # of the one that has enough triggers
    assert list(figures["device_staging_mib"].samples) == [400.0, 400.0]  # of both


def test_too_few_triggers_tell_no_percentile() -> None:
    few = {"hbm": lost(LEAST_TRIGGERS - 1), "cached": lost(3)}
    (p99,) = [figure for figure in _figures(few, 100) if figure.name == "stall_p99_steps"]
    assert not p99.samples
