"""`ett launch` ends once its job has: whatever of its helpers does not, and without taking torch down first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ett import worker_sessions
from ett.job_folder import JobFolder
from ett.worker_sessions import GuardianPipe


def test_a_guardian_that_somebody_stopped_is_killed_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sessions, "CLOSE_S", 0.01)
    pipe = GuardianPipe(JobFolder(tmp_path))
    pipe._process.send_signal(signal.SIGSTOP)
    pipe.close()
    assert pipe._process.wait(60) == -signal.SIGKILL


def test_a_launch_ends_with_its_code_and_exit_handlers_but_without_the_interpreters_teardown() -> None:
    program = """
        import atexit, sys, types
        from ett import cli

        class Held:
            def __del__(self): print("teardown")

        held = Held()
        sys.modules["ett.elastic_agent"] = types.ModuleType("ett.elastic_agent")  # what a launch has imported
        atexit.register(print, "exit handler")
        cli.run = lambda argv: 7
        cli.main([])
    """
    done = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "exit handler\n", "")
