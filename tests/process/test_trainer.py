"""transformers.Trainer, and accelerate without it, under `ett launch`: the account against what the model was given."""

from __future__ import annotations

import importlib.util
import os
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from hooked_program import HookedProgram
from launched_job import PROGRAMS, LaunchedJob

PEERS = Path(sys.prefix) / "transformers"  # where `make peers` installs it
TRAINED = str(PROGRAMS / "trained_by_trainer.py")
LAST_STEP = {1: 22, 2: 12}  # by micro-batches a step: 11 batches an epoch, two epochs

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(
        not PEERS.is_dir() and importlib.util.find_spec("transformers") is None,
        reason="transformers is not installed: make peers",
    ),
]


def environment() -> dict[str, str]:
    paths = [str(PEERS)] * PEERS.is_dir() + [path for path in (os.environ.get("PYTHONPATH"),) if path]
    return {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}


def given(out: str) -> list[tuple[int, int]]:
    """Return (step, samples that the model was given for it), in the order of the program's own words."""
    found, samples = [], 0
    for line in out.splitlines():
        match line.split():
            case ["given", number]:
                samples += int(number)
            case ["step", number]:
                found.append((int(number), samples))
                samples = 0
    return found


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_trainer_is_accounted_for_as_it_counts_itself(job: LaunchedJob, micro_batches: int) -> None:
    assert job.run("--max-restarts", "1", TRAINED, str(micro_batches), "7", **environment()) == 0, job.err
    assert not job.records("hook_failed", "cursor_unknown")
    steps = job.records("step")
    assert [(step.data["step"], step.data["samples"]) for step in steps] == given(job.out)
    last = LAST_STEP[micro_batches]
    assert [(step.att, step.data["step"]) for step in steps] == [
        *((1, number) for number in range(1, 8)),
        *((2, number) for number in range(5, last + 1)),
    ]
    assert not any("samples_inferred" in step.data for step in steps)

    samples = {step.data["step"]: step.data["samples"] for step in steps}
    cursors = dict(zip(samples, accumulate(samples[number] for number in sorted(samples)), strict=True))
    commits = [(Path(c.data["uri"]).name, c.data["step"], c.data["cursor"]) for c in job.records("ckpt_commit")]
    saved = [number for number in range(4, last) if number % 4 == 0]
    assert commits == [
        *((f"checkpoint-{number}", number, cursors[number]) for number in [*saved, last]),
        ("final", last, cursors[last]),
    ]
    (restore,) = job.records("restore")
    assert (restore.att, restore.data["step"], restore.data["cursor"]) == (2, 4, cursors[4])
    (end,) = job.records("train_end")
    assert (end.att, end.data["step"]) == (2, last)
    # An evaluation after every third step, as its arguments say, each in one span.
    evals = [(r.att, last_step_before(job, r.att, r.mono_ns)) for r in job.records("span_begin") if is_eval(r)]
    regular = [number for number in range(5, last + 1) if number % 3 == 0 or number == last]
    assert evals == [(1, 3), (1, 6), *((2, number) for number in regular)]


def is_eval(record) -> bool:
    return record.data["name"] == "eval"


def last_step_before(job: LaunchedJob, attempt: int, mono_ns: int) -> int:
    return max(s.data["step"] for s in job.records("step") if s.att == attempt and s.data["e_mono"] <= mono_ns)


def test_what_generic_hooks_see_of_a_trainer_has_the_same_steps(job: LaunchedJob) -> None:
    assert job.run("--hooks=-transformers", TRAINED, "2", "0", **environment()) == 0, job.err
    assert [(s.data["step"], s.data["samples"]) for s in job.records("step")] == given(job.out)
    assert not any("samples_inferred" in step.data for step in job.records("step"))


ACCELERATED = """
import torch
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
def train(loader):
    for (rows,) in loader:
        print("given", len(rows))
        optimizer.zero_grad()
        accelerator.backward(model(rows).square().mean())
        optimizer.step()
        print("step", 0)
train(skip_first_batches(loader, 1))
train(loader)
model.eval()
with torch.no_grad():
    for (rows,) in loader: model(rows)
model.train()
train(loader)
"""


def test_a_batch_that_accelerate_reads_ahead_belongs_to_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ACCELERATED)
    program = HookedProgram(tmp_path, "program.py")
    ended = program.hooked(**environment())
    assert ended.code == 0, ended.err
    steps = program.records("step")
    assert [step.data["samples"] for step in steps] == [samples for _, samples in given(ended.out)]
    assert [step.data["samples"] for step in steps] == [16, 8, *[16, 16, 8] * 2]
    assert not any("samples_inferred" in step.data for step in steps)
    assert [name for name, _, _ in program.spans()].count("eval") == 1
