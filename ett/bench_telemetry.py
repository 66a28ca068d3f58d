"""`ett bench telemetry`: what a step, a stuck disk, a SIGKILL and `ett --help` cost."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from ett.bench import BenchResult
from ett.errors import CorruptState
from ett.event_reader import read_folder
from ett.figures import Measured
from ett.tracker import Run, RunIdentity

_STUCK_S = 1.0
_EMITTER = """\
import mmap, sys
from pathlib import Path
from ett.tracker import Run, RunIdentity
run = Run(RunIdentity(job="bench", attempt=1, job_dir=Path(sys.argv[1]), rank=0))
file = open(sys.argv[1] + "/counter", "r+b")
counter = mmap.mmap(file.fileno(), 8)
number = 0
while True:
    run.emit("mark", number=number)
    number += 1
    counter[:8] = number.to_bytes(8, "little")  # after the emit returned: this record must be in the log
"""


def run(quick: bool) -> BenchResult:
    """Measure the table [telemetry] of figures.toml; the log's own records are checked first."""
    num_steps, num_kills = (5_000, 20) if quick else (20_000, 100)
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
        folder = Path(name)
        medians, p99s = zip(*(_step_pairs(folder / f"steps{i}", num_steps) for i in range(5)), strict=True)
        stuck_ms = _stuck_disk_ms(folder / "stuck")
        lost = sum(_lost_on_sigkill(folder / f"kill{i}", random.Random(i)) for i in range(num_kills))
        ratios = [_help_over_bare() for _ in range(5 if quick else 15)]
    return BenchResult(
        figures=[
            Measured(name="step_pair_median_us", unit="us", samples=medians),
            Measured(name="step_pair_p99_us", unit="us", samples=p99s),
            Measured(
                name="stuck_disk_longest_step_ms",
                unit="ms",
                samples=[stuck_ms],
                reason=f"one write held for {_STUCK_S:g} s",
            ),
            Measured(name="records_lost_on_sigkill", unit="records", samples=[lost], reason=f"of {num_kills} kills"),
            Measured(name="help_vs_bare_python", unit="x", samples=ratios),
        ],
        detail={"steps": num_steps, "kills": num_kills},
    )


def _step_pairs(job_dir: Path, num_steps: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of one step's enter and exit, in microseconds."""
    recorder = Run(RunIdentity(job="bench", attempt=1, job_dir=job_dir))
    took_ns = []
    for _ in range(num_steps):
        begin_ns = time.perf_counter_ns()
        with recorder.step(global_samples=1):
            pass
        took_ns.append(time.perf_counter_ns() - begin_ns)
    recorder.close()
    steps = [record for record in read_folder(job_dir).records if record.ev == "step"]
    if [record.data["c1"] for record in steps] != list(range(1, num_steps + 1)):
        raise CorruptState(f"{len(steps)} of {num_steps} steps are in the log", expected="each once, in order")
    return median(took_ns) / 1000, quantiles(took_ns, n=100)[98] / 1000


def _stuck_disk_ms(job_dir: Path) -> float:
    """Return the longest of 20 steps while the first write hangs."""
    recorder = Run(RunIdentity(job="bench", attempt=1, job_dir=job_dir))
    longest_ns = 0
    with _first_write_hangs():
        for _ in range(20):
            begin_ns = time.perf_counter_ns()
            with recorder.step(global_samples=1):
                pass
            longest_ns = max(longest_ns, time.perf_counter_ns() - begin_ns)
    recorder.close()
    return longest_ns / 1e6


@contextmanager
def _first_write_hangs() -> Iterator[None]:
    write = os.write
    hung: list[int] = []

    def hang_once(fd: int, data: bytes) -> int:
        if not hung:
            hung.append(fd)
            time.sleep(_STUCK_S)
        return write(fd, data)

    os.write = hang_once  # type: ignore[assignment]
    try:
        yield
    finally:
        os.write = write


def _lost_on_sigkill(job_dir: Path, random_source: random.Random) -> int:
    """Return how many records, whose emit had returned, a killed process's log lacks."""
    job_dir.mkdir()
    (job_dir / "counter").write_bytes(bytes(8))
    with (job_dir / "counter").open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
        process = subprocess.Popen([sys.executable, "-c", _EMITTER, str(job_dir)])
        while not any(counter[:8]):
            if process.poll() is not None:
                raise CorruptState("the emitting process ended by itself", expected="to be killed")
            time.sleep(0.001)
        time.sleep(random_source.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        returned = int.from_bytes(counter[:8], "little")
    written = {record.data["number"] for record in read_folder(job_dir).records if record.ev == "mark"}
    return len(set(range(returned)) - written)


def _help_over_bare() -> float:
    return _process_s("-m", "ett", "--help") / _process_s("-c", "pass")


def _process_s(*args: str) -> float:
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin_s
