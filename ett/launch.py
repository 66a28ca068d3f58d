"""`ett launch`: what the command line says becomes one checked plan, and the plan runs under a supervisor."""

from __future__ import annotations

import json
import os
import sys
import typing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from ett.errors import Conflict, NotFound, RestartsSpent, UsageError
from ett.hooks.hook_names import parse_hooks
from ett.job_folder import JobFolder, Lease, checked_name, ett_home, fresh_job, read_json, slug
from ett.job_history import SavedSteps, read_history
from ett.kept_launch import KeptLaunch
from ett.launch_plan import Kind, LaunchPlan, read_plan
from ett.otel.live_process import LiveExport
from ett.outcome import Outcome
from ett.publisher import begin_publishing
from ett.recipe import resolve, resolve_telemetry
from ett.recipe_cli import site_file
from ett.recipe_sections import JobConfig, LaunchConfig, TelemetryConfig, TelemetryMode
from ett.report_text import count
from ett.restart import recovery_config
from ett.ring_drain import drain_leftovers
from ett.seams import SEAMS, load
from ett.section import build_section
from ett.shown_text import say
from ett.stop_signals import StopSignals
from ett.supervisor import JobSupervisor, end_complete_job
from ett.telemetry_agent import TelemetryAgent


class _LaunchCommand(click.Command):
    """Ends our flags at the first positional, and remembers whether that was `--`, which click swallows."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args and not ctx.resilient_parsing:
            before = args[: args.index("--")]
            values, _, _ = self.make_parser(ctx).parse_args(list(before))
            positionals = values.get("target")
            ctx.meta["is_command"] = not (isinstance(positionals, list | tuple) and positionals)
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchFlags:
    """The flags as given; None where the user said nothing."""

    nproc: int | None = None
    nproc_min: int | None = None
    max_restarts: int | None = None
    job: str | None = None
    team: str | None = None
    owner: str | None = None
    model: str | None = None
    chaos: tuple[str, ...] = ()
    resume: str = "auto"
    source: str | None = None
    overrides: tuple[str, ...] = ()
    checkpoint_interval: str | None = None
    restart: str | None = None
    restart_window: str | None = None
    grace: float | None = None
    telemetry: TelemetryMode | None = None
    strict: bool = False
    hang_after: str | None = None
    hooks: str | None = None
    config: Path | None = None


@click.command(
    cls=_LaunchCommand,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    options_metavar="[FLAGS]",
)
@click.option("--nproc", type=click.IntRange(min=1), help="Worker processes on this host (default: 1, or the recipe).")
@click.option(
    "--nproc-min",
    type=click.IntRange(min=1),
    help="Fewest processes to go on with when one fails at every start (default: --nproc, so never fewer).",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    help="Attempts after a failure (default: recovery.max_restarts of a recipe, else 0).",
)
@click.option(
    "--restart",
    type=click.Choice(["attempt", "inprocess"]),
    help="After a failure: every rank anew (default), or the lost rank alone, beside `@ett.restartable` functions.",
)
@click.option(
    "--restart-window", metavar="TIME|off", help="Count only the restarts of this long, such as 1h (default: all)."
)
@click.option("--job", metavar="NAME", help="Full name of the job, to resume it or to name a new one; else a fresh id.")
@click.option("--team", help="Team that the job's time is counted for.")
@click.option("--owner", help="Who is asked about this job.")
@click.option("--model", help="Short name of the model; job ids begin with it.")
@click.option(
    "--chaos", multiple=True, metavar="SPEC", help="Fail on purpose, such as kill:rank=1,step=120 (docs/chaos.md)."
)
@click.option("--resume", default="auto", show_default=True, metavar="auto|never|STEP", help="Where to begin.")
@click.option(
    "--from",
    "source",
    metavar="JOB[@STEP]|URI",
    help="Begin a new job with another's checkpoint; what changes stands in the recipe's [checkpoint.migrate].",
)
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a value of the recipe.")
@click.option("--checkpoint-interval", metavar="TEXT", help='"auto", "500 steps" or "6m" (recipes).')
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="From SIGTERM to SIGKILL (default: 30).")
@click.option(
    "--hang-after",
    metavar="TIME|auto|off",
    help="Longest time without a step or a commit (default: auto, from the job's own steps; 15m at least).",
)
@click.option(
    "--telemetry",
    type=click.Choice(typing.get_args(TelemetryMode)),
    help="required: no launch without the collector of telemetry.endpoint; off: send nothing.",
)
@click.option("--strict", is_flag=True, help="Exit with 6 if a job succeeded and its events were not delivered.")
@click.option(
    "--hooks",
    metavar="NAMES",
    help="What is seen of a script by itself: all, none, names, or -name (docs/zero_code.md).",
)
@click.option("--config", type=click.Path(path_type=Path), help="Site file; else $ETT_CONFIG or $ETT_HOME/ett.toml.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the command, the recipe and its local data; print the plan as JSON; start nothing.",
)
@click.option("-m", "is_module", is_flag=True, help="Run a module as `python -m` does.")
@click.argument(
    "target", nargs=-1, type=click.UNPROCESSED, metavar="RECIPE.toml | SCRIPT ARGS… | -m MODULE ARGS… | -- CMD…"
)
@click.pass_context
def command(ctx: click.Context, /, dry_run: bool, is_module: bool, target: tuple[str, ...], **given: Any) -> int:
    """Run a recipe, a script or a command under the supervisor.

    Workers start as torchrun starts them (RANK, WORLD_SIZE, MASTER_ADDR, …). A script that fails ends with its own exit
    code, 128 + n for a signal. With --job of a job that ran before and nothing else, its kept launch runs again.
    """
    flags = LaunchFlags(**given)
    _check_flags(flags)
    plan, sections, folder = _plan(flags, target, is_module, bool(ctx.meta.get("is_command")))
    migration: dict[str, Any] = {}
    if dry_run or flags.source is not None:
        _check_recipe(plan, sections, folder)  # before a model is built of it
        migration = _migration(plan, sections)
    if dry_run:
        shown = {"migration": migration} if migration else {}
        click.echo(json.dumps({"job": folder.name, "folder": str(folder.path), **asdict(plan), **shown}, indent=1))
        return 0
    for label, text in migration.get("lines", ()):
        _say(f"{label:<11} {text}")
    return run_job(plan, folder, sections, strict=flags.strict)


def run_job(plan: LaunchPlan, folder: JobFolder, sections: dict[str, Any] | None, *, strict: bool = False) -> int:
    """Run a job to its end under a supervisor and return the exit code of `ett launch`.

    Args:
        sections: the resolved recipe; None where there is none, or the kept one is to be used.
    Raises: Conflict: it runs already. RestartsSpent: the restart policy gave up.
    """
    stop = StopSignals()
    stop.install()
    telemetry = TelemetryAgent(folder, plan.telemetry, strict=strict)
    telemetry.check()
    otel = LiveExport(folder, plan.telemetry, _say)
    if not folder.exists:
        _check_recipe(plan, sections, folder)
        folder.create()
    lease = Lease(folder)
    drain_leftovers(folder.path)
    history = read_history(folder.events)
    if history.is_complete and plan.resume == "auto":
        if not history.status:
            end_complete_job(folder)
        _say(f"job {folder.name} is complete already")
        lease.release()
        return 0
    kept = KeptLaunch.of(folder)
    kept.check(plan, sections)
    _check_recipe(plan, sections, folder)
    for change in kept.drift(sections):
        _say(f"the recipe differs from the job's last launch: {change}")
    plan.keep(folder, sections, os.environ)
    _enter(plan.cwd)
    job = JobSupervisor(plan, folder, stop)
    try:
        telemetry.start()
        otel.start(os.environ)
        with folder.expected():
            job.open(history)
            job.say(f"job {folder.name}, attempt {job.attempt}: {' '.join([plan.target, *plan.args])}")
            outcome = _run_attempts(job)
        for unfired in job.unfired_faults():
            job.say(unfired)
        if job.is_refused(outcome) and kept.put_back():
            _say("nothing was trained; the job keeps the launch that it had before")
        code = _end(job, outcome)
    finally:
        job.close()
        for sender in (telemetry, otel):
            sender.tell_end()  # both send beside each other: whoever waits for a job waits for the slower one
        telemetry.end()
        otel.end()
        lease.release()
        _let_go_of_output()
    return telemetry.exit_code(code)


def _run_attempts(job: JobSupervisor) -> Outcome:
    # Lines of the workers come through here; whoever reads our pipe wants them as they come.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
    from ett.elastic_agent import run_agent  # torch: a second or more, and everything was checked by now

    return run_agent(job)


def _end(job: JobSupervisor, outcome: Outcome) -> int:
    name = job.folder.name
    if outcome.status == "succeeded":
        begin_publishing(job)
        job.end_job("succeeded")
        job.say(
            f"job {name} succeeded after {count(job.attempt, 'attempt')}   ·   "
            f"`ett report {name}` shows where the time went"
        )
        return 0
    if outcome.status == "preempted":
        return _end_preempted(job, outcome)
    job.end_job("failed")
    assert outcome.failure is not None and outcome.decision is not None
    said = f" ({outcome.cause})" if outcome.cause else ""
    at = f"; its last lines: {outcome.log_tail}" if outcome.log_tail else ""
    if outcome.decision.rule == "unhealthy_host":
        raise RestartsSpent(
            f"job {name}: {outcome.failure}{said} in attempt {job.attempt}; no restart: {outcome.decision.why}",
            do=f"{outcome.do}; then, or on another host{_left_behind(job)}, `ett launch --job {name}`",
            code="L010",
        )
    if job.recovery.max_restarts > 0 and outcome.decision.rule != "final_error":
        raise RestartsSpent(
            f"job {name}: {outcome.failure}{said} in attempt {job.attempt}; no restart: {outcome.decision.why}{at}",
            expected=f"the program's own exit code was {outcome.failure.exit_code}",
            do=f"mend the cause, then `ett launch --job {name}` goes on from its newest checkpoint, or from the "
            "beginning if it saved none",
        )
    job.say(f"job {name} failed: {outcome.failure}{said}{at}")
    return outcome.failure.exit_code


def _left_behind(job: JobSupervisor) -> str:
    if not job.has_buffer:
        return ""
    return f" (which lacks the commits that only this host's buffer holds: `ett checkpoint ls {job.folder.name}`)"


def _end_preempted(job: JobSupervisor, outcome: Outcome) -> int:
    name = job.folder.name
    resume = f"`ett launch --job {name}` resumes it"
    if outcome.failure is not None and not job.stop.is_urgent:
        at = _saved(outcome.saved)
        job.say(f"job {name} was stopped, and {outcome.failure} while stopping{at}   ·   {resume}")
        return outcome.failure.exit_code
    job.say(f"job {name} was stopped{_saved(outcome.saved)}   ·   {resume}")
    return 130 if job.stop.is_urgent else 143


def _saved(saved: SavedSteps | None) -> str:
    if saved is None:
        return ""
    if not saved.num_unsaved:
        return f", all that it trained is saved (step {saved.step})"
    return f"; {count(saved.num_unsaved, 'step')} after its last checkpoint (step {saved.step}) will be trained again"


def _check_flags(flags: LaunchFlags) -> None:
    load(SEAMS["fault_plan"]).parse(flags.chaos)
    if flags.resume not in ("auto", "never") and not flags.resume.isdecimal():
        raise UsageError(f"--resume {flags.resume!r}", expected="auto, never or the number of a step")
    if flags.job is not None:
        checked_name(flags.job)


def _plan(
    flags: LaunchFlags, target: tuple[str, ...], is_module: bool, is_command: bool
) -> tuple[LaunchPlan, dict[str, Any] | None, JobFolder]:
    home = ett_home(os.environ)
    sections: dict[str, Any] | None = None
    if flags.hooks is not None:
        parse_hooks(flags.hooks)
    if target:
        kind = _kind(target[0], is_module, is_command)
        if flags.hooks is not None and kind in ("recipe", "command"):
            raise UsageError("--hooks without a script or a module", expected="a Python program: SCRIPT or -m MODULE")
        if kind == "recipe":
            plan, sections = _recipe_plan(flags, target)
        else:
            plan = _script_plan(flags, kind, target)
    else:
        plan = _kept_plan(flags, home)
    load(SEAMS["fault_plan"]).parse(flags.chaos).check(plan.nproc)
    folder = JobFolder(home / "jobs" / flags.job) if flags.job else fresh_job(home, plan.model)
    plan = replace(plan, resume=flags.resume, chaos=flags.chaos, source=_source(flags, folder, home))
    return plan, sections, folder


def _source(flags: LaunchFlags, folder: JobFolder, home: Path) -> dict[str, Any]:
    """Return the commit that a new job begins with, or the one that this job began with; {} where there is none."""
    if flags.source is None:
        kept: dict[str, Any] = read_json(folder.launch_file).get("source") or {}
        return kept
    if flags.resume != "auto":
        raise UsageError(f"--from with --resume {flags.resume}", expected="--from alone: JOB@STEP names another step")
    if folder.exists:
        raise Conflict(
            f"there is a job {folder.name} already",
            expected="a new job, which --from begins",
            do=f"choose another --job; `ett launch --job {folder.name}` resumes that one",
        )
    found: dict[str, Any] = load(SEAMS["commit_source"])(flags.source, home)
    return found


def _migration(plan: LaunchPlan, sections: dict[str, Any] | None) -> dict[str, Any]:
    """Return what becomes of the commit's tables and tensors; of a program that is no recipe, it finds out itself."""
    if not plan.source:
        return {}
    if plan.kind != "recipe" or sections is None:
        return {"lines": [("begins with", f"commit {plan.source['seq']} of step {plan.source['step']}")]}
    found: dict[str, Any] = load(SEAMS["migration"])(sections, plan.source)
    return found


