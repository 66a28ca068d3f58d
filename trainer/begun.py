"""What of a rank's start is begun before torch is there: the choice of the checkpoint, beside the imports."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from ett.checkpoint.commit_choice import Planned, plan_ahead
from ett.errors import UsageError
from ett.hooks.around import quiet
from ett.hooks.recompiles import RecompileWatch
from ett.recovery.startup import Node, Startup
from ett.tracker import Run
from ett.trainer.compile_plan import FetchedCode, fetch_compiled
from ett.trainer.job_recipe import read_recipe

_WORKER = "ett.trainer.worker"
# Imported where first needed, by most ranks: half a second and more of a restore and a first save.
_BY_A_RANK_LATER = ("ett.checkpoint.dense_writer", "fsspec.implementations.local", "numpy.random")


@dataclass(frozen=True, slots=True)
class Begun:
    startup: Startup
    imports: Node[None]
    planned: Node[Planned | None] | None  # None: on ranks that do not choose
    fetched: Node[FetchedCode | None] | None = None  # compiled code; None: none is kept


def begin(run: Run, environ: Mapping[str, str]) -> Begun:
    """Import what training needs, on the main thread, while rank 0 looks for the checkpoint to go on from."""
    if run.job_dir is None:
        raise UsageError("this process belongs to no job", do="start workers by `ett launch RECIPE.toml`")
    recipe, job_dir = read_recipe(run.job_dir / "recipe.json"), run.job_dir
    startup = Startup(run, recipe.recovery.startup)
    planned = None
    if run.rank == 0:
        planned = startup.add(
            "checkpoint_plan", lambda: plan_ahead(recipe.checkpoint, job_dir, environ), span="restore"
        )
    fetched = None
    if recipe.compile.dense and recipe.compile.cache:
        fetched = startup.add("compile_fetch", lambda: fetch_compiled(run, recipe, environ), span="compile")
    imports = startup.add("imports", _import_worker, on_main_thread=True)
    if recipe.compile.dense:
        imports = startup.add(
            "compiler_imports", lambda: _import_compiler(run), after=[imports], span="compile", on_main_thread=True
        )
    startup.run(until=imports)
    return Begun(startup, imports, planned, fetched)


def import_ahead() -> None:
    """Import what a rank imports up to its first save: what a spare does while it waits (`ett/spare_process.py`)."""
    _import(_WORKER, *_BY_A_RANK_LATER)


def _import_worker() -> None:
    _import(_WORKER)


def _import_compiler(run: Run) -> None:
    _import("torch._dynamo", "torch._inductor.compile_fx")
    quiet(RecompileWatch(run).install)(import_module("torch._dynamo"))


def _import(*modules: str) -> None:
    # Nothing that is imported ever goes, and looking for what does took 0.1 s of each rank's start.
    gc.disable()
    try:
        for module in modules:
            import_module(module)
    finally:
        gc.enable()
        gc.freeze()
