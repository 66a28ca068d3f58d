"""`make demo`: train the example on two ranks, kill one, watch the job come back, and show where the seconds went."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from ett.errors import EttError, NotFound
from ett.recipe import resolve

KILLED_RANK = 1
# Fewer steps than these would end before there is a checkpoint to come back to: small files get smaller batches.
FEWEST_STEPS = 40
SAVES_PER_RUN = 8


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
    settings = [f"checkpoint.interval={interval} steps"]
    if smaller_batch_size != batch_size:
        settings.append(f"train.batch_size={smaller_batch_size}")
    if data:
        settings.append(f"data.path={data}")
    return DemoPlan(kill_step, tuple(settings))


@click.command()
@click.option("--data", default="", help="A file in Criteo's format, plain or gzip; without it one is generated.")
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
        click.echo("\n$ ett " + " ".join(f"'{word}'" if " " in word else word for word in words))
        done = subprocess.run([sys.executable, "-m", "ett", *words], check=False)
        if done.returncode:
            return done.returncode
    click.echo(summary(Path(os.environ.get("ETT_HOME", ".ett")) / "jobs" / job))
    return 0


def count_rows(data: str, limit: int = 500_000) -> int:
    """Return the number of lines of a plain or gzip file, at most `limit`; `limit` for a folder or a URL."""
    if "://" in data or Path(data).is_dir():
        return limit
    path = Path(data)
    if not path.is_file():
        raise NotFound(f"{path} does not exist", expected="a file in Criteo's format", do="check DATA=…")
    with path.open("rb") as plain:
        is_gzip = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path) if is_gzip else path.open("rb") as lines:
        return sum(1 for _ in itertools.islice(lines, limit))


def _absolute(data: str) -> str:
    return data if not data or "://" in data else str(Path(data).resolve())


def summary(job_dir: Path) -> str:
    """Return one paragraph on what the restored job learned."""
    result = json.loads((job_dir / "result.json").read_text())
    num_rows = f"{result['held_out_rows']:,} held-out rows"
    score = f"no AUC on {num_rows}" if result["auc"] is None else f"AUC {result['auc']:.4f} on {num_rows}"
    return (
        f"\nAfter the restart the job finished {result['step']} steps over {result['cursor']:,} samples: "
        f"{score}, last loss {result['loss']:.4f}.\n"
        f"Job folder: {job_dir}"
    )


if __name__ == "__main__":
    main()
