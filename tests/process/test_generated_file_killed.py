from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wait import LONGEST_S, wait_until

from ett.trainer.data.config import GenerateConfig
from ett.trainer.data.generated_file import ensure_generated
from ett.trainer.data.generator import criteo_lines

pytestmark = pytest.mark.process

CONFIG = GenerateConfig(rows=50, seed=4)
GENERATE = """
import sys
from pathlib import Path
from ett.trainer.data.config import GenerateConfig
from ett.trainer.data.generated_file import ensure_generated
print(ensure_generated(GenerateConfig(rows=50, seed=4), Path(sys.argv[1])).stat().st_ino)
"""
# Half of the lines are in the file, flushed, when this one stands still.
STAND_STILL = (
    """
import signal
from ett.trainer.data import generated_file
def half(rows, seed):
    yield b"0\\t" * 100_000
    signal.pause()
generated_file.criteo_lines = half
"""
    + GENERATE
)


def start(program: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_no_file_of_the_final_name(tmp_path: Path) -> None:
    writer = start(STAND_STILL, tmp_path)
    try:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(".*.tmp")), "half a file")
        waiter = start(GENERATE, tmp_path)  # another rank: the lock is the dead process's until the kernel frees it
        assert not list(tmp_path.glob("*.tsv"))
    finally:
        writer.kill()
        writer.communicate()
    assert waiter.communicate(timeout=LONGEST_S)[0]
    assert waiter.returncode == 0
    assert ensure_generated(CONFIG, tmp_path).read_bytes() == b"".join(criteo_lines(50, 4))
    assert not list(tmp_path.glob(".*.tmp"))


def test_processes_that_come_at_once_use_one_file(tmp_path: Path) -> None:
    ranks = [start(GENERATE, tmp_path) for _ in range(4)]
    assert len({rank.communicate(timeout=LONGEST_S)[0] for rank in ranks}) == 1
    assert {rank.returncode for rank in ranks} == {0}
