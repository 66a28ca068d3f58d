"""`make demo`: train the example on two ranks, kill one, watch the job come back, and show where the seconds went."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from ett.errors import EttError
from ett.recipe import resolve
from ett.trainer.data.criteo import criteo_rows
from ett.trainer.data.position import BEGINNING
from ett.trainer.progress import described

KILLED_RANK = 1
# Fewer steps than these would end before there is a checkpoint to come back to: small files get smaller batches.
FEWEST_STEPS = 40
SAVES_PER_RUN = 8
MOST_ROWS = 500_000  # a demo of a larger input trains and scores a part of it
MOST_SCORED_ROWS = 50_000
_COUNTED_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Where the fault comes, and what must be set for that."""

    kill_step: int
    settings: tuple[str, ...]  # of --set


def plan_demo(num_rows: int, batch_size: int, data: str) -> DemoPlan:
    """Kill at about two thirds of the run, between two checkpoints, so that steps are replayed and steps are left.

    Args:
        num_rows: of the input, held-out rows included.
        data: `data.path`; "" leaves the recipe's own.
    """
    smaller_batch_size = max(1, min(batch_size, num_rows // FEWEST_STEPS))
    num_steps = num_rows * 9 // 10 // smaller_batch_size
    interval = max(2, num_steps // SAVES_PER_RUN)
    kill_step = num_steps * 2 // 3 // interval * interval + max(1, interval * 2 // 3)
    # Steps of so small a run take less time than a save that is written beside them.
    settings = [f"checkpoint.interval={interval} steps", "checkpoint.background=false"]
    if smaller_batch_size != batch_size:
        settings.append(f"train.batch_size={smaller_batch_size}")
    if data:
        settings.append(f"data.path={data}")
    if num_rows >= MOST_ROWS:
        settings += [f"train.max_steps={num_steps}", f"eval.max_rows={MOST_SCORED_ROWS}"]
    return DemoPlan(kill_step, tuple(settings))


@click.command()
@click.option(
    "--data",
    default="",
    help="A file, folder or URL in Criteo's format, of which at most 500,000 rows are read; else one is generated.",
)
@click.option("--recipe", default="examples/criteo.toml", help="The recipe to run.")
def main(data: str, recipe: str) -> None:
    """Run the recipe with a fault in the middle and print its report."""
    try:
        code = run_demo(data, recipe)
    except EttError as err:
        click.echo(err.render(), err=True)
        code = err.exit_code
    sys.exit(code)


def run_demo(data: str, recipe: str) -> int:
    """Launch, report and summarise; return the exit code of what failed first, or 0."""
    sections = resolve(recipe).sections
    num_rows = count_rows(data) if data else sections["data"]["generate"]["rows"]
    plan = plan_demo(num_rows, sections["train"]["batch_size"], _absolute(data))
    job = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    fault = f"kill:rank={KILLED_RANK},step={plan.kill_step}"
    command = ["launch", "--job", job, "--chaos", fault]
    command += [word for setting in plan.settings for word in ("--set", setting)]
    for words in ([*command, recipe], ["report", job]):
        click.echo("\n$ ett " + shlex.join(words))
        sys.stdout.flush()
        done = subprocess.run([sys.executable, "-m", "ett", *words], check=False)
        if done.returncode:
            return done.returncode
    click.echo(summary(Path(os.environ.get("ETT_HOME", ".ett")) / "jobs" / job))
    return _check_failed_once(job, fault)


def _check_failed_once(job: str, fault: str) -> int:
    """A demo in which nothing was killed shows nothing: say so rather than praise it."""
    asked = [sys.executable, "-m", "ett", "report", job, "--json"]
    told = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)["data"]
    num_failures = told["interruptions"]["failures"]
    if num_failures == 1:
        return 0
    click.echo(
        f"error: {num_failures} failures where {fault} should have made one; this run shows no restart", err=True
    )
    return 1


def count_rows(data: str, limit: int = MOST_ROWS) -> int:
    """Return the number of rows of a file, a folder or an fsspec URL, text, gzip or Parquet, at most `limit`."""
    num_rows = 0
    with closing(criteo_rows(data).windows(_COUNTED_AT_ONCE, BEGINNING)) as windows:
        for window in windows:
            num_rows += window.num_rows
            if num_rows >= limit:
                return limit
    return num_rows


def _absolute(data: str) -> str:
    return data if not data or "://" in data else str(Path(data).resolve())


def summary(job_dir: Path) -> str:
    """Return one paragraph on what the restored job learned."""
    result = json.loads((job_dir / "result.json").read_text())
    return f"\nAfter the restart: {described(result)}.\nJob folder: {job_dir}"


if __name__ == "__main__":
    main()
