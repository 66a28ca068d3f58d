"""`ett bench accounting`: how fast and in how much memory a log is accounted for, at once and while it grows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ett.accounting import account
from ett.bench import BenchResult
from ett.bench_live import live_query_ms
from ett.bench_log import BenchJob, load_workload
from ett.errors import CorruptState
from ett.event_reader import EventLog, event_files, read_folder
from ett.figures import FIGURES, Measured
from ett.log_columns import NATIVE
from ett.report import build_report, report_json

_WORKLOAD = FIGURES.parent / "workloads" / "accounting.toml"
_ACCOUNT = """\
import json, sys, time
from pathlib import Path
from ett.accounting import account
from ett.event_reader import read_folder
from ett.report import build_report, report_json
import numpy
def mib(field):
    return int(next(line for line in open("/proc/self/status") if line.startswith(field)).split()[1]) / 1024
before, begin_s = mib("VmRSS"), time.perf_counter()
log = read_folder(Path(sys.argv[1]))
found = account(log, as_of_ns=0, cut_at_as_of=False)
took_s = time.perf_counter() - begin_s
data = report_json(build_report(found))["data"]
all_s = time.perf_counter() - begin_s
print(json.dumps({"s": took_s, "with_report_s": all_s, "mib": mib("VmHWM") - before, "ns": data["ns"],
                  "is_native": log.columns is not None, "records": log.columns.num_records if log.columns else None}))
"""


def run(quick: bool) -> BenchResult:
    """Measure the table [accounting] of figures.toml; columns and the Python rules are compared first.

    Raises: CorruptState: they differ, or the native extension is not built.
    """
    workload = load_workload(_WORKLOAD)
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
        folder = Path(name)
        _check(workload, folder / "small")
        num_records = BenchJob(workload, records=workload["log"]["records"]).write(folder / "whole" / "events")
        runs, parse_rates = [], []
        for _ in range(2 if quick else 5):
            parse_rates.append(_stdlib_rate(folder / "whole", workload["log"]["stdlib_records"]))
            runs.append(_account(folder / "whole", num_records))
    rates = [num_records / found["s"] for found in runs]
    queries = live_query_ms(workload["live"], rounds=1 if quick else 5)
    return BenchResult(
        figures=[
            Measured(name="records_per_s", unit="records/s", samples=rates, reason="bytes of files to the partition"),
            Measured(
                name="vs_stdlib_parse",
                unit="x",
                samples=[rate / parsed for rate, parsed in zip(rates, parse_rates, strict=True)],
                reason="parsed and accounted for, over json and crc32 alone in plain Python",
            ),
            Measured(name="memory_mib_1e7_records", unit="MiB", samples=[found["mib"] for found in runs]),
            Measured(
                name="live_query_ms_2000_ranks",
                unit="ms",
                samples=queries.slowest_ms,
                reason=f"the slowest of {queries.num_queries} questions a round, account and report",
            ),
        ],
        detail={
            "workload": str(_WORKLOAD.name),
            "records": num_records,
            "with_report_s": [round(found["with_report_s"], 3) for found in runs],
            "stdlib_records_per_s": [round(rate) for rate in parse_rates],
            "live": queries.detail,
        },
    )


def _check(workload: Mapping[str, Any], folder: Path) -> None:
    """The same generator, fewer records: columns and the Python rules give one answer, to the nanosecond."""
    BenchJob(workload, records=workload["log"]["checked_records"]).write(folder / "events")
    log = read_folder(folder)
    if NATIVE is None or log.columns is None:
        raise CorruptState("the native accounting is not built", do="run `make install` with a C++ compiler")
    answers = [
        report_json(build_report(found))
        for given in (log, EventLog(list(log.records), log.problems))
        if (found := account(given, as_of_ns=0, cut_at_as_of=False)) is not None
    ]
    if len(answers) != 2 or answers[0] != answers[1]:
        raise CorruptState("columns and records give two answers", expected="one", do="report this as a bug")


def _account(folder: Path, num_records: int) -> dict[str, Any]:
    """One fresh process that accounts for the log: its time, and how much its memory grew at most."""
    done = subprocess.run([sys.executable, "-c", _ACCOUNT, str(folder)], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if not found["is_native"] or found["records"] != num_records:
        raise CorruptState(f"{found['records']} records were accounted for", expected=f"{num_records}, in columns")
    return found


def _stdlib_rate(folder: Path, num_lines: int) -> float:
    """Return records a second of checking and parsing lines with the standard library, nothing else."""
    path = max(event_files(folder), key=lambda path: path.stat().st_size)
    with path.open("rb") as file:
        lines = list(islice(file, num_lines))
    begin_s = time.perf_counter()
    for line in lines:
        body, _, checksum = line[:-1].rpartition(b"\t")
        if zlib.crc32(body) != int(checksum, 16):
            raise CorruptState("a line of the workload has a wrong checksum", expected="none")
        json.loads(body)
    return len(lines) / (time.perf_counter() - begin_s)
