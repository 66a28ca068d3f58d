"""The rates that docs/store.md promises, with room for a busy machine; `-s` prints what was measured."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ett.cli import run
from ett.event_schema import COMPONENTS
from ett.store import JobRow, Store, open_store
from ett.store.folder_ingest import ingest_folder
from ett.store.job_table import SORTS, summary_values

StepLine = Callable[..., bytes]
NUM_EVENTS, NUM_JOBS = 100_000, 10_000
NS = 10**9

pytestmark = pytest.mark.campaign  # rates: a busy machine makes them untrue, no change of the code


def test_ingest_takes_over_10_000_events_a_second_in_a_fifth_of_their_bytes(
    store: Store, tmp_path: Path, step_line: StepLine
) -> None:
    path = tmp_path / "job" / "events" / "1" / "r0-h-7-b.jsonl"
    path.parent.mkdir(parents=True)
    # Digits that differ from step to step, or the lines would compress as no real log does.
    odd = [n * 123_456_789 + n * 7919 % 1_000_003 for n in range(NUM_EVENTS)]
    size = path.write_bytes(b"".join(step_line(n, mono_ns=t, e_mono=t, wall_ns=10**18 + t) for n, t in enumerate(odd)))
    begin_s = time.perf_counter()
    assert ingest_folder(store, "job", path.parents[2], sum_up=False).accepted == NUM_EVENTS
    rate = NUM_EVENTS / (time.perf_counter() - begin_s)
    stored = store._database.rows("SELECT sum(length(data)) FROM event_block")[0][0]
    print(f"{rate:,.0f} events/s, {stored / NUM_EVENTS:.1f} of {size / NUM_EVENTS:.1f} bytes an event")
    assert rate > 10_000
    assert stored < size / 5


def test_batches_of_an_agent_are_taken_at_over_10_000_events_a_second(store: Store, step_line: StepLine) -> None:
    lines = [step_line(seq) for seq in range(20_000)]
    begin_s = time.perf_counter()
    for begin in range(0, len(lines), 500):
        store.ingest("job", "1/r0.jsonl", lines[begin : begin + 500])
    rate = len(lines) / (time.perf_counter() - begin_s)
    print(f"{rate:,.0f} events/s in batches of 500")
    assert rate > 10_000


def fill(store: Store) -> None:
    """Put 10,000 summaries in; making them from logs is what other tests are about."""
    rows = []
    for n in range(NUM_JOBS):
        spent = dict.fromkeys(COMPONENTS, 0) | {"effective": (n * 7919 % 3600) * NS}
        spent["wasted"] = 3600 * NS - spent["effective"]
        start_ns = time.time_ns() - n * 600 * NS
        rows.append(
            JobRow(
                job=f"job-{n:05}", team=f"team-{n % 12}", owner="lee", model=f"model-{n % 500}", state="succeeded",
                window_state="SUCCEEDED", attempts=1 + n % 3, ranks=8, started_ns=start_ns,
                ended_ns=start_ns + 3600 * NS, as_of_ns=start_ns + 3600 * NS, total_ns=3600 * NS, ns=spent,
            )
        )  # fmt: skip
    values = [summary_values(row) | {"name": row.job, "summary_generation": 0} for row in rows]
    marks = ", ".join("?" * len(values[0]))
    with store._database.writing():
        insert = f"INSERT INTO job ({', '.join(values[0])}) VALUES ({marks})"
        store._database.run_many(insert, [tuple(row.values()) for row in values])


def test_a_page_of_10_000_jobs_takes_under_250_ms(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(store_url) as store:
        fill(store)
    took_ms: dict[str, float] = {}
    for more in ([], ["--team", "team-3"], ["--model", "model-7"], ["--state", "succeeded"], ["--since", "7d"]):
        for sort in SORTS:
            argv = ["ls", "--store", store_url, "--sort", sort, *more]
            samples = []
            for _ in range(3):
                begin_s = time.perf_counter()
                assert run(argv) == 0
                samples.append((time.perf_counter() - begin_s) * 1000)
            assert len(capsys.readouterr().out.splitlines()) > 3
            took_ms[" ".join(argv[3:])] = min(samples)
    with capsys.disabled():
        print({key: round(ms, 1) for key, ms in took_ms.items()})
    assert max(took_ms.values()) < 250


def test_ls_of_10_000_jobs_costs_little_more_than_its_help(tmp_path: Path) -> None:
    with open_store(tmp_path / "ett.db") as store:
        fill(store)

    def best_ms(*argv: str) -> float:
        samples = []
        for _ in range(5):
            begin_s = time.perf_counter()
            subprocess.run([sys.executable, "-m", "ett", *argv], check=True, capture_output=True)
            samples.append((time.perf_counter() - begin_s) * 1000)
        return min(samples)

    whole_ms, help_ms = best_ms("ls", "--store", str(tmp_path / "ett.db")), best_ms("ls", "--help")
    print(f"ett ls {whole_ms:.0f} ms, its help {help_ms:.0f} ms")
    assert whole_ms - help_ms < 250
