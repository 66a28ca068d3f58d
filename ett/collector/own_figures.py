"""What the collector says of itself: counters of this process, which start at 0 with it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from ett.event_schema import VERSION
from ett.versions import ett_version

_REQUEST_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class OwnFigures:
    """The metrics `ett_collector_…` and `ett_build_info` of spec 5.1; each object is safe from any thread."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series for a time of creation that nobody asks for
        self.registry = registry = CollectorRegistry()
        self.events = Counter(
            "ett_collector_events", "Log lines received, by what became of them.", ("result", "code"), registry=registry
        )
        self.requests = Counter(
            "ett_collector_requests", "HTTP requests, by status.", ("route", "status"), registry=registry
        )
        self.ingest_duration = Histogram(
            "ett_collector_ingest_duration_seconds",
            "From a batch's last byte to its reply.",
            ("route",),
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.query_duration = Histogram(
            "ett_collector_query_duration_seconds",
            "Time to answer a read.",
            ("route",),
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.last_ingest = Gauge(
            "ett_collector_last_ingest_timestamp_seconds", "When the last line was stored.", registry=registry
        )
        self.store_bytes = Gauge("ett_collector_store_bytes", "Size of the job store's file.", registry=registry)
        self.rollup_lag = Gauge(
            "ett_collector_rollup_lag_seconds", "Age of the oldest line that no counter has yet.", registry=registry
        )
        self.clock_skew = Gauge(
            "ett_collector_clock_skew_seconds", "Last sender's clock minus this one's.", registry=registry
        )
        self.labels_refused = Gauge(
            "ett_collector_label_values_refused",
            "Jobs whose team or model is shown as `other`.",
            ("label",),
            registry=registry,
        )
        build = Gauge(
            "ett_build_info", "Version of ett and of the event schema.", ("version", "schema"), registry=registry
        )
        build.labels(version=ett_version(), schema=str(VERSION)).set(1)
        for result, code in (("accepted", ""), ("duplicate", "")):
            self.events.labels(result=result, code=code)
