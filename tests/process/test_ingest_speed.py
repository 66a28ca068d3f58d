"""A campaign: events per second through HTTP into the store, and the memory of a collector that has nothing to do.

`.venv/bin/pytest -m campaign -s tests/process/test_ingest_speed.py` prints the figures of spec 4.2.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector_process import ETT, Collector, GrowingLog, clean_environ
from wait import LONGEST_S

pytest.importorskip("uvicorn", reason="the collector's libraries are the extra ett[server]")
pytestmark = [pytest.mark.process, pytest.mark.campaign]
EVENTS_PER_S, IDLE_MIB = 10_000, 150
STEPS, RANKS = 50_000, 3


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(tmp_path)
    yield collector.start()
    collector.kill()


def resident_mib(collector: Collector) -> float:
    assert collector.process is not None
    status = Path(f"/proc/{collector.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def test_a_collector_takes_ten_thousand_events_a_second(collector: Collector, tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "home", "ads-ctr-7f3a", RANKS)
    log.append(STEPS)
    num_bytes = sum(map(len, log.files().values()))
    begin_s = time.monotonic()
    subprocess.run(
        [*ETT, "sync", log.job, "--endpoint", collector.url],
        env=clean_environ(ETT_HOME=str(tmp_path / "home")), check=True, capture_output=True, timeout=LONGEST_S,
    )  # fmt: skip
    took_s = time.monotonic() - begin_s
    rate = log.num_lines / took_s
    print(f"\ningest_events_per_s {rate:,.0f}: {log.num_lines:,} events, {num_bytes / 1e6:.0f} MB, {took_s:.1f} s")
    print(f"resident after it {resident_mib(collector):.0f} MiB")
    assert collector.event_counts()["accepted"] == log.num_lines
    assert rate >= EVENTS_PER_S


def test_an_idle_collector_is_small(collector: Collector) -> None:
    collector.get("/metrics")
    print(f"\nidle_memory_mib {resident_mib(collector):.0f}")
    assert resident_mib(collector) <= IDLE_MIB
