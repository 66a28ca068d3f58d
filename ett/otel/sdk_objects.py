"""Spans and points as the objects of OpenTelemetry's SDK, which its exporters take. Importing this imports the SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ett.metric_names import METRICS, MetricName
from ett.otel.job_span import AttributeValue, JobSpan
from ett.otel.metric_points import HistogramPoint, MetricPoint, NumberPoint
from ett.otel.trace_ids import SpanPlace
from ett.versions import ett_version

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def sdk_resource(attributes: Mapping[str, AttributeValue]) -> Resource:
    """Return the resource; $OTEL_RESOURCE_ATTRIBUTES and $OTEL_SERVICE_NAME add to it and win."""
    return Resource.create(dict(attributes)).merge(OTELResourceDetector().detect())


def sdk_spans(spans: Iterable[JobSpan], resource: Resource) -> list[ReadableSpan]:
    scope = _scope()
    return [_span(span, resource, scope) for span in spans]


def sdk_metrics(points: Sequence[MetricPoint], resource: Resource, start_ns: int, time_ns: int) -> MetricsData:
    """Return the points, cumulative from `start_ns` to `time_ns`."""
    metrics = []
    for name in METRICS:
        own = [point for point in points if point.metric is name]
        if own:
            metrics.append(_metric(name, own, start_ns, time_ns))
    scope = ScopeMetrics(scope=_scope(), metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url=resource.schema_url)])


def _scope() -> InstrumentationScope:
    return InstrumentationScope("ett", ett_version())


def _span(span: JobSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    parent = None if span.parent_id is None else _context(SpanPlace(span.place.trace_id, span.parent_id))
    return ReadableSpan(
        name=span.name,
        context=_context(span.place),
        parent=parent,
        resource=resource,
        attributes=dict(span.attributes),
        events=[Event(e.name, dict(e.attributes), e.time_ns) for e in span.events],
        links=[Link(_context(link.place, is_remote=True), dict(link.attributes)) for link in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR) if span.is_error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=scope,
    )


def _context(place: SpanPlace, is_remote: bool = False) -> SpanContext:
    return SpanContext(place.trace_id, place.span_id, is_remote=is_remote, trace_flags=_SAMPLED)


def _metric(name: MetricName, points: Sequence[MetricPoint], start_ns: int, time_ns: int) -> Metric:
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Histogram
    if name.instrument == "histogram":
        data = Histogram(
            [_histogram(p, start_ns, time_ns) for p in points if isinstance(p, HistogramPoint)], cumulative
        )
    else:
        numbers = [
            NumberDataPoint(dict(p.attributes), start_ns, time_ns, p.value)
            for p in points
            if isinstance(p, NumberPoint)
        ]
        data = Sum(numbers, cumulative, name.instrument == "counter")
    return Metric(name=name.otel, description=name.help, unit=name.unit, data=data)


def _histogram(point: HistogramPoint, start_ns: int, time_ns: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=start_ns,
        time_unix_nano=time_ns,
        count=point.count,
        sum=point.sum,
        bucket_counts=point.bucket_counts,
        explicit_bounds=point.metric.buckets,
        min=point.min,
        max=point.max,
    )
