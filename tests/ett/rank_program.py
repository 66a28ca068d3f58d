"""Programs that run as rank 0 of a job's first attempt, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHILD_THAT_ASKS = (
    "import os, ett\n"
    "run = ett.init()\n"
    "if os.fork() == 0:\n"
    "    ett.init().emit('child'); os._exit(0)\n"
    "os.wait()\n"
    "run.emit('parent')\n"
)


def run_program(text: str, job_dir: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    inside = {"ETT_JOB": "j", "ETT_JOB_DIR": str(job_dir), "ETT_ATTEMPT": "1", "RANK": "0", "WORLD_SIZE": "1"}
    return subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | inside | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
