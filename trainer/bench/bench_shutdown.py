"""`ett bench shutdown`: from a job's last step until nothing of it runs any more, beside what its last save wrote.

The job is launched as a user launches it, and ends by itself. Its end takes what its last commit's own bytes take on
the disk alone, written by the same number of threads and flushed, in the same round, and two seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ett.bench import BenchResult
from ett.checkpoint.bench.bench_disk import WAYS, Disk
from ett.checkpoint.bench.bench_publish import measure_publish_memory
from ett.checkpoint.save_records import read_saves
from ett.errors import ThresholdMissed
from ett.event_reader import read_folder
from ett.event_schema import NS
from ett.figures import Measured
from ett.guardian import environ_of
from ett.trainer.bench.campaign_job import NAME, CampaignJob, end

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = ROOT / "benchmarks" / "workloads" / "shutdown.toml"
RECIPE = ROOT / "examples" / "criteo.toml"
ALLOWED_S = 2.0  # beyond writing what is dirty
LONGEST_S = 300.0  # of a job
_SHUTDOWN = "shutdown."


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """One job's end. Seconds are the monotonic clock's of this host."""

    name: str
    exposed_s: float  # from the end of the last step of any rank to the end of `ett launch`
    ranks_s: float  # to the end of the last record of a rank: devices are free right after it
    dirty_bytes: int  # that the save of the last step wrote
    disk_s: float  # for as many, by the disk alone
    parts_s: Mapping[str, float] = field(default_factory=dict)  # of `ett report`, and what followed the job's end

    @property
    def bound_s(self) -> float:
        return ALLOWED_S + self.disk_s

    @property
    def over_bound(self) -> float:
        return self.exposed_s / self.bound_s


def run(quick: bool, path: Path = WORKLOAD) -> BenchResult:
    """Measure the table [shutdown] of figures.toml.

    Raises: ThresholdMissed: a job failed, its last step is not committed whole, or a process of it is left.
    """
    workload = tomllib.loads(path.read_text())
    job = workload["job"] | (workload["quick_job"] if quick else {})
    ends = workload["ends"] | (workload["quick_ends"] if quick else {})
    found: list[Ending] = []
    with tempfile.TemporaryDirectory(prefix=".ett-bench-shutdown-", dir=".") as folder:
        for number in range(workload["quick_rounds" if quick else "rounds"]):
            for name, settings in ends.items():
                found.append(_ended(name, Path(folder).absolute() / f"{name}-{number}", job | settings))
                sys.stderr.write(f"  {name}: {found[-1].exposed_s:.2f} s, at most {found[-1].bound_s:.2f} s\n")
    figures = [_over_bound(found), measure_publish_memory(quick)]
    detail = [asdict(ending) | {"bound_s": ending.bound_s} for ending in found]
    return BenchResult(figures=figures, detail={"ends": detail}, table=_lines(found))


def _ended(name: str, home: Path, settings: Mapping[str, Any]) -> Ending:
    job = CampaignJob(home, RECIPE, longest_s=LONGEST_S)
    process = job.start(settings)
    try:
        code = process.wait(LONGEST_S)
        released_ns = time.monotonic_ns()
    except subprocess.TimeoutExpired as err:
        raise ThresholdMissed(f"{name}: the job has not ended after {LONGEST_S:g} s") from err
    finally:
        end(process)
    left = processes_of(job.job_dir)
    if code or left:
        said = (home / "err").read_text(errors="replace")[-1000:]
        raise ThresholdMissed(f"{name}: exit code {code}, processes left: {left or 'none'}; it said: {said}")
    last_step = int(settings["train.max_steps"])
    verified = job.asked("checkpoint", "verify", NAME, "--step", str(last_step))
    if verified.get("usable", 0) != 1:
        raise ThresholdMissed(f"{name}: the commit of the last step, {last_step}, is not there whole")
    saves = read_saves(job.job_dir / "events").values()
    dirty_bytes = sum(save.facts.num_bytes for save in saves if save.step == last_step)
    disk_s = _disk_s(home / "disk", dirty_bytes)
    return ending_of(
        name, job.job_dir, released_ns, dirty_bytes=dirty_bytes, disk_s=disk_s, report=job.asked("report", NAME)
    )


def ending_of(
    name: str, job_dir: Path, released_ns: int, *, dirty_bytes: int, disk_s: float, report: Mapping[str, Any]
) -> Ending:
    """Return what the log of a job on this host says of its end, and of what came after its last record."""
    records = read_folder(job_dir).records
    trained_ns = max(int(record.data["e_mono"]) for record in records if record.ev == "step")
    ranks_ns = max(record.mono_ns for record in records if record.rank is not None and not record.is_supervisors)
    ended_ns = max(record.mono_ns for record in records if record.ev == "job_ended")
    parts = {key.removeprefix(_SHUTDOWN): s for key, s in report["detail"].items() if key.startswith(_SHUTDOWN)}
    return Ending(
        name=name,
        exposed_s=(released_ns - trained_ns) / NS,
        ranks_s=(ranks_ns - trained_ns) / NS,
        dirty_bytes=dirty_bytes,
        disk_s=disk_s,
        parts_s=parts | {"after_job_end": (released_ns - ended_ns) / NS},
    )


def processes_of(job_dir: Path) -> list[int]:
    """Return the processes that carry the job's folder in their environment: its ranks, and whatever they started."""
    marker = b"ETT_JOB_DIR=" + os.fsencode(job_dir)
    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and marker in environ_of(int(pid))]


def _disk_s(folder: Path, num_bytes: int) -> float:
    """Return the seconds in which the disk alone writes as many bytes, by the faster way."""
    disk = Disk(folder, max(1, num_bytes))
    return min(disk.write_s(way) for way in WAYS)


def _over_bound(found: list[Ending]) -> Measured:
    """Return exposed seconds over their bound: of each round, that of the worst end."""
    names = list(dict.fromkeys(ending.name for ending in found))
    rounds = zip(*([e.over_bound for e in found if e.name == name] for name in names), strict=True)
    worst = [max(each) for each in rounds]
    return Measured(name="exposed_over_bound", unit="", samples=worst, reason=f"the worst of {', '.join(names)}")


def _lines(found: list[Ending]) -> list[str]:
    """Return where the seconds of each end go: of its middle round."""
    lines = [f"  {'end':<16}{'exposed_s':>10}{'bound_s':>9}{'ranks_s':>9}{'dirty_mb':>10}{'disk_s':>8}  parts"]
    for name in dict.fromkeys(ending.name for ending in found):
        of_name = sorted((e for e in found if e.name == name), key=lambda e: e.exposed_s)
        e = of_name[len(of_name) // 2]
        parts = ", ".join(f"{part} {s:.2f}" for part, s in sorted(e.parts_s.items(), key=lambda item: -item[1]))
        seconds = f"{e.exposed_s:>10.2f}{e.bound_s:>9.2f}{e.ranks_s:>9.2f}"
        lines.append(f"  {name:<16}{seconds}{e.dirty_bytes / 1e6:>10.2f}{e.disk_s:>8.3f}  {parts}")
    return lines
