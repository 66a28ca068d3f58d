"""A rank's start as a graph: what its training needs, and what each of that waits for (docs/startup.md)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ett.checkpoint import Checkpointer
from ett.errors import EttError
from ett.recovery.startup import Node, Startup
from ett.tracker import Run
from ett.trainer.begun import Begun
from ett.trainer.comm.collectives import Collectives
from ett.trainer.comm.late_collectives import LateCollectives
from ett.trainer.comm.process_group import join_process_group
from ett.trainer.comm.said_once import say_once
from ett.trainer.compile_ahead import CompiledStart
from ett.trainer.compile_plan import compile_plan, fetch_compiled
from ett.trainer.config import DenseConfig, TrainerConfig
from ett.trainer.data.config import DataConfig
from ett.trainer.data.generated_file import ensure_generated
from ett.trainer.data.recipe_reader import RecipeReader, recipe_reader
from ett.trainer.dense.device import dense_device
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.dense.recipe_model import RecipeModel, recipe_model
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.kept_tables import KeptTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig, PoolingType
from ett.trainer.job_recipe import JobRecipe
from ett.trainer.loop import Progress, TrainingStep
from ett.trainer.pipeline.prefetched_batches import PrefetchedBatches
from ett.trainer.pipeline.stage_clock import StageClock
from ett.trainer.progress import ProgressLines
from ett.trainer.recipe_tables import recipe_tables
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.tiers.tiers import IN_MEMORY, RankPlace, Tiers, open_tiers

CRITEO = DataConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """What a rank trains with, once it has started."""

    collectives: Collectives
    training_step: TrainingStep
    reader: RecipeReader
    batches: PrefetchedBatches
    checkpointer: Checkpointer
    start: Progress
    lines: ProgressLines | None  # on rank 0


class RankStart:
    """The nodes of one rank's start; `run` runs them once.

    Collectives of different nodes would meet in any order, so the nodes that have some wait for each other:
    process_group, training_step, restore, first_batch.

    Attributes:
        until_end: to be closed when training is over: closes what the start has opened.
    """

    def __init__(
        self,
        run: Run,
        recipe: JobRecipe,
        environ: Mapping[str, str],
        begun: Begun | None,
        kept: KeptTables | None = None,
    ) -> None:
        """Args: begun: what main has started of it; None: nothing. kept: tables of an earlier generation."""
        self._run, self._recipe, config = run, recipe, recipe.trainer
        self._kept = KeptTables() if kept is None else kept
        assert run.job_dir is not None
        self._place = RankPlace(
            job_dir=run.job_dir, rank=int(environ.get("RANK", "0")), world_size=int(environ.get("WORLD_SIZE", "1"))
        )
        self._startup = Startup(run, recipe.recovery.startup) if begun is None else begun.startup
        self._planned = None if begun is None else begun.planned
        add = self._startup.add
        imported: list[Node[Any]] = [] if begun is None else [begun.imports]
        # On the main thread: the number of threads, and the device, are those of the thread that sets them.
        device = add("device_init", lambda: _init_device(config.dense, environ), after=imported, on_main_thread=True)
        self._group = group = add(
            "process_group",
            lambda: join_process_group(environ, config.train.comm_timeout_s, device.value),
            after=[device],
        )
        self._reader = add("data_warmup", lambda: open_reader(recipe, self._place), after=imported)
        self.until_end = ExitStack()
        late = LateCollectives(self._place.rank, self._place.world_size, lambda: group.value[0])
        model = add("model_build", lambda: self._build(late), after=[device])
        self._training_step = add(
            "training_step",
            lambda: TrainingStep(config, model.value, group.value[0], device.value),
            after=[group, model],
            span="model_build",
            on_main_thread=True,
        )
        planned: list[Node[Any]] = [] if self._planned is None else [self._planned]
        compiled = [self._add_compile(begun, environ, device)] if recipe.compile.dense else []
        needed: list[Node[Any]] = [self._training_step, self._reader, *planned, *compiled]
        self._ready = add("restore", self._restore, after=needed, on_main_thread=True)
        add("first_batch", self._await_batch, after=[self._ready], span="data_warmup", on_main_thread=True)

    def say(self, err: EttError) -> None:
        """Print an error that ends this rank, unless rank 0 says the same, see `say_once`."""
        say_once(err, self._run.rank, self._group.value[1] if self._group.is_done else None)

    def keep_tables(self, ready: Ready) -> None:
        """Leave the tables to the next generation, once nothing of this one touches them."""
        if self._recipe.trainer.sparse.tier == "host":  # what other tiers hold goes with this generation
            self._kept.keep(ready.training_step.model.ebc, self._place)

    def run(self) -> Ready:
        """Start this rank."""
        self._startup.run()
        return self._ready.value

    def _add_compile(self, begun: Begun | None, environ: Mapping[str, str], device: Node[torch.device]) -> Node[None]:
        """Return the node that compiles the dense part; the restore follows it, as torch sets generators meanwhile."""
        run, recipe, start = self._run, self._recipe, CompiledStart(self._recipe, environ)
        fetched = None if begun is None else begun.fetched
        if begun is None and recipe.compile.cache:
            fetched = self._startup.add("compile_fetch", lambda: fetch_compiled(run, recipe, environ), span="compile")
        self.until_end.callback(start.close)
        return self._startup.add(
            "compile",
            lambda: start.compile(None if fetched is None else fetched.value, self._place.world_size, device.value),
            after=[device, *([] if fetched is None else [fetched])],
        )

    def _build(self, collectives: Collectives) -> RecipeModel:
        recipe = self._recipe
        tiers = self.until_end.enter_context(open_tiers(recipe.trainer.sparse, self._place))
        kept = self._kept.take(self._place)
        model = build_model(recipe.trainer, collectives, tiers, recipe.data, kept)
        if recipe.compile.dense and isinstance(model, Dlrm):
            model.compile_for(compile_plan(recipe, self._place.world_size).num_examples)
        return model

    def _restore(self) -> Ready:
        training_step, reader, collectives = self._training_step.value, self._reader.value, self._group.value[0]
        model = training_step.model
        batches = _prefetched(self._recipe.trainer, model, reader, collectives, self._run)
        checkpointer = Checkpointer(
            self._recipe.checkpoint,
            model=model,
            optimizer=training_step.optimizer,
            loader=batches,
            run=self._run,
            held=model.ebc.exchange.rows,
        )
        restored = checkpointer.restore(planned=None if self._planned is None else self._planned.value)
        if restored is None:
            self._kept.forget()
        lines = ProgressLines() if collectives.rank == 0 else None
        if lines is not None:
            lines.begin(restored)
        start = Progress(restored.step, restored.cursor) if restored else Progress(0, 0)
        if self._run.has_faults:
            run = self._run
            batches.before_read = lambda number: run.at("data", start.step + number)
        return Ready(
            collectives=collectives,
            training_step=training_step,
            reader=reader,
            batches=batches,
            checkpointer=checkpointer,
            start=start,
            lines=lines,
        )

    def _await_batch(self) -> None:
        """Have the first batch read and its rows asked for, where there is one to train on."""
        ready, max_steps = self._ready.value, self._recipe.trainer.train.max_steps
        if not max_steps or ready.start.step < max_steps:
            ready.batches.await_first()


def build_model(
    config: TrainerConfig,
    collectives: Collectives,
    tiers: Tiers = IN_MEMORY,
    data: DataConfig = CRITEO,
    kept: Mapping[str, EmbeddingShard] = MappingProxyType({}),
) -> RecipeModel:
    """Return the model of a recipe with its initial weights, the same dense ones on every rank.

    Args: kept: tables that are there already.
    """
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
    embeddings = JobTables(tables, settings, collectives, seed=config.train.seed, tiers=tiers, kept=kept)
    return recipe_model(config, embeddings, num_dense=data.num_dense)


def open_reader(recipe: JobRecipe, place: RankPlace) -> RecipeReader:
    data, train = recipe.data, recipe.trainer.train
    path = data.path or str(ensure_generated(data.generate, place.job_dir / "data", data.format))
    return recipe_reader(
        data,
        path,
        batch_size=train.batch_size,
        seed=train.seed,
        epochs=train.epochs,
        rank=place.rank,
        world_size=place.world_size,
    )


def _init_device(config: DenseConfig, environ: Mapping[str, str]) -> torch.device:
    torch.set_num_threads(config.threads)
    return dense_device(config.device, int(environ.get("LOCAL_RANK", "0")))


def _prefetched(
    config: TrainerConfig, model: RecipeModel, reader: RecipeReader, collectives: Collectives, run: Run
) -> PrefetchedBatches:
    train = config.train
    ahead = collectives.beside() if train.prefetch_depth else collectives
    clock = StageClock(train.prefetch_depth, train.trace_batches)
    return PrefetchedBatches(reader, model.ebc, ahead, clock, lambda: run.stop_requested)
