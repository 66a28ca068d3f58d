"""A life of a job of one rank, in the process of its test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ett.tracker import Run
from ett.trainer.begun import Begun
from ett.trainer.worker import run_worker


def trained(run: Run, environ: Mapping[str, str], begun: Begun | None = None) -> dict[str, Any]:
    """Train the job of `run`, whose folder has its recipe, close the run and return the job's result."""
    assert run.job_dir is not None
    num_threads = torch.get_num_threads()
    try:
        assert run_worker(run, environ, begun) == 0
    finally:
        torch.set_num_threads(num_threads)
        run.unwatch_sigterm()
        run.close()
    result: dict[str, Any] = json.loads((run.job_dir / "result.json").read_text())
    return result
