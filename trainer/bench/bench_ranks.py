"""Runs a module of this folder as ranks of this host, and returns what rank 0 printed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ett import worker as ett_worker
from ett.errors import ThresholdMissed

_LONGEST_S = 900.0  # of all ranks; each takes about one minute


def run_ranks(module: str, arguments: list[str], num_ranks: int, *, what: str) -> dict[str, Any]:
    """Return the last JSON object that rank 0 printed.

    Raises: ThresholdMissed: a rank ended with another code than 0; `what` says in words what was measured.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    environ = os.environ | address | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder:
        outputs = [Path(folder, f"{rank}.txt") for rank in range(num_ranks)]
        ranks = []
        for rank, output in enumerate(outputs):
            with output.open("w") as file:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                # As workers of a job, for the kernel ends them when this process is gone.
                worker = [sys.executable, "-I", "-S", ett_worker.__file__, str(os.getpid())]
                command = [*worker, sys.executable, "-m", module, *arguments]
                ranks.append(subprocess.Popen(command, env=environ | own, stdout=file, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(timeout=_LONGEST_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        told = [output.read_text().splitlines() for output in outputs]
    if any(codes):
        last = next(lines[-1:] for lines, code in zip(told, codes, strict=True) if code)
        raise ThresholdMissed(f"{what} ended with {codes}: {' '.join(last)}", expected="0 of every rank")
    result: dict[str, Any] = json.loads(next(line for line in reversed(told[0]) if line.startswith("{")))
    return result
