"""A worker of `ett launch RECIPE.toml`: `python -m ett.trainer.main`, once a rank.

Reads the job's resolved recipe and writes metrics.jsonl and result.json beside it. Exit codes: 0 done, 143 stopped on
SIGTERM after a committed save, those of ett/errors.py for a user's error.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import ett
from ett.errors import EttError


def main() -> int:
    """Train the job of this process's environment and return the exit code."""
    run = ett.init()
    with run.span("imports"):
        from ett.trainer.worker import run_worker
    try:
        return ett.restartable(run_worker)(run, os.environ)
    except EttError as err:
        sys.stderr.write(err.render() + "\n")
        return err.exit_code


def _exit_now(code: int) -> NoReturn:
    """End without the interpreter's teardown, which with torch takes 0.6 s and has nothing left to do."""
    ett.init().close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit_now(main())
