"""How much memory `ett publish` takes for a table that is larger than it: a process of its own, all that it holds.

`python -m ett.checkpoint.bench.bench_publish [--quick]` measures that alone, of the table of [memory] in
benchmarks/workloads/publish.toml.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

from ett.checkpoint.bench.large_commit import are_rows, write_large_commit
from ett.checkpoint.bench.resident_memory import resident_mib
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.publication_log import PublicationLog
from ett.checkpoint.publish import problems_of
from ett.checkpoint.published_rows import table_rows
from ett.cli import run
from ett.errors import ThresholdMissed
from ett.figures import FIGURES, Measured

WORKLOAD = FIGURES.parent / "workloads" / "publish.toml"
_GB = 10**9


def measure_publish_memory(quick: bool, path: Path = WORKLOAD) -> Measured:
    """Return the most memory of a process that publishes a table of a folder of this one; it holds nothing else.

    Raises: ThresholdMissed: it failed, or what is published is not what was committed.
    """
    plan = tomllib.loads(path.read_text())["memory"]
    table_gb = plan["quick_gb" if quick else "gb"]
    with tempfile.TemporaryDirectory(prefix=".ett-bench-publish-", dir=".") as folder:
        job, to = Path(folder).absolute() / "job", Path(folder).absolute() / "out"
        commit = write_large_commit(LocalStore(job), int(table_gb * _GB), plan["deltas"], plan["dense_mib"] << 20)
        peak_mib = _published(job, to)
        _check(to, commit.tables[0].num_rows)
    reason = "the process's peak, Python and torch included"
    if table_gb != plan["gb"]:
        reason += f"; of a table of {table_gb:g} GB: --quick"
    return Measured(name="publish_memory_mib_10gb_table", unit="MiB", samples=[peak_mib], reason=reason)


def _published(job: Path, to: Path) -> float:
    """Publish in a process, and return the most memory that it had, in MiB."""
    argv = [sys.executable, "-m", "ett.checkpoint.bench.bench_publish", "--publish", str(job), str(to)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ThresholdMissed(f"`ett publish` ended with {done.returncode}: {done.stderr[-1000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["peak_mib"])


def _check(to: Path, num_rows: int) -> None:
    """Raises: ThresholdMissed: the artefact is damaged, or has other rows than the table, or others' values."""
    store = LocalStore(to)
    (publication,) = PublicationLog(store).read_all()[0]
    if problems := problems_of(store, publication, verify=True):
        raise ThresholdMissed(problems[0])
    (table,) = publication.tables
    if (found := sum(file.num_rows for file in table.files)) != num_rows:
        raise ThresholdMissed(f"{found} rows were published", expected=f"{num_rows}, as were committed")
    for file in (table.files[0], table.files[-1]):
        ids, rows = table_rows(store, [replace(table, files=(file,), num_rows=file.num_rows)])
        if not are_rows(ids, rows):
            raise ThresholdMissed(f"{file.stored.path} has other rows than were committed")


def main(argv: list[str]) -> None:
    if argv[:1] == ["--publish"]:
        code = run(["publish", argv[1], "--to", argv[2], "--json"])
        print(json.dumps({"peak_mib": round(resident_mib("VmHWM"), 1)}))
        sys.exit(code)
    figure = measure_publish_memory(argv[:1] == ["--quick"])
    print(json.dumps({"name": figure.name, "unit": figure.unit, "value": figure.value, "reason": figure.reason}))


if __name__ == "__main__":
    main(sys.argv[1:])
