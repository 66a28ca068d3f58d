"""Send a job's spans and metrics to an OTLP/HTTP receiver with OpenTelemetry's own exporters; bounded in time."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ett.errors import AccessDenied, ConfigError, EttError, Unreachable
from ett.otel.job_span import AttributeValue, JobSpan
from ett.otel.metric_points import MetricPoint
from ett.otel.otlp_settings import OtlpSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from ett.otel.otlp_session import WatchedSession

_MAX_ITEMS_PER_REQUEST = 2_000  # spans and events: about half a megabyte
_MOST_TIMEOUTS = 6  # an export of many requests takes at most so many, one of fewer requests as many as it has
_GRACE_S = 0.5  # for the error of a request that ended in time
_SHOWN_MESSAGE = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What a receiver took, and what it rejected although it answered with success."""

    accepted: int
    rejected: int = 0
    message: str = ""  # the receiver's own words, if it had any

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            accepted=self.accepted + other.accepted,
            rejected=self.rejected + other.rejected,
            message=self.message or other.message,
        )


def check_installed() -> None:
    """Raises: ConfigError: the extra `ett[otel]` is not installed."""
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise ConfigError(
                "OpenTelemetry's SDK and OTLP exporter are not installed",
                expected="the extra `otel`",
                do="pip install 'ett[otel]'",
                code="F006",
            )


def send_spans(spans: Sequence[JobSpan], resource: Mapping[str, AttributeValue], settings: OtlpSettings) -> Sent:
    """Send spans in as few requests as bounded ones can be.

    Raises: Unreachable, AccessDenied, ConfigError: see `_send`; what was sent before stays sent, and may be sent again.
    """
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from ett.otel.otlp_session import WatchedSession
    from ett.otel.sdk_objects import sdk_resource, sdk_spans

    session = WatchedSession()
    exporter = OTLPSpanExporter(endpoint=settings.traces_url, timeout=settings.timeout_s, session=session)
    batches = [(len(batch), batch) for batch in _batches(sdk_spans(spans, sdk_resource(resource)))]
    return _send(batches, exporter, session, settings.traces_url, settings.timeout_s)


def send_metrics(
    points: Sequence[MetricPoint],
    resource: Mapping[str, AttributeValue],
    settings: OtlpSettings,
    *,
    start_ns: int,
    time_ns: int,
) -> Sent:
    """Send metrics, cumulative from `start_ns` to `time_ns`. Raises: as `send_spans`."""
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    from ett.otel.otlp_session import WatchedSession
    from ett.otel.sdk_objects import sdk_metrics, sdk_resource

    session = WatchedSession()
    exporter = OTLPMetricExporter(endpoint=settings.metrics_url, timeout=settings.timeout_s, session=session)
    data = sdk_metrics(points, sdk_resource(resource), start_ns, time_ns)
    return _send([(len(points), data)], exporter, session, settings.metrics_url, settings.timeout_s)


def _send(
    batches: Sequence[tuple[int, Any]], exporter: Any, session: WatchedSession, url: str, timeout_s: float
) -> Sent:
    """Raises:
    Unreachable: no receiver answered, it refused the data, or the time was up; all of one export was rejected.
    AccessDenied: it asks for other credentials (401, 403).
    """
    # What the exporter logs of a failure is said by the error; its text may hold a URL with a query.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL + 1)
    limit_s = timeout_s * min(_MOST_TIMEOUTS, max(1, len(batches)))
    until_s = time.monotonic() + limit_s
    sent = Sent(accepted=0)

    def send_all() -> None:
        nonlocal sent
        try:
            for size, batch in batches:
                if time.monotonic() > until_s:
                    raise _out_of_time(url, limit_s)
                session.last_reply = None
                exporter.export(batch)
                sent += _judged(session, url, size)
        finally:
            exporter.shutdown()

    # A receiver that sends a byte of a header now and then keeps a request alive beyond any timeout of a socket.
    _within(send_all, limit_s + _GRACE_S, lambda: _out_of_time(url, limit_s))
    if sent.rejected and not sent.accepted:
        raise Unreachable(
            f"{url} rejected all of {sent.rejected} items{_said(sent.message)}",
            do="the receiver's own log says why; the job is not affected",
            code="S006",
        )
    return sent


def _within(work: Callable[[], None], limit_s: float, out_of_time: Callable[[], EttError]) -> None:
    errors: list[EttError] = []

    def run() -> None:
        try:
            work()
        except EttError as err:
            errors.append(err)

    thread = threading.Thread(target=run, name="ett-otlp-export", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise out_of_time()
    if errors:
        raise errors[0]


def _judged(session: WatchedSession, url: str, size: int) -> Sent:
    reply = session.last_reply
    if reply is None:
        raise Unreachable(
            f"nothing could be sent to {url}: OpenTelemetry's encoder refused the data",
            do="`ett report --json` shows the job's flags: a log of broken clocks has times before 1970",
            code="S006",
        )
    if reply.is_ok:
        rejected, message = _partial_success(reply.body, is_traces=url.endswith("/traces"))
        return Sent(accepted=size - min(rejected, size), rejected=min(rejected, size), message=message)
    if reply.status in (401, 403):
        raise AccessDenied(
            f"{url} answered {reply.status} {reply.text}",
            do="set $OTEL_EXPORTER_OTLP_HEADERS, such as authorization=Bearer%20…",
            code="P002",
        )
    if reply.status is None:
        raise Unreachable(
            f"{url}: {reply.text}", do="check that an OTLP/HTTP receiver listens there, then try again", code="S006"
        )
    moved = 300 <= reply.status < 400
    raise Unreachable(
        f"{url} answered {reply.status} {reply.text}",
        expected="2xx" + ("; it points elsewhere: give that URL" if moved else ""),
        do="check the URL (the base, without /v1/traces) and the receiver's log, then try again",
        code="S006",
    )


def _partial_success(body: bytes, *, is_traces: bool) -> tuple[int, str]:
    """What a receiver rejected of a request that it answered with 200: it must not be sent again."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        if is_traces:
            partial = ExportTraceServiceResponse.FromString(body).partial_success
            return max(0, partial.rejected_spans), _printable(partial.error_message)
        points = ExportMetricsServiceResponse.FromString(body).partial_success
        return max(0, points.rejected_data_points), _printable(points.error_message)
    except DecodeError:
        return 0, ""  # a proxy's page: the status is all that is known


def _batches(spans: Iterable[ReadableSpan]) -> Iterator[list[ReadableSpan]]:
    batch: list[ReadableSpan] = []
    items = 0
    for span in spans:
        size = 1 + len(span.events)
        if batch and items + size > _MAX_ITEMS_PER_REQUEST:
            yield batch
            batch, items = [], 0
        batch.append(span)
        items += size
    if batch:
        yield batch


def _out_of_time(url: str, limit_s: float) -> EttError:
    return Unreachable(
        f"{url} did not take everything within {limit_s:g} s",
        do="try again; spans that were sent already are the same spans",
        code="S006",
    )


def _said(message: str) -> str:
    return f" ({message})" if message else ""


def _printable(text: str) -> str:
    """A stranger's words, without what would drive a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)[:_SHOWN_MESSAGE].strip()
