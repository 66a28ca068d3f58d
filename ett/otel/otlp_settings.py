"""Where an export goes and how long it may take: a URL that was given, else $OTEL_EXPORTER_OTLP_…."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ett.errors import ConfigError, UsageError

DEFAULT_TIMEOUT_S = 10.0
# A command or a supervisor that waits longer than this for telemetry hangs, whatever a variable says.
MAX_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OtlpSettings:
    """`timeout_s` is that of one request with its retries. Headers stay in the environment; the SDK reads them."""

    traces_url: str
    metrics_url: str
    timeout_s: float = DEFAULT_TIMEOUT_S


def otlp_settings(url: str, environ: Mapping[str, str]) -> OtlpSettings:
    """Return the settings for a receiver's base URL; for an empty one, those of the environment.

    Raises: UsageError: neither names a receiver. ConfigError: a URL or value that cannot be used.
    """
    base = url or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    own = {
        signal: "" if url else environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "")
        for signal in ("traces", "metrics")
    }
    if not base and not own["traces"]:
        raise UsageError(
            "no OTLP receiver is named", expected="--otlp http://HOST:4318, or $OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if not url and protocol == "grpc":
        raise ConfigError(
            "$OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'", expected="http/protobuf, with the receiver's HTTP port"
        )
    return OtlpSettings(
        traces_url=check_receiver_url(own["traces"] or _signal_url(base, "traces")),
        metrics_url=check_receiver_url(own["metrics"] or _signal_url(base or own["traces"], "metrics")),
        timeout_s=_timeout_s(environ),
    )


def check_receiver_url(url: str, name: str = "the OTLP endpoint") -> str:
    """Return `url`. Raises: ConfigError: it cannot be a receiver's, or holds credentials; says so under `name`."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError(f"{name} is {_shown(url)}", expected="a URL such as http://127.0.0.1:4318") from None
    if not is_url:
        raise ConfigError(f"{name} is {_shown(url)}", expected="a URL such as http://127.0.0.1:4318")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{name} for {parts.hostname} holds credentials",
            expected="a URL without them: it is printed, logged and kept in the job's folder",
            do="put them into $OTEL_EXPORTER_OTLP_HEADERS, such as authorization=Basic%20…",
        )
    return url


def _signal_url(base: str, signal: str) -> str:
    for known in ("/v1/traces", "/v1/metrics"):
        base = base.removesuffix(known)
    return f"{base.rstrip('/')}/v1/{signal}"


def _shown(url: str) -> str:
    """The part of a URL that holds no secret."""
    return repr(url.rpartition("@")[2][:100])


def _timeout_s(environ: Mapping[str, str]) -> float:
    """The variable is in seconds, as OpenTelemetry's SDK for Python reads it."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"):
        if text := environ.get(name):
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not value > 0:
                raise ConfigError(f"${name} is {text!r}", expected="seconds above 0")
            return min(value, MAX_TIMEOUT_S)
    return DEFAULT_TIMEOUT_S
