"""A benchmark that is ended leaves no rank behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launched_job import PROGRAMS
from wait import wait_until

pytestmark = pytest.mark.process
BENCH = "from ett.trainer.bench.bench_ranks import run_ranks; run_ranks('ett_waits', [], 1, what='a rank')"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_benchmark(how: signal.Signals) -> None:
    path = os.pathsep.join([str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen([sys.executable, "-c", BENCH], env=os.environ | {"PYTHONPATH": path}) as bench:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        wait_until(children.read_text, "the rank")
        rank = int(children.read_text().split()[0])
        wait_until(lambda: b"ett_waits" in Path(f"/proc/{rank}/cmdline").read_bytes(), "the rank's program")
        bench.send_signal(how)
    wait_until(lambda: not Path(f"/proc/{rank}").exists(), "the end of the rank")