def _kind(first: str, is_module: bool, is_command: bool) -> Kind:
    if is_command:
        return "command"
    if is_module:
        return "module"
    if first.endswith(".toml"):
        return "recipe"
    if not Path(first).is_file():
        raise NotFound(
            f"script {first} does not exist",
            do="check the path; a program that is no Python script goes after `--`, a module after `-m`",
        )
    return "script"


def _recipe_plan(flags: LaunchFlags, target: tuple[str, ...]) -> tuple[LaunchPlan, dict[str, Any]]:
    if len(target) > 1:
        raise UsageError(
            f"{target[1]!r} after the recipe", expected="flags before the recipe, values as --set section.key=value"
        )
    given = {
        "job.team": flags.team,
        "job.owner": flags.owner,
        "job.model": flags.model,
        "launch.nproc": flags.nproc,
        "launch.nproc_min": flags.nproc_min,
        "recovery.max_restarts": flags.max_restarts,
        "recovery.restart": flags.restart,
        "recovery.restart_window": flags.restart_window,
        "recovery.grace_s": flags.grace,
        "telemetry.mode": flags.telemetry,
        "recovery.hang_after": flags.hang_after,
        "checkpoint.interval": flags.checkpoint_interval,
    }
    overrides = [*flags.overrides, *(f"{key}={value}" for key, value in given.items() if value is not None)]
    recipe = resolve(target[0], overrides, environ=os.environ, site=site_file(flags.config))
    job = recipe.sections["job"]
    plan = LaunchPlan(
        kind="recipe",
        target=str(Path(target[0]).absolute()),
        cwd=os.getcwd(),
        nproc=recipe.sections["launch"]["nproc"],
        nproc_min=recipe.sections["launch"]["nproc_min"],
        model=job["model"],
        team=job["team"],
        owner=job["owner"],
        recovery=recipe.sections["recovery"],
        telemetry=recipe.sections["telemetry"],
        config_hash=recipe.hash,
        overrides=tuple(overrides),
    )
    return plan, recipe.sections


