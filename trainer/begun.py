"""What of a rank's start is begun before torch is there: the choice of the checkpoint, beside the imports."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from ett.checkpoint.commit_choice import Planned, plan_ahead
from ett.errors import UsageError
from ett.recovery.startup import Node, Startup
from ett.tracker import Run
from ett.trainer.job_recipe import read_recipe


@dataclass(frozen=True, slots=True)
class Begun:
    startup: Startup
    imports: Node[None]
    planned: Node[Planned | None] | None  # None: on ranks that do not choose


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
    imports = startup.add("imports", _import_worker, on_main_thread=True)
    startup.run(until=imports)
    return Begun(startup, imports, planned)


def _import_worker() -> None:
    # Nothing that is imported ever goes, and looking for what does took 0.1 s of each rank's start.
    gc.disable()
    try:
        import_module("ett.trainer.worker")
    finally:
        gc.enable()
        gc.freeze()
