"""A killed ingest loses nothing and doubles nothing: killed at every statement, and at any instant, then done again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ett.event_line import encode_line
from ett.store import Store, open_store
from ett.store.folder_ingest import ingest_folder

pytestmark = [pytest.mark.process]

# Ingests FOLDER into DB in pieces; with K it kills itself before its K-th statement that writes.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from ett.store import database, folder_ingest, open_store
folder_ingest.PIECE_BYTES = 4000
left = int(sys.argv[3])
def counted(real):
    def call(*args):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return call
for name in ("run", "run_many"):
    setattr(database.SqliteDatabase, name, counted(getattr(database.SqliteDatabase, name)))
with open_store(sys.argv[2]) as store:
    print("open", flush=True)
    folder_ingest.ingest_folder(store, "job", Path(sys.argv[1]))
"""


def write_log(folder: Path) -> int:
    common = {"v": 1, "job": "job", "att": 1, "gen": 0, "host": "h", "boot": "b", "pid": 1, "ev": "step", "world": 2}
    for rank in (0, 1):
        path = folder / "events" / "1" / f"r{rank}-h-1-b.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            encode_line(common | {
                "src": f"r{rank}", "rank": rank, "seq": n, "wall_ns": 10**18 + n * 10**9, "mono_ns": n * 10**9,
                "step": n, "b_mono": n * 10**9, "e_mono": n * 10**9 + 10**8, "c0": n, "c1": n + 1,
            })
            for n in range(60)
        ]  # fmt: skip
        path.write_bytes(b"".join(lines[:30]) + b"bad\n" + b"".join(lines[30:]) + b"torn")
    return 120


def contents(store: Store) -> tuple[object, ...]:
    rejects = store._database.rows("SELECT place, code, line FROM reject ORDER BY file_id, place")
    positions = store._database.rows("SELECT next_byte, head_crc, tail_crc FROM file_position ORDER BY file_id")
    return dict(store.files("job")), rejects, positions, [row.ns for row in store.jobs()]


@pytest.fixture
def whole(tmp_path: Path) -> tuple[object, ...]:
    write_log(tmp_path / "job")
    with open_store(tmp_path / "whole.db") as store:
        assert ingest_folder(store, "job", tmp_path / "job").accepted == 120
        return contents(store)


def finish(tmp_path: Path, path: Path) -> tuple[object, ...]:
    with open_store(path) as store:
        ingest_folder(store, "job", tmp_path / "job")
        return contents(store)


@pytest.mark.slow
def test_killed_before_any_statement_and_done_again_it_is_the_same_store(
    tmp_path: Path, whole: tuple[object, ...]
) -> None:
    moment, killed = 1, True
    while killed:
        path = tmp_path / f"k{moment}.db"
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "job"), str(path), str(moment)]
        killed = subprocess.run(argv, check=False, capture_output=True).returncode == -signal.SIGKILL
        if killed:
            assert finish(tmp_path, path) == whole, f"killed before statement {moment}"
        moment += 3  # a transaction has more statements than three: every transaction is cut somewhere
    assert moment > 60


@pytest.mark.slow
def test_killed_at_any_instant_and_done_again_it_is_the_same_store(tmp_path: Path, whole: tuple[object, ...]) -> None:
    chance = random.Random(7)
    num_killed = 0
    for attempt in range(25):
        path = tmp_path / f"t{attempt}.db"
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "job"), str(path), "-1"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # it has opened the store: from here on it writes
        try:
            process.wait(chance.uniform(0, 0.06))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            num_killed += process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert finish(tmp_path, path) == whole
    assert num_killed > 3
