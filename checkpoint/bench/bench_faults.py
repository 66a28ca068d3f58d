"""`ett bench faults`: thousands of faults injected into saves, commits and restores; none may be silent."""

from __future__ import annotations

import logging
import resource
import time
import tomllib
from pathlib import Path
from typing import Any

from ett.bench import BenchResult
from ett.checkpoint.bench.every_byte import Flips, flip_every_byte
from ett.checkpoint.bench.faults.campaign import Campaign, scratch_folder
from ett.checkpoint.bench.faults.fault_process import in_processes
from ett.checkpoint.bench.faults.protocol_points import Amount
from ett.checkpoint.bench.faults.tally_groups import COLUMNS, groups_of, least_json, rows_json, say_least, table_of
from ett.checkpoint.bench.faults.unverified import unverified
from ett.checkpoint.bench.faults.worlds import chain_world
from ett.figures import FIGURES, Measured

_WORKLOAD = FIGURES.parent / "workloads" / "faults.toml"
WRONG = ("silent", "crashed")


def run(quick: bool, path: Path = _WORKLOAD) -> BenchResult:
    """Run the campaign of faults.toml: the table [faults] of figures.toml, and what became of each kind and point."""
    workload = tomllib.loads(path.read_text())

    def asked(name: str) -> int:
        return int(workload[f"quick_{name}" if quick else name])

    amount = Amount(per_point=asked("faults_per_point"), least=asked("least_per_cell"))
    begin_s = time.perf_counter()
    tallies = in_processes(workload["seed"], amount)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = round(time.perf_counter() - begin_s)
    with scratch_folder() as scratch:
        bytes_flipped = _every_byte(scratch / "bytes", workload)
        with unverified():
            campaign = Campaign(workload["seed"], scratch / "blind")
            blind = campaign.run(campaign.work(Amount(per_point=asked("unverified_per_cell")), ("damage",)))
    groups = groups_of(tallies)
    unseen = sum(tally.outcomes["silent"] for tally in blind)
    wrong = sum(group.outcomes[outcome] for group in groups for outcome in WRONG) + len(bytes_flipped.silent)
    flips = f"{bytes_flipped.injected} bytes flipped one by one"
    injected = sum(group.count for group in groups)
    figures = [
        Measured(name="injected", unit="", samples=[injected], reason=say_least(groups, amount)),
        Measured(name="silent", unit="", samples=[wrong], reason=f"of these and of {flips}"),
        Measured(
            name="silent_without_verification",
            unit="",
            samples=[unseen],
            reason=f"of {sum(tally.count for tally in blind)} damaged files, with the reader's checks patched away",
        ),
    ]
    detail = {
        **least_json(groups, amount),
        "wall_s": wall_s,
        "cpu_s": round(spent.ru_utime + spent.ru_stime),  # of its processes, the S3 servers included
        "columns": COLUMNS,
        "points": rows_json(groups),
        "wrong": [line for group in groups for line in group.wrong],
        "every_byte": {"injected": bytes_flipped.injected, "silent": bytes_flipped.silent},
        "without_verification": rows_json(groups_of([tally.as_json() for tally in blind])),
    }
    return BenchResult(figures=figures, detail=detail, table=list(table_of(groups)))


def _every_byte(folder: Path, workload: dict[str, Any]) -> Flips:
    """Flip every byte of the files of a chain's newest commit, once: its base, its hot and cold files, tombstones."""
    world = chain_world(folder, workload["seed"])
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a flip of FORMAT.json is logged, each
    try:
        return flip_every_byte(world.folder, "hash")
    finally:
        logging.disable(level)
