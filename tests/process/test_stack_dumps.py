"""Stacks of processes that cannot help: in native code, stopped, foreign."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wait import wait_until

from ett.stack_dumps import dump_stacks, process_state

pytestmark = pytest.mark.process
ANSWERS = (
    "import sys, threading; from pathlib import Path\n"
    "from ett.stack_dumps import answer_stack_signal\n"
    "answer_stack_signal(Path(sys.argv[1]))\n"
)


class Started:
    def __init__(self, folder: Path) -> None:
        self.folder, self._started = folder, []  # type: Path, list[subprocess.Popen[str]]

    def python(self, program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-c", program, str(self.folder / "rank0.stacks")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def end(self) -> None:
        for process in self._started:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path)
    yield made
    made.end()


def test_every_thread_and_every_forked_child_answers(started: Started) -> None:
    program = ANSWERS + (
        "import os, time\n"
        "def beside(): threading.Event().wait()\n"
        "def forked(): time.sleep(600)\n"
        "if not os.fork(): forked()\n"
        "threading.Thread(target=beside, daemon=True).start()\n"
        "print('ready'); threading.Event().wait()\n"
    )
    process = started.python(program)
    dump_stacks(started.folder, {0: process.pid})
    text = (started.folder / "rank0.stacks").read_text()
    for expected in ("in beside", "in forked", "=== rank 0, process", "=== child of rank 0, process"):
        assert expected in text
    assert process.poll() is None


def test_a_process_that_does_not_know_us_lives_on(started: Started) -> None:
    process = started.python("import threading\ndef foreign(): threading.Event().wait()\nprint('ready'); foreign()")
    stacks = dump_stacks(started.folder, {0: process.pid})[0]
    assert process.poll() is None
    assert f"thread {process.pid} " in (started.folder / "rank0.stacks").read_text()
    if shutil.which("py-spy", path=str(Path(sys.executable).parent)):
        assert "foreign" in stacks.text


def test_a_stopped_process_is_said_to_be_stopped_and_stays_so(started: Started) -> None:
    process = started.python(ANSWERS + "print('ready'); threading.Event().wait()")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: process_state(process.pid) == "T")
    stacks = dump_stacks(started.folder, {0: process.pid})[0]
    assert stacks.state == "T"
    assert "is stopped by a signal" in (started.folder / "rank0.stacks").read_text()


def test_a_process_that_is_gone_gives_an_empty_view(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert dump_stacks(tmp_path, {0: gone.pid})[0].text == ""
