"""The fault campaign of `ett bench recovery`: faults of every kind on a small job, beside an undisturbed one."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

from ett.checkpoint.bench.seaweed import KEYS, find_weed, s3_options, seaweed
from ett.figures import FIGURES, Measured
from ett.trainer.bench.campaign_job import CampaignJob, Ended
from ett.trainer.bench.campaign_verdict import attempt_spans, compare_times, moments, wrong_bits, wrongs

WORKLOAD = FIGURES.parent / "workloads" / "recovery-campaign.toml"
Say = Callable[[str], None]
# Of all ranks, and those by spares; of the lost one alone, and that one by a spare.
Restart = Literal["attempt", "attempt_spares", "inprocess", "spare"]
CUT_S = 2.0  # that a host which is cut off lives on, before it is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Faults of one job, and how many failures they are."""

    name: str
    chaos: tuple[str, ...]
    failures: int
    quick: bool = False
    store: Literal["job", "shared", "bucket"] = "job"
    two_hosts: bool = False
    set: dict[str, Any] = field(default_factory=dict)

    @property
    def restart(self) -> Restart:
        has_spares = bool(self.set.get("recovery.spares"))
        if self.set.get("recovery.restart") == "inprocess":
            return "spare" if has_spares else "inprocess"
        return "attempt_spares" if has_spares else "attempt"

    @property
    def begins_with_a_kill_at_a_step(self) -> bool:
        """Whether its first failure is one that is timed."""
        first = next((spec for spec in self.chaos if not spec.startswith("slow:")), "")
        return first.startswith("kill:rank=") and ",step=" in first


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """What is run, and where."""

    cells: tuple[Cell, ...]
    settings: dict[str, Any]
    poll_s: float
    num_imports: int
    scratch: Path
    s3_url: str = ""  # "": there is no S3 server

    @classmethod
    def read(cls, path: Path, scratch: Path, s3_url: str, *, quick: bool) -> Campaign:
        workload = tomllib.loads(path.read_text())
        cells = [Cell(**row | {"chaos": tuple(row["chaos"])}) for row in workload["cell"]]
        return cls(
            cells=tuple(cell for cell in cells if cell.quick or not quick),
            settings=workload["job"],
            poll_s=workload["poll_s"],
            num_imports=workload["quick_imports" if quick else "imports"],
            scratch=scratch,
            s3_url=s3_url,
        )

    def why_not(self, cell: Cell) -> str:
        """Return why a cell cannot be run here, "" where it can."""
        if cell.two_hosts and not has_network_namespaces():
            return "the kernel allows no network namespace here"
        return "there is no SeaweedFS here (make peers)" if cell.store == "bucket" and not self.s3_url else ""

    def undisturbed(self) -> Ended:
        return self._job("undisturbed").run(self.settings, (), self.poll_s)

    def run(self, cell: Cell) -> Ended:
        """Return how the cell's job ended; of one that lost its host, on the other one."""
        folder = cell.name.replace(" ", "-").replace(",", "")[:40]
        settings = self.settings | cell.set
        if cell.store == "bucket":
            settings |= {"checkpoint.uri": new_bucket(self.s3_url)}
        elif cell.store == "shared":
            settings |= {"checkpoint.uri": str(self.scratch / folder / "shared")}
        if not cell.two_hosts:
            return self._job(f"{folder}/host").run(settings, cell.chaos, self.poll_s)
        lost = self._job(f"{folder}/lost", is_own_host=True)
        did_happen = lost.lose(settings, cell.chaos, CUT_S)
        ended = self._job(f"{folder}/other", is_own_host=True).run(settings, (), self.poll_s)
        if did_happen and ended.records("restore"):
            return ended
        said = "ett: no host was lost, or the other one had nothing to go on from"
        return replace(ended, code=ended.code or -1, err=f"{ended.err}\n{said}")

    def _job(self, name: str, *, is_own_host: bool = False) -> CampaignJob:
        recipe = self.scratch / "job.toml"
        recipe.touch()  # all of it is in the settings
        environ = s3_environ(self.s3_url) if self.s3_url else {}
        return CampaignJob(self.scratch / name, recipe, environ, is_own_host=is_own_host)


