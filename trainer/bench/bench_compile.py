"""`ett bench compile`: a model's first step in a fresh process, with nothing, with this host's packs, with a bucket's.

A start's compilation is what it waits for until the end of its first step, once torch is imported and the model built,
less what a step costs: the rest of the fetch, which began first of all, the import of torch's compiler, tracing, and
what torch then finds or makes. Every process has an empty cache folder; the page cache is warm.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.bench import BenchResult
from ett.checkpoint.bench.folder_bucket import folder_bucket
from ett.compile_cache.cache import FOLDER
from ett.compile_cache.signing_key import VARIABLE
from ett.errors import ThresholdMissed
from ett.figures import Measured
from ett.recipe import resolve
from ett.trainer.compile_plan import compile_plan, recipe_key_parts
from ett.trainer.job_recipe import build_recipe

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = ROOT / "benchmarks" / "workloads" / "compile.toml"
WAYS = ("local", "remote")
LIMITS_S = {"warm_cut_where_cold_60s": 60.0, "warm_cut_where_cold_15s": 15.0}
Start = dict[str, Any]  # what compile_process prints


@dataclass(slots=True)
class Starts:
    """The starts of one model."""

    cold: list[Start] = field(default_factory=list)
    warm: dict[str, list[Start]] = field(default_factory=lambda: {way: [] for way in WAYS})

    @property
    def cold_s(self) -> float:
        return float(statistics.median(start["compile_s"] for start in self.cold))

    def cuts(self) -> list[float]:
        """Return the share of the cold compilation that each round's slower warm start has not."""
        rounds = zip(*self.warm.values(), strict=True)
        return [1.0 - max(start["compile_s"] for start in each) / self.cold_s for each in rounds]


def run(quick: bool, path: Path = WORKLOAD) -> BenchResult:
    """Measure the table [compile] of figures.toml.

    Raises: ThresholdMissed: a warm start computed other bits than the cold one, or a change of a recipe that no graph
        depends on changed its key.
    """
    workload = tomllib.loads(path.read_text())
    kept_keys, false_hits = _mutated(workload)
    starts = {name: _measured(name, workload, quick) for name in workload["models"]}
    warm = [start for each in starts.values() for way in WAYS for start in each.warm[way]]
    hits = [float(start["result"] == "hit" and not start["graphs_compiled"]) for start in warm]
    figures = [_cut(name, starts, limit_s) for name, limit_s in LIMITS_S.items()]
    figures += [
        Measured(
            name="unchanged_recipe_hit_rate", unit="", samples=[statistics.mean(hits)], reason=f"{len(hits)} starts"
        ),
        Measured(name="false_hits", unit="", samples=[float(len(false_hits))], reason=", ".join(false_hits)),
    ]
    detail = {name: {"cold": each.cold, **each.warm} for name, each in starts.items()}
    return BenchResult(figures=figures, detail={**detail, "kept_keys": kept_keys}, table=_lines(starts))


def _measured(name: str, workload: Mapping[str, Any], quick: bool) -> Starts:
    prefix = "quick_" if quick else ""
    starts = Starts()
    secret = secrets.token_hex()
    with tempfile.TemporaryDirectory(prefix=".ett-bench-compile-", dir=".") as folder:
        places = _Places(Path(folder).absolute(), name, workload, secret)
        for number in range(workload[f"{prefix}cold_rounds"]):
            starts.cold.append(_told(name, "cold", places.start(f"home-{number}")))
        with _bucket(places.folder / "home-0") as environ:
            for number in range(workload[f"{prefix}rounds"]):
                starts.warm["local"].append(_told(name, "local", places.start("home-0")))
                uri = f"s3://bench/{FOLDER}"
                remote = places.start(f"remote-{number}", uri, environ)
                starts.warm["remote"].append(_told(name, "remote", remote))
    digests = {start["digest"] for start in [*starts.cold, *starts.warm["local"], *starts.warm["remote"]]}
    if len(digests) != 1:
        raise ThresholdMissed(
            f"{name}: {len(digests)} different results of one step", expected="one: cold, local, remote"
        )
    return starts


