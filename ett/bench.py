"""`ett bench NAME`: every figure of a table beside its target, from a benchmark that checks itself first."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ett.errors import UsageError
from ett.figures import Measured, judge, load_targets
from ett.seams import BENCHES, RESUMABLE_BENCHES, load
from ett.versions import ett_version, version_of

PACKAGES = ("torch", "numpy", "xxhash", "zstandard")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchResult:
    """What a benchmark returns after its own correctness check passed; it raises instead where the check fails.

    table: lines of text that people see below the figures, in place of `detail`.
    """

    figures: Sequence[Measured]
    detail: dict[str, Any] = field(default_factory=dict)
    table: Sequence[str] = ()


Bench = Callable[..., BenchResult]  # takes `quick`, and one of RESUMABLE_BENCHES a file of what is done, or None


@click.command(epilog="NAME: " + ", ".join(sorted(BENCHES)))
@click.argument("name", metavar="NAME")
@click.option("--quick", is_flag=True, help="Smaller workloads; ends within 10 minutes on two cores.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Keep what is done in FILE, and go on from there ({', '.join(sorted(RESUMABLE_BENCHES))}).",
)
def command(name: str, quick: bool, as_json: bool, resume: Path | None) -> int:
    """Run the benchmark NAME and print its figures; exit code 9 if one misses its target."""
    if name not in BENCHES:
        raise UsageError(f"no benchmark {name!r}", expected=", ".join(sorted(BENCHES)))
    is_resumable = name in RESUMABLE_BENCHES
    if resume is not None and not is_resumable:
        raise UsageError(
            f"--resume with the benchmark {name!r}, which is run as a whole",
            expected=", ".join(sorted(RESUMABLE_BENCHES)),
        )
    targets = load_targets(name, quick=quick)
    bench: Bench = load(BENCHES[name])
    result = bench(quick, resume) if is_resumable else bench(quick)
    kind = machine_kind()
    rows = judge(targets, result.figures, kind)
    data = {
        "command": "ett bench " + " ".join(sys.argv[2:] or [name]),
        "machine": machine_here(),
        "versions": {package: version_of(package) for package in PACKAGES}
        | {"ett": ett_version(), "python": platform.python_version()},
        "commit": commit_here(),
        "figures": rows,
        "detail": result.detail,
    }
    if as_json:
        click.echo(json.dumps({"schema": "ett.bench/v1", "data": data, "warnings": []}, indent=1))
    else:
        click.echo("\n".join([_text(data), *result.table]))
    return 9 if any(row["met"] is False for row in rows) else 0


def machine_kind() -> str:
    """Return "h200" where an H200 is present, else "cpu"; asks the driver's files, so that torch is not imported."""
    cards = Path("/proc/driver/nvidia/gpus").glob("*/information")
    return "h200" if any("H200" in card.read_text() for card in cards) else "cpu"


def machine_here() -> dict[str, Any]:
    """Return what figures depend on of this machine, and how busy it is."""
    model = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return {"kind": machine_kind(), "cpu": model, "cores": os.cpu_count(), "load_1m": round(os.getloadavg()[0], 2)}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def commit_here() -> str | None:
    """Return the commit that runs, with "-dirty" where files differ from it; None outside of a checkout."""
    here = Path(__file__).resolve().parent
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
        )
    except OSError:  # git is not there
        return None
    return asked.stdout.strip() or None


def _text(data: dict[str, Any]) -> str:
    machine = data["machine"]
    lines = [f"{data['command']}   {machine['cpu']}, {machine['cores']} cores, load {machine['load_1m']}"]
    for row in data["figures"]:
        met = {True: "met", False: "MISSED", None: "-"}[row["met"]]
        value = "null" if row["value"] is None else f"{row['value']:,.4g} {row['unit']}"
        spread = "" if row["spread"] is None else f" ±{row['spread']:.2g} (n={row['n']})"
        lines.append(
            f"  {row['name']:<38} {value + spread:<36} {row['op']} {row['target']:<10g} {met:<7} {row['reason']}"
        )
    return "\n".join(lines)
