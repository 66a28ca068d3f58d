"""The plain leg of `ett bench ett`: a training script as most are, for torchrun (`docs/paired.md`).

`ett.init()` is all that it has of what it is compared with, to say where its time goes.
"""

from __future__ import annotations

import os
import sys

import ett


def main() -> int:
    """Train the job of this process's environment and return the exit code."""
    os.environ["ETT_ATTEMPT"] = str(1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    run = ett.init()
    assert run.job_dir is not None
    # Read by torch when it is imported: what an earlier attempt compiled is not there, as on a fresh container.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(run.job_dir / "compiled" / str(run.attempt))
    with run.span("imports"):
        from ett.trainer.bench.plain_training import PlainTraining
        from ett.trainer.comm.process_group import leave_process_group
    try:
        PlainTraining(run, run.job_dir, os.environ).run()
    finally:
        leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
