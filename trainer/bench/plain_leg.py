"""The plain leg of `ett bench ett`: torchrun and a stopwatch outside, which writes what `ett launch` would have.

torchrun writes no event log. Its ranks write theirs; who holds them, when, is told by an observer of processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ett.clock import LateClock
from ett.event_log import EventWriter
from ett.trainer.bench.campaign_job import NAME, Ended, end
from ett.trainer.bench.job_observer import Life, Observer

# What a rank is told in its environment: steps between two checkpoints, and which part of the model is compiled.
EVERY_STEPS, COMPILED_PART = "EVERY_STEPS", "COMPILED_PART"
MAX_RESTARTS = 2
# torchrun of torch 2.13 keeps one store for all attempts, in which ranks find the addresses of dead ones, and then wait
# for them until their time-out. With torch's own way out each attempt has a store of its own.
_STORE_OF_ITS_OWN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
_GRACE_S = 40.0  # in which torchrun ends its workers
_RESTARTS = b"TORCHELASTIC_RESTART_COUNT"


def attempt_of_plain_rank(environ: Mapping[bytes, bytes]) -> int | None:
    """Return the attempt of a rank that torchrun started; None: it is a child of one, which has got more words."""
    return None if b"ETT_ATTEMPT" in environ or _RESTARTS not in environ else 1 + int(environ[_RESTARTS])


def observed_records(
    lives: Mapping[int, Life], command_ns: tuple[int, int], poll_ns: int, *, num_ranks: int, is_done: bool
) -> list[tuple[int, str, dict[str, Any]]]:
    """Return (monotonic ns, kind, fields) of the records that a supervisor of these attempts would have written.

    The hosts stay allocated from the command's begin to its end. An attempt ends with the first look that sees none of
    its processes.
    """
    begun_ns, ended_ns = command_ns
    records: list[tuple[int, str, dict[str, Any]]] = [(begun_ns, "job_submitted", {"att": 0})]
    free_ns = begun_ns
    for number, life in sorted(lives.items()):
        records.append((free_ns, "allocated", {"att": number, "nodes": 1}))
        records.append(
            (max(free_ns, life.first_ns), "attempt_started", {"att": number, "nodes": 1, "world": num_ranks})
        )
        free_ns = min(life.last_ns + poll_ns, ended_ns, *(lives[n].first_ns for n in lives if n > number))
        is_last = number == max(lives)
        reason = {"reason": "completed"} if is_last and is_done else {"reason": "failed", "class": "infra"}
        records.append((free_ns, "attempt_ended", {"att": number, **reason}))
    return [*records, (ended_ns, "job_ended", {"att": 0, "status": "succeeded" if is_done else "failed"})]


class PlainJob:
    """One job's folder under `home`, as that of a CampaignJob."""

    def __init__(self, home: Path, sections: Mapping[str, Any], *, every: int, compiled: str, longest_s: float) -> None:
        """Args: sections: the resolved recipe. compiled: the part of the model that is compiled; "": all of it."""
        self._home, self._longest_s = home, longest_s
        self.job_dir = home / "jobs" / NAME
        self.job_dir.mkdir(parents=True)
        (self.job_dir / "recipe.json").write_text(json.dumps(sections))
        self._own_environ = {EVERY_STEPS: str(every), COMPILED_PART: compiled}
        self._num_ranks = sections["launch"]["nproc"]

    def run(self, chaos: Sequence[str], poll_s: float) -> Ended:
        """Return once torchrun has ended, which is told to where it takes too long; its code is then not 0."""
        begun_ns = time.monotonic_ns()
        with Observer(str(self.job_dir), poll_s, attempt_of_plain_rank) as observer:
            process = self._start(chaos)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._longest_s)
            finally:
                _end(process)
            code = process.returncode
            command_ns = (begun_ns, time.monotonic_ns())
        poll_ns = max(int(poll_s * 1e9), observer.longest_gap_ns)
        told = observed_records(observer.lives, command_ns, poll_ns, num_ranks=self._num_ranks, is_done=code == 0)
        self._write(told)
        metrics = self.job_dir / "metrics.jsonl"
        return Ended(
            code=code,
            err=(self._home / "err").read_text(errors="replace"),
            job_dir=self.job_dir,
            losses=metrics.read_text() if metrics.exists() else "",
            wall_s=(command_ns[1] - command_ns[0]) / 1e9,
            command_ns=command_ns,
        )

    def _start(self, chaos: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(self._num_ranks), "--max-restarts", str(MAX_RESTARTS)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ETT_")}
        own = {"ETT_JOB": NAME, "ETT_JOB_DIR": str(self.job_dir), "ETT_CHAOS": " ".join(chaos), "OMP_NUM_THREADS": "1"}
        with (self._home / "err").open("ab") as said:
            return subprocess.Popen(
                [*command, "-m", "ett.trainer.bench.plain_job"],
                cwd=self._home,
                env=clean | _STORE_OF_ITS_OWN | own | self._own_environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def _write(self, records: Sequence[tuple[int, str, Mapping[str, Any]]]) -> None:
        clock = LateClock()
        writer = EventWriter(self.job_dir / "events" / "0", "sup", {"job": NAME}, clock=clock)
        for mono_ns, ev, fields in records:
            with clock.at(mono_ns):
                writer.emit(ev, **fields)
        writer.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a torchrun that still runs; killed at once it would leave its workers behind."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    end(process)
