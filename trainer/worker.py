"""One rank's life: build, restore, train, save, score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.commit import Commit
from ett.errors import EttError, LostPeer, NotFound, UsageError
from ett.generation import FOLDER_VARIABLE
from ett.section import build_section
from ett.tracker import Run
from ett.trainer.comm.collectives import Collectives
from ett.trainer.comm.process_group import join_process_group, leave_process_group
from ett.trainer.comm.said_once import say_once
from ett.trainer.config import TrainerConfig
from ett.trainer.data.config import DataConfig
from ett.trainer.data.generated_file import ensure_generated
from ett.trainer.data.recipe_reader import RecipeReader, recipe_reader
from ett.trainer.dense.device import dense_device
from ett.trainer.dense.recipe_model import RecipeModel, recipe_model
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig, PoolingType
from ett.trainer.evaluation import held_out_score
from ett.trainer.loop import Progress, TrainingLoop, TrainingStep
from ett.trainer.loss_log import LossLog, read_losses
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches
from ett.trainer.pipeline.stage_clock import StageClock, write_trace
from ett.trainer.progress import ProgressLines
from ett.trainer.recipe_tables import recipe_tables
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, RankPlace, Tiers, open_tiers

CRITEO = DataConfig()
PREEMPTED = 143
METRICS, RESULT, TRACE = "metrics.jsonl", "result.json", "stages-rank{rank}.json"


@dataclass(frozen=True, slots=True)
class JobRecipe:
    """The sections of recipe.json that a worker reads."""

    data: DataConfig
    trainer: TrainerConfig
    checkpoint: CheckpointConfig


@dataclass(frozen=True, slots=True)
class Places:
    """What a rank trains with beside its recipe: the other ranks, where rows lie, where the dense part computes."""

    collectives: Collectives
    tiers: Tiers
    device: torch.device


def read_recipe(path: Path) -> JobRecipe:
    """Build the config dataclasses again from a job's resolved recipe."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as err:
        raise NotFound(f"{path} does not exist", do="start workers by `ett launch RECIPE.toml`") from err
    sections = {field.name: plain.get(field.name, {}) for field in fields(TrainerConfig)}
    return JobRecipe(
        build_section(DataConfig, plain.get("data", {}), "data"),
        build_section(TrainerConfig, sections),
        build_section(CheckpointConfig, plain.get("checkpoint", {}), "checkpoint"),
    )


def run_worker(run: Run, environ: Mapping[str, str]) -> int:
    """Train the job of `run` to its end or to an agreed stop, and return the process's exit code."""
    if run.job_dir is None:
        raise UsageError("this process belongs to no job", do="start workers by `ett launch RECIPE.toml`")
    recipe = read_recipe(run.job_dir / "recipe.json")
    config = recipe.trainer
    with run.span("device_init"):
        torch.set_num_threads(config.dense.threads)
        device = dense_device(config.dense.device, int(environ.get("LOCAL_RANK", "0")))
    with run.span("process_group"):
        collectives, store = join_process_group(environ, config.train.comm_timeout_s, device)
    try:
        place = RankPlace(job_dir=run.job_dir, rank=collectives.rank, world_size=collectives.world_size)
        with open_tiers(config.sparse, place) as tiers:
            return _train_and_score(run, run.job_dir, recipe, Places(collectives, tiers, device))
    except EttError as err:
        # torch keeps fully_shard's process groups for as long as the process lives.
        may_live_on = environ.get(FOLDER_VARIABLE) and config.dense.parallel != "fsdp"
        if isinstance(err, LostPeer) and may_live_on:
            raise  # this rank may live on in the next generation (ett.restartable)
        say_once(err, collectives.rank, store)
        return err.exit_code
    finally:
        # gloo's threads must be gone before the interpreter is, or it aborts and the exit code is lost.
        leave_process_group()


