"""A rank's start: the same training side by side or one node after the other, and a log that says what waited."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from one_rank import trained

from ett.checkpoint.commit_choice import plan_ahead
from ett.errors import NotFound
from ett.event_reader import read_folder
from ett.recipe import resolve
from ett.recovery.startup import Mode, Startup
from ett.startup_log import read_starts
from ett.startup_path import start_path
from ett.tracker import Run, RunIdentity
from ett.trainer.begun import Begun
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.comm.late_collectives import LateCollectives
from ett.trainer.job_recipe import read_recipe
from ett.trainer.worker import run_worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo.toml"
SMALL = ("data.generate.rows=1500", "train.batch_size=128", "checkpoint.interval=3 steps", "eval.enabled=false")


def write_recipe(folder: Path, *overrides: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(resolve(EXAMPLE, [*SMALL, *overrides]).sections))


def live(folder: Path, attempt: int, mode: Mode, *overrides: str) -> dict[str, Any]:
    """Run a life of a job of one rank in this process, its checkpoint chosen ahead, and return its result."""
    write_recipe(folder, f"recovery.startup={mode}", *overrides)
    run = Run(RunIdentity(job="j", attempt=attempt, job_dir=folder))
    startup, recipe = Startup(run, mode), read_recipe(folder / "recipe.json")
    planned = startup.add("checkpoint_plan", lambda: plan_ahead(recipe.checkpoint, folder, {}), span="restore")
    imports = startup.add("imports", lambda: None, on_main_thread=True)
    startup.run(until=imports)
    return trained(run, {}, Begun(startup, imports, planned))


def spans_of(folder: Path) -> list[str]:
    """Return the names of a job's spans in the order in which they began."""
    records = sorted(read_folder(folder).records, key=lambda record: record.mono_ns)
    return [str(record.data["name"]) for record in records if record.ev == "span_begin"]


@pytest.mark.slow
def test_both_modes_train_the_same_bits_from_a_fresh_start_as_from_a_checkpoint(tmp_path: Path) -> None:
    modes: tuple[Mode, Mode] = ("parallel", "serial")
    begun = [live(tmp_path / mode, 1, mode, "train.max_steps=4") for mode in modes]
    assert begun[0] == begun[1]
    gone_on = [
        live(tmp_path / mode, 2, other, "train.max_steps=9") for mode, other in zip(modes, modes[::-1], strict=True)
    ]
    assert gone_on[0] == gone_on[1]
    assert gone_on[0] == live(tmp_path / "undisturbed", 1, "parallel", "train.max_steps=9")
    of_an_end = ["final_save", "final_wait", "teardown"]
    assert [span for span in spans_of(tmp_path / "parallel") if span in of_an_end] == of_an_end * 2
    for mode, attempts in zip(modes, (("parallel", "serial"), ("serial", "parallel")), strict=True):
        files = [(p.parent.name + "/" + p.name, p.read_bytes()) for p in sorted((tmp_path / mode).rglob("r0-*.jsonl"))]
        for start, how in zip(read_starts(files), attempts, strict=True):
            path = start_path(start)
            assert path is not None
            waited = {node.node.name: {start.nodes[i].name for i in node.waited_for} for node in path.nodes}
            assert {"checkpoint_plan", "data_warmup", "training_step"} <= waited["restore"]
            if how == "parallel":
                assert waited["data_warmup"] == waited["model_build"] - {"device_init"} | {"imports"}
                assert {node.node.name for node in path.nodes if not node.node.is_on_main} == {
                    "checkpoint_plan", "process_group", "data_warmup", "model_build"
                }  # fmt: skip


def test_a_failure_in_a_node_is_the_ranks_typed_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipe(tmp_path / "j", f"data.path={tmp_path / 'nowhere.tsv'}")
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path / "j"))
    assert run_worker(run, {}) == NotFound.exit_code
    assert "nowhere.tsv" in capsys.readouterr().err


def test_a_plan_of_a_folder_that_cannot_be_read_is_left_to_the_restore(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_recipe(tmp_path)
    commits = tmp_path / "checkpoints" / "commits"
    commits.mkdir(parents=True)
    (commits / "0000000000000001.json").write_text("{}")
    with caplog.at_level(logging.INFO):
        assert plan_ahead(read_recipe(tmp_path / "recipe.json").checkpoint, tmp_path, {}) is None
    assert "chosen later" in caplog.text
    assert plan_ahead(read_recipe(tmp_path / "recipe.json").checkpoint, tmp_path, {"ETT_RESUME": "never"}) is None


def test_late_collectives_are_those_of_the_group_once_it_is_joined() -> None:
    group = LocalCollectives()
    asked: list[int] = []

    def joined() -> LocalCollectives:
        asked.append(1)
        return group

    late = LateCollectives(0, 1, joined)
    words = torch.tensor([[3]])
    assert not asked
    assert late.exchange_words(words) is late.all_to_all(words, [1], [1]) is words
    assert late.all_to_all_uneven(words, [1]) == (words, [1])
    assert late.gather(words) == [words]
    assert late.beside() is group
    late.sum_in_place(words)()
    late.barrier()
    assert len(asked) == 1


@pytest.mark.slow
def test_a_model_is_built_without_what_takes_a_second_to_import() -> None:
    program = """
import sys
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, TrainerConfig
from ett.trainer.loop import TrainingStep
from ett.trainer.rank_start import build_model
for kind in ("dlrm", "dcn_v2"):
    config = TrainerConfig(model=ModelConfig(kind=kind))
    TrainingStep(config, build_model(config, LocalCollectives()), LocalCollectives())
heavy = {"sympy", "torch._dynamo", "torch.distributed.checkpoint", "redis", "tenacity", "pyarrow", "s3fs"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
