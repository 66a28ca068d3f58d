"""A program with hooks, started as a launch's worker starts it but without a supervisor; and the same one plainly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wait import LONGEST_S

from ett.event_reader import read_folder
from ett.event_schema import Record
from ett.launch_plan import LaunchPlan


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


class HookedProgram:
    """`script` in `folder`, with and without hooks; what the hooks wrote is in `records`."""

    def __init__(self, folder: Path, *args: str, kind: Literal["script", "module"] = "script") -> None:
        self.folder, self._args, self._kind = folder, args, kind
        self.job_dir = folder / "job"

    def plainly(self, **environ: str) -> Ended:
        return self._run(self._plan("none").program(), _clean_environment() | environ)

    def hooked(self, hooks: str = "all", *, attempt: int = 1, rank: int = 0, world: int = 1, **environ: str) -> Ended:
        plan = self._plan(hooks)
        env = _clean_environment() | environ
        env |= plan.environment(env)
        env |= {"ETT_JOB": "j", "ETT_JOB_DIR": str(self.job_dir), "ETT_ATTEMPT": str(attempt)}
        if world > 1:
            env |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
        ended = self._run(plan.program(), env)
        assert [record.data["error"] for record in self.records("hook_failed")] == []
        return ended

    def records(self, *kinds: str) -> list[Record]:
        """Return the records of those kinds, in the order of their times."""
        if not (self.job_dir / "events").is_dir():
            return []
        log = read_folder(self.job_dir)
        return sorted((r for r in log.records if r.ev in kinds), key=lambda r: (r.mono_ns, r.seq))

    def spans(self, attempt: int = 1) -> list[tuple[str, int, int]]:
        """Return (name, begin, end) of the attempt's ended spans, by begin."""
        begins = {r.data["id"]: r for r in self.records("span_begin") if r.att == attempt}
        ends = {r.data["id"]: r for r in self.records("span_end") if r.att == attempt}
        found = [(r.data["name"], r.mono_ns, ends[key].mono_ns) for key, r in begins.items() if key in ends]
        return sorted(found, key=lambda span: span[1])

    def _plan(self, hooks: str) -> LaunchPlan:
        target, *args = self._args
        return LaunchPlan(
            kind=self._kind, target=target, args=tuple(args), cwd=str(self.folder), telemetry={"hooks": hooks}
        )

    def _run(self, command: list[str], environ: dict[str, str]) -> Ended:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


def _clean_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    return kept | {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PATH": os.path.dirname(sys.executable) + ":/usr/bin:/bin",
    }