def _train_and_score(run: Run, job_dir: Path, recipe: JobRecipe, places: Places) -> int:
    config, collectives = recipe.trainer, places.collectives
    with run.span("model_build"):
        model = build_model(config, collectives, places.tiers, recipe.data)
        training_step = TrainingStep(config, model, collectives, places.device)
    with run.span("data_warmup"):
        reader = _open_reader(recipe, job_dir, collectives)
    batches = _prefetched(config, model, reader, collectives, run)
    checkpointer = Checkpointer(
        recipe.checkpoint,
        model=model,
        optimizer=training_step.optimizer,
        loader=batches,
        run=run,
        held=model.ebc.exchange.rows,
    )
    restored = checkpointer.restore()
    start = Progress(restored.step, restored.cursor) if restored else Progress(0, 0)
    lines = ProgressLines() if collectives.rank == 0 else None
    if lines is not None:
        lines.begin(restored)
    metrics = job_dir / METRICS
    loop = TrainingLoop(
        config=config,
        training_step=training_step,
        batches=batches,
        checkpointer=checkpointer,
        run=run,
        losses=LossLog(metrics, restored_step=start.step) if collectives.rank == 0 else None,
        lines=lines,
        score=lambda: held_out_score(config.eval, model, reader, collectives, lambda: run.stop_requested),
    )
    try:
        end = loop.run_from(start)
    except EttError:
        checkpointer.has_settled()  # its thread uses a process group that will be gone
        raise
    if config.train.trace_batches:
        write_trace(batches.clock, job_dir / TRACE.format(rank=collectives.rank))
    if not end.stopped:
        run.train_end()
    with run.span("final_save"):
        commit = end.commit or checkpointer.save(end.step, end.cursor)
        checkpointer.close(wait=not end.stopped)  # whoever stops a job kills it soon after
    score = None if end.stopped else _final_score(run, loop)
    if score is None:
        if lines is not None:
            lines.stopped(end.step, commit.seq)
        return PREEMPTED
    result = _commit_facts(commit) | score | {"skipped_lines": reader.skipped_lines}
    if collectives.rank == 0:
        body = _write_result(job_dir / RESULT, metrics, result)
        assert lines is not None
        lines.finished(body, (job_dir / RESULT, metrics))
    return 0


def build_model(
    config: TrainerConfig, collectives: Collectives, tiers: Tiers = IN_MEMORY, data: DataConfig = CRITEO
) -> RecipeModel:
    """Return the model of a recipe with its initial weights, the same dense ones on every rank."""
    named = recipe_tables(config.model, config.sparse, data.id_features)
    tables = [
        EmbeddingBagConfig(
            table.own.num_embeddings,
            table.embedding_dim,
            f"t_{table.name}",
            feature_names=list(table.features),
            pooling=PoolingType[table.own.pooling.upper()],
        )
        for table in named
    ]
    settings = {f"t_{table.name}": table.settings for table in named}
    embeddings = JobTables(tables, settings, collectives, seed=config.train.seed, tiers=tiers)
    return recipe_model(config, embeddings, num_dense=data.num_dense)


def _open_reader(recipe: JobRecipe, job_dir: Path, collectives: Collectives) -> RecipeReader:
    data, train = recipe.data, recipe.trainer.train
    path = data.path or str(ensure_generated(data.generate, job_dir / "data", data.format))
    return recipe_reader(
        data,
        path,
        batch_size=train.batch_size,
        seed=train.seed,
        epochs=train.epochs,
        rank=collectives.rank,
        world_size=collectives.world_size,
    )


def _prefetched(
    config: TrainerConfig, model: RecipeModel, reader: RecipeReader, collectives: Collectives, run: Run
) -> PrefetchedBatches:
    train = config.train
    ahead = collectives.beside() if train.prefetch_depth else collectives
    clock = StageClock(train.prefetch_depth, train.trace_batches)
    return PrefetchedBatches(reader, model.ebc, ahead, clock, lambda: run.stop_requested)


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