@dataclass(kw_only=True, slots=True)
class Findings:
    """What the cells came to."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    imports_s: list[float] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def times(self, name: str, restart: Restart) -> list[float]:
        return [row[name] for row in self.rows if row["restart"] == restart and name in row]

    @property
    def wrong(self) -> list[str]:
        return [f"{row['cell']}: {line}" for row in self.rows for line in row["wrong"]]


def campaign_figures(
    workload: Mapping[str, Any], quick: bool, say: Say, path: Path = WORKLOAD
) -> tuple[Sequence[Measured], dict[str, Any]]:
    """Run the cells of recovery-campaign.toml one after the other. `workload`, of the other parts, is not looked at."""
    with tempfile.TemporaryDirectory(prefix=".ett-bench-campaign-", dir=".") as made, ExitStack() as stack:
        scratch = Path(made).absolute()
        s3_url = stack.enter_context(seaweed(scratch / "bucket"))[0] if find_weed() else ""
        campaign = Campaign.read(path, scratch, s3_url, quick=quick)
        whole = campaign.undisturbed()
        say(f"undisturbed: {whole.wall_s:.1f} s")
        found = Findings(imports_s=[import_s()])
        for cell in campaign.cells:
            if reason := campaign.why_not(cell):
                found.left_out.append(f"{cell.name}: {reason}")
                continue
            row = judged(campaign, cell, whole)
            found.rows.append(row)
            say(f"{cell.name}: {row['wall_s']:.1f} s, {'; '.join(row['wrong']) or 'right'}")
            if len(found.imports_s) < campaign.num_imports:
                found.imports_s.append(import_s())
        unproven = blind_spots(whole)
    return figures_of(found, unproven), {
        "campaign": {
            "undisturbed_s": round(whole.wall_s, 2),
            "import_torch_s": [round(s, 2) for s in found.imports_s],
            "cells": found.rows,
            "left_out": found.left_out,
            "unseen_by_the_campaign": unproven,
        }
    }


def judged(campaign: Campaign, cell: Cell, whole: Ended) -> dict[str, Any]:
    """Run a cell and return its row: what was wrong, and what its first failure took."""
    ended = campaign.run(cell)
    found = wrongs(ended, whole, cell.failures, is_other_host=cell.two_hosts)
    row: dict[str, Any] = {
        "cell": cell.name,
        "chaos": list(cell.chaos),
        "wall_s": round(ended.wall_s, 2),
        "wrong": found,
        "restart": cell.restart,
    }
    if ended.code == 0 and cell.begins_with_a_kill_at_a_step:
        row |= {name: round(value, 3) for name, value in moments(ended).items()}
    return row


def blind_spots(whole: Ended, num_failures: int = 0) -> list[str]:
    """Return what a campaign that is told a lie does not notice: nothing, or it proves nothing.

    Args: num_failures: of the job that is lied about.
    """
    spans = attempt_spans(whole)
    lies = {
        "another digest of a table": wrong_bits(_with_another_digest(whole), whole),
        "another loss": wrong_bits(replace(whole, losses=whole.losses.replace("1", "2", 1)), whole),
        "a failure too many": wrongs(whole, whole, num_failures + 1),
        "an exit code": wrongs(replace(whole, code=1), whole, num_failures),
        "a clock that is off": compare_times(
            spans, {n: (a, b + 3 * whole.tolerance_s) for n, (a, b) in whole.lives_s.items()}, whole.tolerance_s
        ),
    }
    return [*(lie for lie, noticed in lies.items() if not noticed), *wrongs(whole, whole, num_failures)]


def _with_another_digest(whole: Ended) -> Ended:
    tables = dict(whole.facts["tables"])
    name = next(iter(tables))
    rows, digest = tables[name]
    tables[name] = (rows, digest[:-1] + ("0" if digest[-1] != "0" else "1"))
    return replace(whole, facts=whole.facts | {"tables": tables})


def figures_of(found: Findings, unproven: Sequence[str]) -> list[Measured]:
    import_torch_s = statistics.median(found.imports_s)
    detected = [s for way in get_args(Restart) for s in found.times("detected_s", way)]
    whole, inprocess = found.times("back_s", "attempt_spares"), found.times("back_s", "spare")
    wrong = len(found.wrong) + len(unproven)
    cells = f"of {len(found.rows)} jobs{', '.join(['', *found.left_out])}"
    return [
        Measured(name="dead_rank_detected_s", unit="s", samples=detected, reason="from the kill to the record of it"),
        Measured(
            name="process_restart_vs_import_torch",
            unit="x",
            samples=[back_s / import_torch_s for back_s in whole],
            reason="from the kill to the first step, without reading, where spares take all places; import torch takes "
            f"{import_torch_s:.1f} s here",
        ),
        Measured(
            name="inprocess_restart_s",
            unit="s",
            samples=inprocess,
            reason="from the kill to the first step of all ranks, without reading; a spare takes the lost one's place",
        ),
        Measured(
            name="campaign_wrong_results",
            unit="",
            samples=[wrong],
            reason=f"{cells}{': ' + '; '.join([*found.wrong, *unproven]) if wrong else ''}",
        ),
    ]


def import_s() -> float:
    """Return how long a process takes that only imports torch."""
    begun_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begun_s


def has_network_namespaces() -> bool:
    try:
        return subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def new_bucket(s3_url: str) -> str:
    """Return the uri of a folder of a new bucket."""
    from ett.checkpoint.s3_store import S3Store

    store = S3Store(f"s3://campaign-{uuid4().hex[:12]}/checkpoints", options=s3_options(s3_url))
    store.client.run(lambda: store.client.request("create_bucket"))
    return store.uri


def s3_environ(s3_url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": s3_url,
        "AWS_ACCESS_KEY_ID": KEYS["key"],
        "AWS_SECRET_ACCESS_KEY": KEYS["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