def _check_recipe(plan: LaunchPlan, sections: dict[str, Any] | None, folder: JobFolder) -> None:
    """Raise what every rank would meet, once and before any starts: see the seam's implementation."""
    if plan.kind == "recipe":
        load(SEAMS["recipe_check"])(read_json(folder.recipe_file) if sections is None else sections, plan.cwd)


def _script_plan(flags: LaunchFlags, kind: Kind, target: tuple[str, ...]) -> LaunchPlan:
    for flag, value in (("--set", flags.overrides), ("--checkpoint-interval", flags.checkpoint_interval)):
        if value:
            raise UsageError(f"{flag} without a recipe", expected="a script takes its own arguments, after its name")
    job = JobConfig(model=flags.model or slug(Path(target[0]).stem), team=flags.team or "", owner=flags.owner or "")
    launch = LaunchConfig(nproc=flags.nproc or 1, nproc_min=flags.nproc_min or 0)
    return LaunchPlan(
        kind=kind,
        target=target[0],
        args=target[1:],
        cwd=os.getcwd(),
        nproc=launch.nproc,
        nproc_min=launch.nproc_min,
        model=job.model,
        team=job.team,
        owner=job.owner,
        recovery=_recovery(flags, {"max_restarts": 0}),
        telemetry=_telemetry(flags, asdict(resolve_telemetry(os.environ, site_file(flags.config)))),
    )


