"""A process that saves and restores, and says what it held: argv = the workload as JSON, and a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from ett.checkpoint import retention_thread
from ett.checkpoint.bench.bench_run import QuietRun
from ett.checkpoint.bench.bench_tables import bench_model
from ett.checkpoint.bench.resident_memory import resident_mib
from ett.checkpoint.checkpointer import Checkpointer
from ett.checkpoint.config import CheckpointConfig


def measured_process(workload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run this file as a process of its own and return what it prints."""
    command = [sys.executable, "-m", "ett.checkpoint.bench.bench_process", json.dumps(workload), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _memory(workload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the most memory of a restore and a save, some times over, above what the process held before the first."""
    tables = workload["tables"]
    model = bench_model(tables, tables["quick_rows" if workload["quick"] else "rows"])
    before, extra = resident_mib("VmRSS"), []
    for step in range(1, workload["memory"]["saves"] + 1):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        checkpointer = _checkpointer(folder / "memory", model)
        checkpointer.restore()
        checkpointer.save(step, step)
        extra.append(round(resident_mib("VmHWM") - before, 1))
    return {"extra_mib": extra, "reason": f"peak of a restore and a save above {before:.0f} MiB before the first"}


def _growth(workload: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return memory, descriptors, threads and shared memory after some saves and after many, and the worst ratio."""
    plan = workload["growth"]
    checkpointer = _checkpointer(folder / "growth", bench_model(workload["tables"], plan["rows"]))
    last = plan["quick_saves" if workload["quick"] else "saves"]
    for step in range(1, last + 1):
        checkpointer.save(step, step)
        if step == plan["warm_saves"]:
            before = _held()
    after = _held()
    # One more than nothing, where there is nothing: a first descriptor that leaks is a doubling.
    worst = max((after[what] + 1) / (before[what] + 1) for what in before)
    reason = f"save {last} over save {plan['warm_saves']}" + (", fewer than 500: --quick" if last < 500 else "")
    return {"worst": worst, "before": before, "after": after, "reason": reason}


def _held() -> dict[str, float]:
    for thread in threading.enumerate():
        if thread.name == retention_thread.NAME:
            thread.join()  # what it deletes is of the save before
    return {
        "memory_mib": resident_mib("VmRSS"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "shm_mib": resident_mib("RssShmem"),
    }


def _checkpointer(folder: Path, model: Any) -> Checkpointer:
    config = CheckpointConfig(uri=str(folder), keep_last=2, policy="full", background=False)
    return Checkpointer(config, model=model, run=QuietRun())


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"memory": _memory, "growth": _growth}[asked["what"]](asked, Path(sys.argv[2]))))
