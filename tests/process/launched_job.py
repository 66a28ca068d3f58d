"""A job started as a user starts it: the `ett` command in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wait import LONGEST_S
from warm_python import WarmProcess, start_warm

from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.store import Store
from ett.checkpoint.verify import with_digests
from ett.event_reader import read_folder
from ett.event_schema import Record
from ett.guardian import Watched
from ett.job_folder import JobFolder
from ett.ring_folder import ring_folder

PROGRAMS = Path(__file__).parent / "programs"
NAME = "j"
Started = subprocess.Popen[bytes] | WarmProcess


class LaunchedJob:
    """`ett launch --job j …` under `folder`; output lands in `folder`/out and /err."""

    def __init__(self, folder: Path, *, is_warm: bool = True) -> None:
        """Args: is_warm: fork launches from a Python that has imported what they import: 2 s of a processor each."""
        self.folder, self._is_warm = folder, is_warm
        self.job_dir = folder / ".ett" / "jobs" / NAME
        self._started: list[Started] = []

    def start(self, *args: str, **environ: str) -> Started:
        return self._start(self._is_warm, "-m", "ett", "launch", "--job", NAME, *args, **environ)

    def start_ett(self, *args: str, **environ: str) -> Started:
        return self._start(False, "-m", "ett", *args, **environ)

    def start_program(self, *args: str, **environ: str) -> Started:
        """Start Python with these arguments: a program that launches."""
        return self._start(self._is_warm, *args, **environ)

    def _start(self, is_warm: bool, *args: str, **environ: str) -> Started:
        env = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
        env |= {"OMP_NUM_THREADS": "1"} | environ
        self._started.append(self._start_warm(args, env) if is_warm else self._start_cold(args, env))
        return self._started[-1]

    def _start_warm(self, args: Sequence[str], env: dict[str, str]) -> WarmProcess:
        return start_warm(list(args), env, self.folder, self.folder / "out", self.folder / "err")

    def _start_cold(self, args: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, *args], cwd=self.folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env
            )

    def run(self, *args: str, **environ: str) -> int:
        """Return the exit code."""
        return self.start(*args, **environ).wait(timeout=LONGEST_S)

    def end(self) -> None:
        """Kill the supervisors that still run; their guardians end the rest. What they left in memory goes, too."""
        for supervisor in self._started:
            supervisor.kill()
            supervisor.wait()
        shutil.rmtree(ring_folder(self.job_dir), ignore_errors=True)

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def digests(self, store: Store | None = None) -> dict[str, Any]:
        """Return the rows and digests of the newest commit, computed where it stores none: what a restore would have.

        Args: store: where the job saves, if not in its folder.
        """
        store = store or LocalStore(self.job_dir / "checkpoints")
        commit = with_digests(store, find_commit(store, None)[0])
        assert commit.digest is not None and commit.dense is not None
        tables = {table.spec.name: {"rows": table.num_rows, "digest": table.digest} for table in commit.tables}
        return {"digest": commit.digest, "tables": tables, "dense": commit.dense.digest}

    def records(self, *kinds: str) -> list[Record]:
        """Return the log's records of those kinds in order of time; all files must be whole."""
        if not (self.job_dir / "events").is_dir():
            return []
        log = read_folder(self.job_dir)
        return sorted((r for r in log.records if r.ev in kinds), key=lambda r: (r.wall_ns, r.seq))

    def ends(self) -> list[dict[str, Any]]:
        return [{"att": record.att, **record.data} for record in self.records("attempt_ended")]

    def processes(self, attempt: int) -> list[int]:
        """Return the attempt's live processes: workers, and whatever they started."""
        watched = Watched(str(self.job_dir))
        for identity in JobFolder(self.job_dir).read_workers(attempt).values():
            watched.add(attempt, identity.pid, identity.start_ticks)
        return watched.alive()


NewJob = Callable[[], LaunchedJob]
