"""`ett bench faults`: thousands of faults injected into saves, commits and restores; none may be silent."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ett.bench import BenchResult
from ett.checkpoint.bench.every_byte import Flips, flip_every_byte
from ett.checkpoint.bench.faults.campaign import Campaign, scratch_folder
from ett.checkpoint.bench.faults.fault_process import in_processes
from ett.checkpoint.bench.faults.unverified import unverified
from ett.checkpoint.bench.faults.verdict import OUTCOMES
from ett.checkpoint.bench.faults.worlds import chain_world
from ett.figures import FIGURES, Measured

_WORKLOAD = FIGURES.parent / "workloads" / "faults.toml"
WRONG = ("silent", "crashed")


def run(quick: bool, path: Path = _WORKLOAD) -> BenchResult:
    """Run the campaign of faults.toml: the table [faults] of figures.toml, and what became of each kind and point."""
    workload = tomllib.loads(path.read_text())
    asked = {name: workload[f"quick_{name}" if quick else name] for name in ("faults_per_cell", "unverified_per_cell")}
    tallies = in_processes(workload["seed"], asked["faults_per_cell"])
    with scratch_folder() as scratch:
        bytes_flipped = _every_byte(scratch / "bytes", workload)
        with unverified():
            blind = Campaign(workload["seed"], scratch / "blind").run(
                asked["unverified_per_cell"], families=("damage",)
            )
    unseen = sum(tally.outcomes["silent"] for tally in blind)
    injected = sum(tally["count"] for tally in tallies)
    wrong = sum(tally[outcome] for tally in tallies for outcome in WRONG) + len(bytes_flipped.silent)
    flips = f"{bytes_flipped.injected} bytes flipped one by one"
    figures = [
        Measured(name="injected", unit="", samples=[injected], reason=_cells(tallies)),
        Measured(name="silent", unit="", samples=[wrong], reason=f"of these and of {flips}"),
        Measured(
            name="silent_without_verification",
            unit="",
            samples=[unseen],
            reason=f"of {sum(tally.count for tally in blind)} damaged files, with the reader's checks patched away",
        ),
    ]
    detail = {
        "cells": tallies,
        "every_byte": {"injected": bytes_flipped.injected, "silent": bytes_flipped.silent},
        "without_verification": [tally.as_json() for tally in blind],
    }
    return BenchResult(figures=figures, detail=detail, table=list(_table(tallies)))


def _cells(tallies: list[dict[str, Any]]) -> str:
    """Say how many cells there were, and how many faults each has at least."""
    least: dict[str, int] = {}
    for tally in tallies:
        least[tally["family"]] = min(tally["count"], least.get(tally["family"], tally["count"]))
    of_processes = least.pop("process")
    without = "" if "s3" in least else "; no S3 server here: make peers"
    return f"{len(tallies)} cells, {min(least.values())} or more each, {of_processes} of SIGKILL{without}"


def _every_byte(folder: Path, workload: dict[str, Any]) -> Flips:
    """Flip every byte of the files of a chain's newest commit, once: its base, its hot and cold files, tombstones."""
    world = chain_world(folder, workload["seed"])
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a flip of FORMAT.json is logged, each
    try:
        return flip_every_byte(world.folder, "hash")
    finally:
        logging.disable(level)


def _table(tallies: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each family and kind; then the commands that inject again what went wrong."""
    yield f"  {'family':<10} {'kind':<24} {'points':>6} {'faults':>7} " + " ".join(f"{name:>8}" for name in OUTCOMES)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for tally in tallies:
        groups.setdefault((tally["family"], tally["kind"]), []).append(tally)
    for (family, kind), cells in groups.items():
        sums = " ".join(f"{sum(cell[name] for cell in cells):>8}" for name in OUTCOMES)
        yield f"  {family:<10} {kind:<24} {len(cells):>6} {sum(cell['count'] for cell in cells):>7} {sums}"
    for tally in tallies:
        yield from (f"  {line}" for line in tally.get("wrong", ()))
