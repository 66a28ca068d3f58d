"""Send what is finished of one job: `ett timeline JOB --otlp URL`."""

from __future__ import annotations

from collections.abc import Mapping

from ett.accounting import JobAccount
from ett.otel.job_trace import job_spans, root_place
from ett.otel.metric_points import metric_points
from ett.otel.otlp_export import Sent, check_installed, send_metrics, send_spans
from ett.otel.otlp_settings import otlp_settings
from ett.otel.resource import job_resource


def export_job(account: JobAccount, url: str, environ: Mapping[str, str], *, with_metrics: bool = False) -> list[str]:
    """Send the job's finished spans, and its metrics if asked for; return the lines that say what was sent.

    A span is sent once its end is final: what still runs is left to a later export.
    Raises: UsageError, ConfigError, Unreachable, AccessDenied: see `otlp_settings` and `send_spans`.
    """
    settings = otlp_settings(url, environ)
    check_installed()
    spans = job_spans(account)
    finished = [span for span in spans if not span.is_open]
    resource = job_resource(account)
    lines = []
    if finished:
        sent = send_spans(finished, resource, settings)
        trace = f"trace {root_place(account.job).trace_id:032x}"
        lines.append(f"{account.job}: {_count(sent, 'span')} sent to {settings.traces_url}, {trace}")
    if len(finished) < len(spans):
        still = sorted({f"attempt {span.attempt}" for span in spans if span.is_open and span.attempt is not None})
        lines.append(f"{account.job}: not over yet; left to a later export: {', '.join(still) or 'the job itself'}")
    if with_metrics:
        window = account.window
        sent = send_metrics(metric_points(account), resource, settings, start_ns=window.start_ns, time_ns=window.end_ns)
        lines.append(f"{account.job}: {_count(sent, 'metric point')} sent to {settings.metrics_url}")
    return lines


def _count(sent: Sent, noun: str) -> str:
    said = f"{sent.accepted} {noun}{'' if sent.accepted == 1 else 's'}"
    if not sent.rejected:
        return said
    return f"{said} accepted, {sent.rejected} rejected" + (f" ({sent.message})" if sent.message else "")
