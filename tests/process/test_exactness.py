"""A job that was killed and restored ends with the same bits as one that ran through.

Adam for both parts, dropout, a schedule, shuffling and several gradient buckets; rank 0 and the last rank are killed at
random steps, of which the seed is fixed per world size. Every reported loss and every digest is compared.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ett.trainer.loss_log import read_losses

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
ROWS, BATCH, INTERVAL = 4000, 200, 4
DIGESTS = ("step", "cursor", "digest", "tables", "dense", "auc", "loss_hex")

RECIPE = f"""
[job]
model = "exactness"
[data.generate]
rows = {ROWS}
seed = 5
[model]
embedding_dim = 8
bottom_mlp = [16]
top_mlp = [32, 16]
dropout = 0.2
[sparse]
optimizer = "adam"
learning_rate = 0.01
[dense]
bucket_bytes = 4096
threads = 1
[optimizer]
schedule = "cosine"
warmup_steps = 3
decay_steps = 12
[train]
batch_size = {BATCH}
seed = 11
[checkpoint]
interval = "{INTERVAL} steps"
[recovery]
max_restarts = 4
"""


def launch(folder: Path, job: str, *flags: str) -> Path:
    """Run the recipe to its end under `ett launch` and return the job's folder."""
    recipe = folder / "exactness.toml"
    recipe.write_text(RECIPE)
    environ = os.environ | {"ETT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ett", "launch", "--job", job, *flags, str(recipe)]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "home" / "jobs" / job


def result_of(job_dir: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((job_dir / "result.json").read_text())
    return {name: result[name] for name in DIGESTS}


def attempts_of(job_dir: Path) -> int:
    return len([path for path in (job_dir / "events").iterdir() if path.name != "0"])


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_killed_and_restored_job_ends_with_the_bits_of_an_uninterrupted_one(tmp_path: Path, world_size: int) -> None:
    nproc = ("--nproc", str(world_size))
    whole = launch(tmp_path, "whole", *nproc)
    last_step = result_of(whole)["step"]
    assert last_step > 4 * INTERVAL
    draw = random.Random(world_size)
    first, second = sorted(draw.sample(range(2, last_step + 1), 2))
    kills = (f"kill:rank=0,step={first}", f"kill:rank={world_size - 1},step={second},attempt=2")
    killed = launch(tmp_path, "killed", *nproc, *(flag for kill in kills for flag in ("--chaos", kill)))
    assert attempts_of(killed) == 3
    assert read_losses(killed / "metrics.jsonl") == read_losses(whole / "metrics.jsonl")
    assert list(read_losses(killed / "metrics.jsonl")) == list(range(1, last_step + 1))
    assert result_of(killed) == result_of(whole)
