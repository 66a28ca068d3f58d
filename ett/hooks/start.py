"""Starts the hooks of a process, before its program: called by `ett/hooks/startup/sitecustomize.py`."""

from __future__ import annotations

import atexit
from collections.abc import Mapping

from ett.hooks import around
from ett.hooks.accelerate_hook import AccelerateHook
from ett.hooks.batch_hook import BatchHook
from ett.hooks.compile_callbacks import CompileCallbacks
from ett.hooks.distributed_checkpoint_hook import DistributedCheckpointHook
from ett.hooks.hook_names import parse_hooks
from ett.hooks.load_hook import LoadHook
from ett.hooks.module_watch import ModuleWatch
from ett.hooks.positions import Positions
from ett.hooks.program_end import ProgramEnd
from ett.hooks.recompiles import RecompileWatch
from ett.hooks.save_hook import SaveHook
from ett.hooks.saved_files import SavedFiles
from ett.hooks.session import HookSession
from ett.hooks.start_up_hooks import StartUpHooks
from ett.hooks.step_hook import StepHook
from ett.hooks.trainer_hook import TrainerHook
from ett.tracker import hooked_run


def start(environ: Mapping[str, str]) -> None:
    """Install the hooks that `$ETT_HOOKS` names, if this process is a rank of a launch."""
    hooks = parse_hooks(environ.get("ETT_HOOKS", "all"))
    if not hooks or not environ.get("ETT_JOB"):
        return
    run = hooked_run()
    if not run.is_recording or run.job_dir is None:
        return
    watch = ModuleWatch()
    session = HookSession(run, hooks, watch)
    around.on_failure.append(lambda text: run.emit("hook_failed", error=text))
    positions = Positions(session)
    steps = StepHook(session, positions)
    files = SavedFiles(run.job_dir, run.attempt, run.rank)
    saves = SaveHook(session, steps, positions, files)
    loads = LoadHook(session, steps, positions, files)
    batches = BatchHook(session, steps, saves)
    start_up = StartUpHooks(session, steps)
    steps.on_record = batches.trained
    atexit.register(around.quiet(ProgramEnd(session, steps, saves).note))

    start_up.begin_imports()
    # Each by itself, so that one which this torch does not suit leaves the others in place; all when torch is whole.
    for install in (steps.install, saves.install, loads.install, batches.install, start_up.install):
        watch.when_imported("torch", install)
    watch.when_imported("torch", start_up.install_distributed)
    watch.when_imported("torch.distributed.checkpoint", DistributedCheckpointHook(saves, loads).install)
    watch.when_imported("torch._dynamo.callback", CompileCallbacks(session).install)
    watch.when_imported("accelerate.data_loader", AccelerateHook(batches).install)
    watch.when_imported("transformers.trainer", TrainerHook(session, steps, batches, saves, loads).install)
    watch.when_imported("torch._dynamo", start_up.imported_late)
    watch.when_imported("torch._dynamo", RecompileWatch(run, lambda: session.is_on("recompiles")).install)
    watch.install()
