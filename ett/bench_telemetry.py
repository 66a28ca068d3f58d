"""`ett bench telemetry`: what a step, a stuck disk, a SIGKILL and `ett --help` cost.

Ranks are processes of their own (`ett/bench_rank.py`) that write into rings; this process drains them into files, as a
supervisor does. The log's records are checked in every part.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ett.bench import BenchResult
from ett.bench_hooked_loop import BATCH
from ett.errors import CorruptState
from ett.event_reader import parse_file, read_folder
from ett.figures import Measured
from ett.launch_plan import LaunchPlan
from ett.ring import CAPACITY_BYTES, HEADER_BYTES
from ett.ring_drain import RingDrain
from ett.ring_folder import make_ring_folder, ring_folder
from ett.ring_writer import RingWriter

_NUM_RANKS = 8  # of the drain's own figures: the ranks of one host
_IDLE_S = 2.0


def run(quick: bool) -> BenchResult:
    """Measure the table [telemetry] of figures.toml; the log's own records are checked first."""
    num_steps, num_kills = (5_000, 20) if quick else (20_000, 100)
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
        folder = Path(name)
        medians, p99s = zip(*(_step_pairs(folder / f"steps{i}", num_steps) for i in range(5)), strict=True)
        stuck = _stuck_disk(folder / "stuck", 100 if quick else 200)
        kills = [_lost_on_sigkill(folder / f"kill{i}", random.Random(i)) for i in range(num_kills)]
        lag_ms = _drain_lag_ms(folder / "lag")
        drain = _drain_rate(folder / "rate")
        hooks = _hooks_step(folder / "hooks", 10 if quick else 30)
        ratios = [_help_over_bare() for _ in range(5 if quick else 15)]
    return BenchResult(
        figures=[
            Measured(name="step_pair_median_us", unit="us", samples=medians),
            Measured(name="step_pair_p99_us", unit="us", samples=p99s),
            Measured(
                name="stuck_disk_longest_step_ms",
                unit="ms",
                samples=[stuck["longest_step_ms"]],
                reason=f"of {stuck['steps']} steps while every call to the disk hangs",
            ),
            Measured(
                name="records_lost_on_sigkill",
                unit="records",
                samples=[sum(lost for lost, _, _ in kills)],
                reason=f"of {num_kills} kills, {sum(returned for _, returned, _ in kills):,} emits",
            ),
            Measured(name="help_vs_bare_python", unit="x", samples=ratios),
        ],
        detail={
            "steps": num_steps,
            "kills": num_kills,
            "dropped_before_sigkill": sum(dropped for _, _, dropped in kills),
            "stuck_disk": stuck,
            "drain_lag_ms": lag_ms,
            "drain": drain,
            "hooks_step_us": hooks,
        },
    )


@contextmanager
def _drained(job_dir: Path) -> Iterator[RingDrain]:
    job_dir.mkdir()
    drain = RingDrain(job_dir)
    drain.start()
    if not drain.environ["ETT_RING"]:
        raise CorruptState(f"no rings: {drain.state.last_error}", expected="a tmpfs at /dev/shm")
    try:
        yield drain
    finally:
        drain.stop()


def _rank(mode: str, job_dir: Path, number: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ett.bench_rank", mode, str(number), str(job_dir / "counter")],
        env=os.environ | _rank_environment(job_dir),
        stdout=subprocess.PIPE,
        text=True,
    )


def _rank_environment(job_dir: Path) -> dict[str, str]:
    environ = {"ETT_JOB": "bench", "ETT_ATTEMPT": "1", "ETT_JOB_DIR": str(job_dir), "RANK": "0", "ETT_CHAOS": ""}
    return environ | {"ETT_RING": str(ring_folder(job_dir))}


def _told(rank: subprocess.Popen[str]) -> Any:
    out, _ = rank.communicate()
    if rank.returncode != 0:
        raise CorruptState(f"the measured rank ended with {rank.returncode}", expected="0")
    return json.loads(out)


