"""The agent that `ett launch` starts for its host: it sends the job's log while the job runs, and never holds it up."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from ett.errors import LaunchRefused
from ett.job_folder import JobFolder
from ett.recipe_sections import TelemetryConfig
from ett.section import build_section
from ett.side_process import SideProcess

READY_WAIT_S = 10.0
END_GRACE_S = 3.0  # beyond shutdown_flush, for an agent that has hardly started when a short job ends
NOT_DELIVERED = 6


class TelemetryAgent:
    """One process, `ett sync JOB --watch`, where [telemetry] names a collector; otherwise nothing at all.

    Args:
        plain: the [telemetry] section, every key or fewer.
        strict: events that were not delivered turn the exit code of a job that succeeded into 6.
    """

    def __init__(self, folder: JobFolder, plain: dict[str, Any], *, strict: bool = False) -> None:
        self.config: TelemetryConfig = build_section(TelemetryConfig, plain, "telemetry")
        self._folder, self._strict = folder, strict
        self._process = SideProcess()
        self._is_delivered = True

    def check(self) -> None:
        """Raises: LaunchRefused: telemetry is required, and the collector does not answer or refuses the token."""
        if self.config.mode != "required":
            return
        from ett.collector.access import read_token
        from ett.collector.endpoint import Endpoint

        answer = Endpoint(self.config.endpoint, lambda: read_token(None, os.environ)).post_events(b"", READY_WAIT_S)
        if not answer.is_delivered:
            raise LaunchRefused(
                f"telemetry is required, and {self.config.endpoint} does not take events ({answer.why})",
                do="start the collector, or launch with --telemetry best-effort: the log is kept in any case",
            )

    def start(self) -> None:
        if not self.config.sends:
            return
        command = [sys.executable, "-m", "ett", "sync", self._folder.name, "--watch", "--until-eof"]
        command += ["--endpoint", self.config.endpoint, "--interval", str(self.config.flush_interval_s)]
        command += ["--shutdown-flush", str(self.config.shutdown_flush_s)]
        environ = dict(os.environ) | {"ETT_HOME": str(self._folder.path.parents[1])}
        try:
            self._process.start(command, self._folder.path / "sync" / "agent.log", environ, cwd=Path("/"))
        except OSError:
            self._is_delivered = False  # telemetry that cannot start is no reason not to train

    def tell_end(self) -> None:
        """Have the agent begin to send what is left; `end` waits for it."""
        self._process.tell_end()

    def end(self) -> None:
        """Let the agent send what is left, for shutdown_flush at most."""
        code = self._process.end(self.config.shutdown_flush_s + END_GRACE_S)
        if code is not None:
            self._is_delivered = code == 0

    def exit_code(self, code: int) -> int:
        """Return the launch's exit code: `code`, unless --strict asks for delivered events; say what was not."""
        if self._is_delivered:
            return code
        with contextlib.suppress(OSError):
            sys.stderr.write(
                f"ett: not all events reached {self.config.endpoint}; they are kept   ·   `ett sync "
                f"{self._folder.name}` sends them, {self._folder.path / 'sync' / 'agent.log'} says why\n"
            )
        return NOT_DELIVERED if self._strict and code == 0 else code
