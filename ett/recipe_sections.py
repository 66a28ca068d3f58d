"""The recipe sections that belong to `ett/` itself; the others stand with the folder that they configure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ett.errors import ConfigError, UsageError
from ett.hooks.hook_names import parse_hooks
from ett.otel.otlp_settings import check_receiver_url
from ett.otel.trace_ids import TracePerAttempt

TelemetryMode = Literal["best-effort", "required", "off"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobConfig:
    model: str = "job"  # low-cardinality name of the model; job ids start with it
    team: str = ""  # modelling team, for roll-ups
    owner: str = ""  # who is asked about this job

    def __post_init__(self) -> None:
        for name in ("model", "team", "owner"):
            value = getattr(self, name)
            if value and not SLUG.fullmatch(value):
                raise ConfigError(
                    f"job.{name} is {value!r}",
                    expected="lower-case letters, digits, '.', '_' or '-', at most 63, starting with a letter or digit",
                )
        if not self.model:
            raise ConfigError("job.model is empty", expected="a short name such as 'criteo-dlrm'")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchConfig:
    nproc: int = 1  # worker processes on this host
    nproc_min: int = 0  # the fewest to go on with when one fails at every start; 0: as many as nproc

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ConfigError(f"launch.nproc is {self.nproc}", expected="at least 1 worker process")
        if not 0 <= self.nproc_min <= self.nproc:
            raise ConfigError(
                f"launch.nproc_min is {self.nproc_min}",
                expected=f"1 to launch.nproc, which is {self.nproc}; 0: the same",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryConfig:
    endpoint: str = ""  # base URL of a collector; empty or "file:": the log stays in its files and nothing is sent
    mode: TelemetryMode = "best-effort"  # required: no collector at the start, no launch; off: nothing is sent
    flush_interval: str = "10s"  # between two looks at the files
    shutdown_flush: str = "2s"  # longest time, after the job's end, to send what is left
    otlp_endpoint: str = ""  # base URL of an OTLP/HTTP receiver: spans as attempts end, metrics as below
    otlp: bool = False  # the same to $OTEL_EXPORTER_OTLP_ENDPOINT, where otlp_endpoint is empty
    otlp_interval: str = "60s"  # between two exports of metrics
    otlp_job_id: bool = False  # the job's id on metrics: every job's are series of their own then
    trace_per_attempt: TracePerAttempt = "auto"  # auto: of attempts that start over 24 h after the submission
    hooks: str = "all"  # what is seen of scripts and modules: all, none, names, or -names (docs/zero_code.md)

    def __post_init__(self) -> None:
        if self.endpoint not in ("", "file:") and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"telemetry.endpoint is {self.endpoint!r}", expected="an http:// or https:// URL")
        if not self.sends and self.mode == "required":
            raise ConfigError("telemetry.mode is 'required' without an endpoint", expected="telemetry.endpoint as well")
        if self.flush_interval_s < 0.05:
            raise ConfigError(f"telemetry.flush_interval is {self.flush_interval!r}", expected="at least '50ms'")
        if self.otlp_interval_s < 0.05:
            raise ConfigError(f"telemetry.otlp_interval is {self.otlp_interval!r}", expected="at least '50ms'")
        if self.otlp_endpoint:
            check_receiver_url(self.otlp_endpoint, "telemetry.otlp_endpoint")
        assert self.shutdown_flush_s >= 0.0
        try:
            parse_hooks(self.hooks)
        except UsageError as err:
            raise ConfigError(f"telemetry.hooks: {err.fact}", expected=err.expected) from err

    @property
    def sends(self) -> bool:
        return self.mode != "off" and self.endpoint not in ("", "file:")

    @property
    def exports_otlp(self) -> bool:
        return self.mode != "off" and (self.otlp or bool(self.otlp_endpoint))

    @property
    def otlp_interval_s(self) -> float:
        return _seconds(self.otlp_interval, "telemetry.otlp_interval")

    @property
    def flush_interval_s(self) -> float:
        return _seconds(self.flush_interval, "telemetry.flush_interval")

    @property
    def shutdown_flush_s(self) -> float:
        return _seconds(self.shutdown_flush, "telemetry.shutdown_flush")


def _seconds(text: str, field: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{field} is {text!r}", expected="a time such as '500ms', '10s' or '2m'")
    return float(found[1]) * _UNIT_S[found[2]]
