"""One rank's life: build, restore, train, save, score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ett.checkpoint.commit import Commit
from ett.errors import EttError, LostPeer, UsageError
from ett.generation import FOLDER_VARIABLE
from ett.tracker import Run
from ett.trainer.begun import Begun
from ett.trainer.comm.process_group import leave_process_group
from ett.trainer.config import TrainerConfig
from ett.trainer.embedding.kept_tables import KeptTables
from ett.trainer.evaluation import held_out_score
from ett.trainer.job_recipe import read_recipe
from ett.trainer.loop import TrainingLoop
from ett.trainer.loss_log import LossLog, read_losses
from ett.trainer.pipeline.stage_clock import write_trace
from ett.trainer.rank_start import RankStart

PREEMPTED = 143
METRICS, RESULT, TRACE = "metrics.jsonl", "result.json", "stages-rank{rank}.json"


def run_worker(run: Run, environ: Mapping[str, str], begun: Begun | None = None, kept: KeptTables | None = None) -> int:
    """Train the job of `run` to its end or to an agreed stop, and return the process's exit code.

    Args:
        begun: what main has started already; None: nothing, as in a later generation.
        kept: has the tables of an earlier generation, and is left those of this one; None: they go with it.
    """
    if run.job_dir is None:
        raise UsageError("this process belongs to no job", do="start workers by `ett launch RECIPE.toml`")
    recipe = read_recipe(run.job_dir / "recipe.json")
    start, is_done, is_joined = RankStart(run, recipe, environ, begun, kept), False, True
    try:
        with start.until_end:
            code = _train_and_score(run, run.job_dir, recipe.trainer, start)
        is_done = True
        return code
    except EttError as err:
        # torch keeps fully_shard's process groups for as long as the process lives.
        may_live_on = environ.get(FOLDER_VARIABLE) and recipe.trainer.dense.parallel != "fsdp"
        if isinstance(err, LostPeer) and may_live_on:
            is_joined = False
            if leave_process_group():
                raise  # this rank may live on in the next generation (ett.restartable)
        start.say(err)
        return err.exit_code
    finally:
        # gloo's threads must be gone before the interpreter is, or it aborts and the exit code is lost.
        with run.span("teardown") if is_done else nullcontext():  # else a failure's time, or the next generation's
            if is_joined:
                leave_process_group()


def _train_and_score(run: Run, job_dir: Path, config: TrainerConfig, start: RankStart) -> int:
    ready = start.run()
    collectives, checkpointer, batches, lines = ready.collectives, ready.checkpointer, ready.batches, ready.lines
    metrics = job_dir / METRICS
    loop = TrainingLoop(
        config=config,
        training_step=ready.training_step,
        batches=batches,
        checkpointer=checkpointer,
        run=run,
        losses=LossLog(metrics, restored_step=ready.start.step) if collectives.rank == 0 else None,
        lines=lines,
        score=lambda: held_out_score(
            config.eval, ready.training_step.model, ready.reader, collectives, lambda: run.stop_requested
        ),
    )
    try:
        end = loop.run_from(ready.start)
    except EttError as err:
        # The thread of a save uses a process group that will be gone; the loop's own threads have ended.
        if checkpointer.has_settled() and isinstance(err, LostPeer):
            start.keep_tables(ready)
        raise
    if config.train.trace_batches:
        write_trace(batches.clock, job_dir / TRACE.format(rank=collectives.rank))
    if not end.stopped:
        run.train_end()
    with run.span("final_save"):
        commit = end.commit or checkpointer.save(end.step, end.cursor)
    with run.span("final_wait"):
        checkpointer.close(wait=not end.stopped)  # whoever stops a job kills it soon after
    score = None if end.stopped else _final_score(run, loop)
    if score is None:
        if lines is not None:
            lines.stopped(end.step, commit.seq)
        return PREEMPTED
    result = _commit_facts(commit) | score | {"skipped_lines": ready.reader.skipped_lines}
    if collectives.rank == 0:
        body = _write_result(job_dir / RESULT, metrics, result)
        assert lines is not None
        lines.finished(body, (job_dir / RESULT, metrics))
    return 0


def _commit_facts(commit: Commit) -> dict[str, Any]:
    """Return what two runs have in common if and only if they hold the same model."""
    assert commit.dense is not None
    return {
        "step": commit.step,
        "cursor": commit.cursor,
        "digest": commit.digest,
        "tables": {table.spec.name: {"rows": table.num_rows, "digest": table.digest} for table in commit.tables},
        "dense": commit.dense.digest,
    }


def _final_score(run: Run, loop: TrainingLoop) -> dict[str, Any] | None:
    """Return the result's score, empty where none is wanted; None where all ranks agreed to stop."""
    if not loop.config.eval.enabled:
        return {}
    assert loop.score is not None
    with run.span("eval"):
        score = loop.score()
    return None if score is None else score.as_json()


def _write_result(path: Path, metrics: Path, result: dict[str, Any]) -> dict[str, Any]:
    loss = read_losses(metrics).get(result["step"])
    body = result | {"loss": loss, "loss_hex": None if loss is None else loss.hex()}
    replacement = path.with_suffix(".tmp")
    replacement.write_text(json.dumps(body, indent=1, allow_nan=False) + "\n")
    replacement.replace(path)
    return body
