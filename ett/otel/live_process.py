"""The process that `ett launch` starts to export while the job runs, where the configuration asks for it.

It is a process and not a thread: what it does can neither hold the supervisor nor, should it run out of memory, end it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ett.errors import EttError
from ett.job_folder import JobFolder
from ett.otel.otlp_settings import otlp_settings
from ett.recipe_sections import TelemetryConfig
from ett.section import build_section
from ett.side_process import SideProcess

END_GRACE_S = 1.0  # beyond shutdown_flush: closing files takes time too


class LiveExport:
    """Exports the job's finished spans and its metrics, from `start` to `end`; a failure changes nothing of the job.

    Args:
        plain: the [telemetry] section, every key or fewer.
        say: how a line is told to the user.
    """

    def __init__(self, folder: JobFolder, plain: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.config: TelemetryConfig = build_section(TelemetryConfig, plain, "telemetry")
        self._folder, self._say = folder, say
        self._process = SideProcess()

    def start(self, environ: Mapping[str, str]) -> None:
        if not self.config.exports_otlp or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return
        try:
            self._check(environ)
        except EttError as err:
            self._say(f"no OpenTelemetry export: {err}")
            return
        command = [sys.executable, "-m", "ett.otel.live_export", str(self._folder.path)]
        command += ["--endpoint", self.config.otlp_endpoint, "--interval-s", str(self.config.otlp_interval_s)]
        command += ["--flush-s", str(self.config.shutdown_flush_s)]
        command += ["--with-job-id"] if self.config.otlp_job_id else []
        try:
            self._process.start(command, self._folder.path / "otel" / "export.log", environ)
        except OSError as err:
            self._say(f"no OpenTelemetry export: {err.strerror or err}")

    def tell_end(self) -> None:
        """Have the process begin to send what is left; `end` waits for it."""
        self._process.tell_end()

    def end(self) -> None:
        """Let the process send what is left, for shutdown_flush at most."""
        self._process.end(self.config.shutdown_flush_s + END_GRACE_S)

    def _check(self, environ: Mapping[str, str]) -> None:
        from ett.otel.otlp_export import check_installed

        otlp_settings(self.config.otlp_endpoint, environ)
        check_installed()