def _step_pairs(job_dir: Path, num_steps: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of one step's enter and exit, in microseconds, while it is drained."""
    with _drained(job_dir):
        took_ns = _told(_rank("steps", job_dir, num_steps))
    steps = [record for record in read_folder(job_dir).records if record.ev == "step"]
    if [record.data["c1"] for record in steps] != list(range(1, num_steps + 1)):
        raise CorruptState(f"{len(steps)} of {num_steps} steps are in the log", expected="each once, in order")
    return median(took_ns) / 1000, quantiles(took_ns, n=100)[98] / 1000


def _hooks_step(job_dir: Path, num_pairs: int, steps_per_block: int = 300) -> dict[str, Any]:
    """Return what hooks cost a plain loop's step (`ett/bench_hooked_loop.py`), in microseconds of its thread.

    Each sample is the difference of two blocks of steps that ran one after the other in one process.
    """
    args = (str(num_pairs), str(steps_per_block))
    plan = LaunchPlan(kind="module", target="ett.bench_hooked_loop", args=args, cwd=os.getcwd(), telemetry={})
    environ = plan.environment(dict(os.environ)) | _rank_environment(job_dir) | {"OMP_NUM_THREADS": "1"}
    with _drained(job_dir):
        loop = subprocess.Popen(plan.program(), env=os.environ | environ, stdout=subprocess.PIPE, text=True)
        pairs = [(hooked / 1000, plain / 1000) for hooked, plain in _told(loop)]
    log = read_folder(job_dir)
    samples = [record.data["samples"] for record in log.records if record.ev == "step"]
    failed = [record.data["error"] for record in log.records if record.ev == "hook_failed"]
    if failed or samples != [BATCH] * (num_pairs + 1) * steps_per_block:
        found = f"{len(samples)} step records, of {sorted(set(samples))} samples; {failed}"
        raise CorruptState(found, expected=f"{(num_pairs + 1) * steps_per_block} of {BATCH} samples, no failure")
    costs = [(hooked - plain) / steps_per_block for hooked, plain in pairs]
    low, middle, high = quantiles(costs, n=4)
    return {
        "plain_us": median(plain for _, plain in pairs) / steps_per_block,
        "median": middle,
        "quartiles": [low, high],
        "n": num_pairs,
    }


def _stuck_disk(job_dir: Path, num_steps: int) -> dict[str, Any]:
    """Return the longest step and the longest emit that wants the disk, while each call to it hangs, in any process."""
    disk_is_back = threading.Event()
    with _drained(job_dir) as drain, _disk_hangs_until(disk_is_back):
        rank = _rank("stuck", job_dir, num_steps)
        try:
            took_ns = _told(rank)
        finally:
            disk_is_back.set()
        drain.flush()
    kinds = [record.ev for record in read_folder(job_dir).records]
    if (kinds.count("step"), kinds.count("ckpt_commit")) != (num_steps, num_steps):
        raise CorruptState("records are missing once the disk is back", expected=f"{num_steps} steps and commits")
    return {
        "steps": num_steps,
        "longest_step_ms": max(took_ns["step"]) / 1e6,
        "median_commit_ms": median(took_ns["commit"]) / 1e6,
        "longest_commit_ms": max(took_ns["commit"]) / 1e6,
        # Less the time in which the thread was ready and others had the processors: what the writer itself waits.
        "longest_commit_but_for_the_run_queue_ms": max(
            took - queued for took, queued in zip(took_ns["commit"], took_ns["commit_queued"], strict=True)
        )
        / 1e6,
    }


@contextmanager
def _disk_hangs_until(answer: threading.Event) -> Iterator[None]:
    """Hold the drain's writes up, as `hang_on_disks` holds up the rank's."""
    write = os.pwrite

    def stuck(fd: int, data: bytes, offset: int) -> int:
        answer.wait()
        return write(fd, data, offset)

    os.pwrite = stuck  # type: ignore[assignment]
    try:
        yield
    finally:
        os.pwrite = write


def _lost_on_sigkill(job_dir: Path, random_source: random.Random) -> tuple[int, int, int]:
    """Return how many records, whose emit had returned, a killed process's log lacks, how many had returned, and how
    many of those that it lacks found no room and were counted."""
    with _drained(job_dir):
        (job_dir / "counter").write_bytes(bytes(8))
        with (job_dir / "counter").open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
            process = _rank("endless", job_dir)
            while not any(counter[:8]):
                if process.poll() is not None:
                    raise CorruptState("the emitting process ended by itself", expected="to be killed")
                time.sleep(0.001)
            time.sleep(random_source.uniform(0.0, 0.2))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            returned = int.from_bytes(counter[:8], "little")
    log = read_folder(job_dir)
    written = {record.data["number"] for record in log.records if record.ev == "mark"}
    return len(set(range(returned)) - written), returned, log.problems.dropped_records


def _drain_lag_ms(job_dir: Path) -> dict[str, float]:
    """Return how long after its stamp a record was in its file, for a reader that looks every millisecond."""
    lags_ns: list[int] = []
    with _drained(job_dir):
        rank = _rank("marks", job_dir, 200)
        num_seen = 0
        while rank.poll() is None:
            now_ns = time.monotonic_ns()
            records = _records(job_dir)
            lags_ns += [now_ns - record.mono_ns for record in records[num_seen:]]
            num_seen = len(records)
            time.sleep(0.001)
        rank.communicate()
    return {"median": median(lags_ns) / 1e6, "p99": quantiles(lags_ns, n=100)[98] / 1e6, "max": max(lags_ns) / 1e6}


def _records(job_dir: Path) -> Sequence[Any]:
    """Return what the files have; `read_folder` would read the rings as well."""
    files = sorted(job_dir.glob("events/*/*.jsonl"))
    return [record for file in files for record in parse_file(file.name, file.read_bytes()).records]


def _drain_rate(job_dir: Path) -> dict[str, float]:
    """Return what draining 8 full rings into files takes, and what watching them while they are empty does."""
    job_dir.mkdir()
    rings = make_ring_folder(job_dir)
    common = {"job": "bench", "att": 1}
    ranks = [RingWriter(rings, job_dir, 1, f"r{rank}", common | {"rank": rank}) for rank in range(_NUM_RANKS)]
    num_records = 0
    for rank in ranks:
        while rank.emit("step", step=num_records, b_mono=10**14, e_mono=10**14, world=_NUM_RANKS, c0=10**8, c1=10**8):
            num_records += 1
    drain = RingDrain(job_dir)
    begin_s, begin_cpu_s = time.monotonic(), time.process_time()
    drain.start()
    if not drain.flush(wait_s=60.0):
        raise CorruptState(f"the drain is stuck: {drain.state.last_error}", expected="8 rings drained within 60 s")
    busy_s, busy_cpu_s = time.monotonic() - begin_s, time.process_time() - begin_cpu_s
    begin_cpu_s = time.process_time()
    time.sleep(_IDLE_S)
    idle_cpu_s = time.process_time() - begin_cpu_s
    for rank in ranks:
        rank.close()
    drain.stop()
    return {
        "ranks": _NUM_RANKS,
        "records": num_records,
        "records_per_s": num_records / busy_s,
        "mb_per_s": drain.state.num_bytes / busy_s / 1e6,
        "cpu_us_per_record": busy_cpu_s / num_records * 1e6,
        "idle_cpu_percent": idle_cpu_s / _IDLE_S * 100,
        "memory_mib_per_rank": (HEADER_BYTES + CAPACITY_BYTES) / 2**20,
    }


def _help_over_bare() -> float:
    return _process_s("-m", "ett", "--help") / _process_s("-c", "pass")


def _process_s(*args: str) -> float:
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin_s