def _kept_plan(flags: LaunchFlags, home: Path) -> LaunchPlan:
    """The kept launch of --job; flags that change how it runs win over what was kept."""
    if not flags.job:
        raise UsageError(
            "nothing to launch", expected="RECIPE.toml, a script, -m module, -- CMD, or --job of a known job"
        )
    folder = JobFolder(home / "jobs" / flags.job)
    if not folder.exists:
        raise NotFound(
            f"there is no job {flags.job!r} under {home / 'jobs'}",
            do="`ett ls` lists jobs; to make this one, say what to run",
        )
    if flags.overrides or flags.checkpoint_interval:
        raise UsageError(
            "--set or --checkpoint-interval with a kept launch",
            expected="the recipe as well, which is then resolved anew",
            do=f"ett launch --job {flags.job} … RECIPE.toml",
        )
    kept = read_plan(folder)
    plan = replace(
        kept,
        nproc=flags.nproc or kept.nproc,
        # Who asks for fewer than was kept as the fewest gets them.
        nproc_min=flags.nproc_min or min(kept.nproc_min, flags.nproc or kept.nproc),
        team=flags.team or kept.team,
        owner=flags.owner or kept.owner,
        model=flags.model or kept.model,
    )
    JobConfig(model=plan.model, team=plan.team, owner=plan.owner)
    LaunchConfig(nproc=plan.nproc, nproc_min=plan.nproc_min)
    return replace(plan, recovery=_recovery(flags, plan.recovery), telemetry=_telemetry(flags, plan.telemetry))


def _recovery(flags: LaunchFlags, base: dict[str, Any]) -> dict[str, Any]:
    given = {
        "max_restarts": flags.max_restarts,
        "restart": flags.restart,
        "restart_window": flags.restart_window,
        "grace_s": flags.grace,
        "hang_after": flags.hang_after,
    }
    changed = base | {key: value for key, value in given.items() if value is not None}
    section = build_section(recovery_config(), changed, "recovery")
    return asdict(section)


def _telemetry(flags: LaunchFlags, base: dict[str, Any]) -> dict[str, Any]:
    # Not $ETT_TELEMETRY_HOOKS alone: what a person sets for one shell has a short name.
    given = {"mode": flags.telemetry, "hooks": flags.hooks or os.environ.get("ETT_HOOKS") or None}
    changed = base | {key: value for key, value in given.items() if value is not None}
    return asdict(build_section(TelemetryConfig, changed, "telemetry"))


def _let_go_of_output() -> None:
    """Keep Python from ending with an error of its own where the reader of our output is gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except FileNotFoundError as err:
        raise NotFound(f"the launch's working folder {cwd} is gone", do="make it again, or launch anew") from err


def _say(text: str) -> None:
    say(f"ett: {text}", err=True)
