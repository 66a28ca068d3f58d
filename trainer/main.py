"""A worker of `ett launch RECIPE.toml`: `python -m ett.trainer.main`, once a rank.

Reads the job's resolved recipe and writes metrics.jsonl and result.json beside it. Exit codes: 0 done, 143 stopped on
SIGTERM after a committed save, those of ett/errors.py for a user's error.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import ett
from ett.errors import EttError
from ett.tracker import Run


def main() -> int:
    """Train the job of this process's environment and return the exit code."""
    run = ett.init()
    for notice in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(notice, _stop)
    try:
        return _train(run)
    except EttError as err:
        sys.stderr.write(err.render() + "\n")
        return err.exit_code


def _train(run: Run) -> int:
    with run.span("imports"):
        # Before a thread needs them: two threads that import modules which import each other may see half of one.
        from ett.trainer.begun import Begun, begin
    begun = begin(run, os.environ)
    from ett.trainer.embedding.kept_tables import KeptTables  # what begin() has imported, too
    from ett.trainer.worker import run_worker

    kept = KeptTables()
    first: list[Begun] = [begun]
    del begun  # what a generation holds must be gone with it, its process group above all

    def train() -> int:
        return run_worker(run, os.environ, first.pop() if first else None, kept)

    return ett.restartable(train)()


def _stop(signum: int, frame: FrameType | None) -> None:
    """A scheduler's notice that it will take the host, which some send to every process of a job: a request to stop."""
    os.kill(os.getpid(), signal.SIGTERM)


def run() -> NoReturn:
    """Be this rank to the end of the process, without the interpreter's teardown: it takes 0.6 s with torch, and has
    nothing left to do."""
    code = main()
    ett.init().close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
