"""A small OTLP/HTTP receiver on opentelemetry-proto: keeps what it gets, and answers as a test tells it to."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(kw_only=True)
class Answer:
    """One answer of the receiver. `hold` is waited for before it: a slow receiver, without a clock."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hold: threading.Event | None = None
    keeps: bool = True  # whether what came with the request is kept
    drip: threading.Event | None = None  # until it is set, a byte of a header that never ends now and then


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    span: Any
    resource: dict[str, Any]

    @property
    def attributes(self) -> dict[str, Any]:
        return values(self.span.attributes)


class OtlpReceiver:
    """Listens on a free port of the loopback while used as a context manager."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []  # the next ones; then 200 for ever
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.spans: list[ReceivedSpan] = []
        self.metric_requests: list[ExportMetricsServiceRequest] = []
        self._lock = threading.Lock()
        handler = _handler(self)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def by_id(self) -> dict[bytes, ReceivedSpan]:
        return {received.span.span_id: received for received in self.spans}

    def metrics(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield each metric of the last request with its resource's attributes."""
        for request in self.metric_requests[-1:]:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        yield metric, values(resource.resource.attributes)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            answer = self.answers.pop(0) if self.answers else Answer()
            self.paths.append(path)
            self.headers.append(headers)
            if answer.keeps and answer.status == 200:
                self._keep(path, gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body)
        return answer

    def _keep(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = values(resource.resource.attributes)
                self.spans += [
                    ReceivedSpan(span=span, resource=attributes)
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        elif path == "/v1/metrics":
            self.metric_requests.append(ExportMetricsServiceRequest.FromString(body))


def partial_traces(rejected: int, message: str) -> bytes:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


def partial_metrics(rejected: int, message: str) -> bytes:
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


def values(attributes: Any) -> dict[str, Any]:
    found = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = getattr(attribute.value, kind)
    return found


def _drip(stream: Any, until: threading.Event) -> None:
    try:
        stream.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while not until.wait(0.05):
            stream.write(b"x")
            stream.flush()
    except OSError:
        return


def _handler(receiver: OtlpReceiver) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = receiver.take(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            if answer.hold is not None:
                answer.hold.wait()
            if answer.drip is not None:
                _drip(self.wfile, answer.drip)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:
                self.close_connection = True  # the sender did not wait

        def log_message(self, *args: object) -> None:
            return

    return Handler
