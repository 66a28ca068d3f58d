"""What a rank's SIGKILL leaves of its records: everything that an emit had returned for."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from wait import wait_until

from ett.event_reader import read_folder

pytestmark = pytest.mark.process
PROGRAM = """
import mmap, struct, sys
import ett

run = ett.init()
file = open(sys.argv[1], "r+b")
counter = mmap.mmap(file.fileno(), 8)
number = 0
while True:
    run.emit("note", number=number)
    number += 1
    counter[:8] = struct.pack("<q", number)
"""


def test_sigkill_loses_no_record_whose_emit_had_returned(tmp_path: Path) -> None:
    (tmp_path / "counter").write_bytes(bytes(8))
    environ = os.environ | {"ETT_JOB": "j", "ETT_JOB_DIR": str(tmp_path), "ETT_ATTEMPT": "1", "RANK": "0"}
    rank = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "counter")], env=environ)
    with (tmp_path / "counter").open("r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
        wait_until(lambda: struct.unpack("<q", counter[:8])[0] > 5000)
        rank.kill()
        rank.wait()
        num_returned = struct.unpack("<q", counter[:8])[0]
    log = read_folder(tmp_path)
    numbers = [record.data["number"] for record in log.records if record.ev == "note"]
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) >= num_returned
    assert log.problems.lost_records == log.problems.corrupt_record == 0