@dataclass(slots=True)
class _Places:
    """Fresh processes of one model: each has a cache folder of torch's of its own."""

    folder: Path
    name: str
    workload: Mapping[str, Any]
    secret: str
    num_started: int = 0

    def start(self, home: str, uri: str = "", environ: Mapping[str, str] | None = None) -> Start:
        self.num_started += 1
        plan = {
            "name": self.name,
            "model": self.workload["models"][self.name],
            "threads": self.workload["threads"],
            "home": str(self.folder / home),
            "uri": uri,
            "folder": str(self.folder / f"torch-{self.num_started}"),
        }
        command = [sys.executable, "-m", "ett.trainer.bench.compile_process", json.dumps(plan)]
        own = {**os.environ, VARIABLE: self.secret, **(environ or {})}
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ThresholdMissed(f"a process of {self.name} ended with {done.returncode}: {done.stderr[-2000:]}")
        start: Start = json.loads(done.stdout.splitlines()[-1])
        return start


@contextmanager
def _bucket(home: Path) -> Iterator[dict[str, str]]:
    """Serve a home's packs as a bucket; yield what a process needs to reach it."""
    with folder_bucket(home) as port:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }


def _told(name: str, way: str, start: Start) -> Start:
    sys.stderr.write(f"  {name} {way}: {start['compile_s']:.2f} s, {start['result']}\n")
    return start


def _mutated(workload: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Return how many changes left the key as they should, and the changes that left it and should not have."""
    recipe = workload["models"]["dlrm"]["recipe"]
    mutations = workload["mutations"]
    before = _key(recipe)
    changed = [override for override in mutations["must_not_change"] if _key(recipe, override) != before]
    if changed:
        raise ThresholdMissed(f"{', '.join(changed)}: another key", expected="the same: no graph depends on it")
    false_hits = [override for override in mutations["must_change"] if _key(recipe, override) == before]
    return len(mutations["must_not_change"]), false_hits


def _key(recipe: str, *overrides: str) -> str:
    built = build_recipe(resolve(ROOT / recipe, overrides).sections)
    return recipe_key_parts(built, compile_plan(built, 1), {}).key


def _cut(name: str, starts: Mapping[str, Starts], limit_s: float) -> Measured:
    """Return the share of the compilation that a warm start saves, of the model that saves the least, in each round."""
    slow = {model: each.cuts() for model, each in starts.items() if each.cold_s >= limit_s}
    if not slow:
        longest = max(each.cold_s for each in starts.values())
        return Measured(
            name=name, unit="", reason=f"no model takes {limit_s:g} s cold here: the longest {longest:.1f} s"
        )
    least = [min(cuts) for cuts in zip(*slow.values(), strict=True)]
    return Measured(name=name, unit="", samples=least, reason=f"the least of {', '.join(slow)}")


def _lines(starts: Mapping[str, Starts]) -> list[str]:
    """Return what remains of each start, part by part."""
    lines = [
        f"  {'model':<10}{'start':<8}{'compile_s':>10}{'fetch':>8}{'imports':>9}{'first step':>12}{'second':>8}  graphs"
    ]
    for name, each in starts.items():
        for way, of_way in {"cold": each.cold, **each.warm}.items():
            middle = sorted(of_way, key=lambda start: float(start["compile_s"]))[len(of_way) // 2]
            parts = middle["seconds"]
            graphs = f"{middle['graphs_found']} found, {middle['graphs_compiled']} compiled"
            lines.append(
                f"  {name:<10}{way:<8}{middle['compile_s']:>10.2f}{parts['fetch']:>8.2f}{parts['imports']:>9.2f}"
                f"{parts['first_step']:>12.2f}{parts['second_step']:>8.3f}  {graphs}"
            )
    return lines
