"""What of a recipe's model is compiled, and the key of that; needs no torch, as the fetch begins before it is there."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ett.compile_cache import CompileCache, key_parts
from ett.compile_cache.cache import FetchResult
from ett.compile_cache.key import KeyParts
from ett.raised import raised_by
from ett.tracker import Run
from ett.trainer.config import TrainConfig
from ett.trainer.data.lanes import longest_slice
from ett.trainer.job_recipe import JobRecipe
from ett.trainer.recipe_tables import recipe_tables

log = logging.getLogger(__name__)
FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
FOLDER = "compiled"  # in the job's folder: torch's cache folder of each rank's newest process
_DENSE = Path(__file__).parent / "dense"


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """Sizes of the one graph that a recipe's dense part is."""

    num_examples: int
    num_dense: int
    pooled: list[tuple[int, list[str]]]  # as JobTables.pooled
    sequences: Mapping[str, int]  # as JobTables.sequences: empty, since what has some is not compiled


def compile_plan(recipe: JobRecipe, world_size: int) -> CompilePlan:
    """Return what a rank compiles, the same on all ranks."""
    config = recipe.trainer
    tables = recipe_tables(config.model, config.sparse, recipe.data.id_features)
    widths: dict[int, list[str]] = {}
    for table in sorted(tables, key=lambda table: table.embedding_dim):
        widths.setdefault(table.embedding_dim, []).extend(table.features)
    return CompilePlan(_most_examples(config.train, world_size), recipe.data.num_dense, list(widths.items()), {})


def recipe_key_parts(recipe: JobRecipe, plan: CompilePlan, environ: Mapping[str, str]) -> KeyParts:
    """Return what the key of a recipe's compiled code is made of, on this host."""
    dense = recipe.trainer.dense
    return key_parts(
        code=_DENSE.glob("*.py"),
        model={"model": asdict(recipe.trainer.model), "device": dense.device, "precision": dense.precision},
        options={"dynamic": False, "fullgraph": True, "threads": dense.threads},
        shapes=[plan.num_examples, plan.num_dense, [[dim, len(names)] for dim, names in plan.pooled]],
        environ=environ,
    )


@dataclass(frozen=True, slots=True)
class FetchedCode:
    cache: CompileCache
    result: FetchResult


def fetch_compiled(run: Run, recipe: JobRecipe, environ: Mapping[str, str]) -> FetchedCode | None:
    """Fetch what the cache has for this rank, and have torch compile in the folder where that lies.

    Returns: None where there can be no cache: its key cannot be made, say. Nothing is kept of such a start.
    """
    assert run.job_dir is not None
    folder = run.job_dir / FOLDER / f"r{run.rank}-{os.getpid()}"
    if os.environ.get(FOLDER_VARIABLE) != str(folder):  # this process's first fetch: it has loaded nothing from there
        for left in folder.parent.glob(f"r{run.rank}-*"):
            shutil.rmtree(left, ignore_errors=True)  # of a process that may have been killed while it wrote
    os.environ[FOLDER_VARIABLE] = str(folder)
    fetched: list[FetchedCode] = []
    failure = raised_by(lambda: fetched.append(_fetch(run, recipe, environ, folder)))
    if failure is None:
        return fetched[0]
    if not isinstance(failure, Exception):
        raise failure
    log.warning("the start goes on without the compile cache: %s: %s", type(failure).__name__, failure)
    run.emit("compile", action="fetch", result="failed", key="", seconds=0.0)
    return None


def _fetch(run: Run, recipe: JobRecipe, environ: Mapping[str, str], folder: Path) -> FetchedCode:
    parts = recipe_key_parts(recipe, compile_plan(recipe, run.world_size), environ)
    cache = CompileCache(recipe.compile, parts, folder, environ, run.emit)
    return FetchedCode(cache, cache.fetch().result)


def has_compiling_rank(recipe: JobRecipe, environ: Mapping[str, str]) -> bool:
    """Return whether another rank compiles the same and publishes it where this one can fetch it."""
    return environ.get("RANK" if recipe.compile.uri else "LOCAL_RANK", "0") != "0"


def _most_examples(train: TrainConfig, world_size: int) -> int:
    """Return the most examples of one forward pass on any rank."""
    return -(-longest_slice(train.batch_size, world_size) // train.accumulate)
