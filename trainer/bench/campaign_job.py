"""A job of the fault campaign: launched as a user launches it, watched from outside, on a host of its own if asked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.event_reader import read_folder
from ett.event_schema import Record
from ett.ring_folder import ring_folder
from ett.trainer.bench.job_observer import Observer

NAME = "campaign"
LONGEST_S = 300.0
_LOOK_S = 0.02
# A host: a process with a network of its own, whose loopback is up.
_HOST = (
    "import os, sys; from ett.recovery.own_network import set_links; set_links(up=True); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What a job came to, and what an observer saw of it who knows nothing of its log."""

    code: int
    err: str
    job_dir: Path
    facts: dict[str, Any] = field(default_factory=dict)  # of `ett checkpoint show`; empty: it has none
    losses: str = ""
    report: dict[str, Any] = field(default_factory=dict)  # of `ett report`
    lives_s: dict[int, tuple[float, float]] = field(default_factory=dict)  # attempt -> monotonic, first and last seen
    tolerance_s: float = 0.0
    wall_s: float = 0.0  # of the command
    command_ns: tuple[int, int] = (0, 0)  # monotonic, its begin and its end

    def records(self, *kinds: str) -> list[Record]:
        found = read_folder(self.job_dir).records
        return sorted((r for r in found if r.ev in kinds), key=lambda r: (r.mono_ns, r.seq))


class CampaignJob:
    """One job's folder under `home`."""

    def __init__(
        self,
        home: Path,
        recipe: Path,
        environ: Mapping[str, str] | None = None,
        *,
        is_own_host: bool = False,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._home, self._recipe, self._own_environ, self._is_own_host = home, recipe, environ or {}, is_own_host
        self._longest_s = longest_s
        self.job_dir = home / "jobs" / NAME
        home.mkdir(parents=True, exist_ok=True)

    def start(self, settings: Mapping[str, Any], chaos: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
        words += [word for spec in chaos for word in ("--chaos", spec)]
        command = [sys.executable, "-m", "ett", "launch", "--job", NAME, *words, str(self._recipe)]
        if self._is_own_host:
            command = ["unshare", "--net", sys.executable, "-c", _HOST, *command]
        with (self._home / "err").open("ab") as said:
            return subprocess.Popen(
                command,
                cwd=self._home,
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def run(self, settings: Mapping[str, Any], chaos: Sequence[str], poll_s: float) -> Ended:
        """Return once the job has ended. Raises: subprocess.TimeoutExpired: it does not."""
        begun_ns = time.monotonic_ns()
        with Observer(str(self.job_dir), poll_s) as observer:
            process = self.start(settings, chaos)
            try:
                code = process.wait(self._longest_s)
            finally:
                end(process)
            ended_ns = time.monotonic_ns()
        shutil.rmtree(ring_folder(self.job_dir), ignore_errors=True)
        metrics = self.job_dir / "metrics.jsonl"
        return Ended(
            code=code,
            err=(self._home / "err").read_text(errors="replace"),
            job_dir=self.job_dir,
            facts=same_facts(self.asked("checkpoint", "show", NAME, "--digest")),
            losses=metrics.read_text() if metrics.exists() else "",
            report=self.asked("report", NAME),
            lives_s={att: (life.first_ns / 1e9, life.last_ns / 1e9) for att, life in observer.lives.items()},
            tolerance_s=2 * max(poll_s, observer.longest_gap_ns / 1e9),  # a poll of the observer and one of ours
            wall_s=(ended_ns - begun_ns) / 1e9,
            command_ns=(begun_ns, ended_ns),
        )

    def lose(self, settings: Mapping[str, Any], chaos: Sequence[str], after_s: float) -> bool:
        """Start the job; `after_s` after a fault has happened take the host away, with all that it has on its disk.

        Returns: whether the fault happened.
        """
        process = self.start(settings, chaos)
        try:
            until_s = time.monotonic() + LONGEST_S
            while process.poll() is None and time.monotonic() < until_s and "ett chaos: " not in self._said():
                time.sleep(_LOOK_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
            return "ett chaos: " in self._said()
        finally:
            end(process)
            shutil.rmtree(ring_folder(self.job_dir), ignore_errors=True)
            shutil.rmtree(self._home)

    def _said(self) -> str:
        return (self._home / "err").read_text(errors="replace")

    def asked(self, *words: str) -> dict[str, Any]:
        """Return what an `ett` command says of the job as JSON; empty where it fails."""
        command = [sys.executable, "-m", "ett", *words, "--json"]
        asked = subprocess.run(
            command,
            cwd=self._home,
            env=self._environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=self._longest_s,
        )
        data: dict[str, Any] = json.loads(asked.stdout)["data"] if asked.returncode == 0 else {}
        return data

    def _environ(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ETT_")}
        return clean | {"ETT_HOME": str(self._home), "OMP_NUM_THREADS": "1"} | dict(self._own_environ)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a launch that still runs; its guardian ends its workers."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def same_facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two jobs have in common if and only if they hold the same model at the same place in the data."""
    if not shown:
        return {}
    tables = {table["name"]: (table["rows"], table["digest"]) for table in shown["tables"]}
    return {"step": shown["step"], "cursor": shown["cursor"], "dense": shown["dense"]["digest"], "tables": tables}
