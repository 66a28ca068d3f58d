"""A collector and an agent as real processes, and a job's log that grows while they run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from wait import LONGEST_S, wait_until

from ett.event_line import encode_line
from ett.store import open_store

READY = re.compile(r"listening on (http://\S+:(\d+)) pid (\d+)")
NS = 1_000_000_000
START_NS = 1_900_000_000 * NS


class Collector:
    """`ett collect` on a free port of loopback; started again it takes the same port, as a service would."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder, self._args = folder, args
        self.store_path = folder / "ett.db"
        self._port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Collector:
        out = self.folder / "collector.out"
        said_before = len(READY.findall(out.read_text())) if out.exists() else 0
        with out.open("ab") as stdout, (self.folder / "collector.err").open("ab") as stderr:
            self.process = subprocess.Popen(
                [*ETT, "collect", "--bind", f"127.0.0.1:{self._port}", "--store", str(self.store_path), *self._args],
                stdout=stdout, stderr=stderr, stdin=subprocess.DEVNULL, env=clean_environ(), cwd=self.folder,
            )  # fmt: skip

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "collector.err").read_text()
            return len(READY.findall(out.read_text())) > said_before

        wait_until(is_ready, "the collector's ready line")
        self.url, port, pid = READY.findall(out.read_text())[-1]
        self._port = int(port)
        assert int(pid) == self.process.pid
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=LONGEST_S)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=LONGEST_S) as reply:
            return str(reply.read().decode())

    def metrics(self) -> dict[str, float]:
        rows = (line.rsplit(" ", 1) for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def event_counts(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, value in self.metrics().items():
            if name.startswith("ett_collector_events_total"):
                result = name.split('result="')[1].split('"')[0]
                found[result] = found.get(result, 0.0) + value
        return found

    def stored(self, job: str) -> dict[str, bytes]:
        with open_store(self.store_path) as store:
            return dict(store.files(job))


class GrowingLog:
    """`$ETT_HOME/jobs/<job>/events` of one supervisor and some ranks; each call appends whole lines to every file."""

    def __init__(self, home: Path, job: str, ranks: int = 2) -> None:
        self.job, self.events = job, home / "jobs" / job / "events"
        self._names = {f"r{rank}": f"1/r{rank}-h-{rank + 10}-bbbbbbbb.jsonl" for rank in range(ranks)}
        self._names["sup"] = "0/sup-h-9-bbbbbbbb.jsonl"
        self._seq = dict.fromkeys(self._names, 0)
        self.num_lines = 0
        for name in self._names.values():
            (self.events / name).parent.mkdir(parents=True, exist_ok=True)

    def append(self, steps: int) -> None:
        for src, name in self._names.items():
            with (self.events / name).open("ab") as file:
                file.write(b"".join(encode_line(self._record(src)) for _ in range(steps)))
            self.num_lines += steps

    def files(self) -> dict[str, bytes]:
        found = {name: (self.events / name).read_bytes() for name in self._names.values()}
        return {name: data for name, data in found.items() if data}

    def _record(self, src: str) -> dict[str, object]:
        seq = self._seq[src]
        self._seq[src] += 1
        now_ns = START_NS + seq * NS // 10
        record: dict[str, object] = {
            "v": 1, "job": self.job, "att": 1, "gen": 0, "src": src, "host": "h", "boot": "b" * 36, "pid": 9,
            "seq": seq, "wall_ns": now_ns, "mono_ns": now_ns - START_NS, "ev": "heartbeat", "dropped": 0,
        }  # fmt: skip
        if src == "sup" and seq == 0:
            return record | {"ev": "job_submitted", "att": 0, "team": "ads", "model": "ctr", "owner": "o"}
        if src == "sup" and seq == 1:
            return record | {"ev": "attempt_started", "nodes": 1, "world": len(self._names) - 1}
        if src != "sup":
            end = seq * NS // 10
            record |= {"ev": "step", "rank": int(src[1:]), "step": seq, "c0": seq, "c1": seq + 1, "world": 2}
            record |= {"b_mono": end - NS // 20, "e_mono": end}
        return record


ETT = (sys.executable, "-m", "ett")


def clean_environ(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
    return kept | {"OMP_NUM_THREADS": "1"} | more


def start_agent(folder: Path, home: Path, *args: str, **environ: str) -> subprocess.Popen[bytes]:
    with (folder / "agent.out").open("ab") as out, (folder / "agent.err").open("ab") as err:
        return subprocess.Popen(
            [*ETT, "sync", *args],
            stdout=out, stderr=err, stdin=subprocess.PIPE, env=clean_environ(ETT_HOME=str(home), **environ), cwd=folder,
        )  # fmt: skip


def write_case(events: Path, files: dict[str, list[dict[str, object]]], job: str) -> None:
    """Write a case's records as the log of `job`."""
    for name, records in files.items():
        path = events / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(encode_line(record | {"job": job}) for record in records))
