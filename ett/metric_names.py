"""Every metric of ett once: its OpenTelemetry name and its Prometheus name, unit, labels and meaning.

`ett/collector` (Prometheus) and `ett/otel` (OpenTelemetry) take their names from here and from nowhere else.
Importing this imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Instrument = Literal["counter", "up_down_counter", "gauge", "histogram"]

# Attributes of the OpenTelemetry resource, which Prometheus has to carry as labels; a model has one team.
RESOURCE_LABELS = ("cluster", "team", "model")
# `training` is effective + wasted, and `wasted` the part of it that was found to be lost: all but `wasted` sum to the
# wall time, and neither falls when a failure turns effective time into wasted time.
METRIC_COMPONENTS = ("scheduling", "initialization", "compilation", "training", "shutdown", "wasted")
# A second to four hours: a start-up's imports, and a night in a queue.
DURATION_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 5_400, 7_200, 14_400)
# Values of the label `reason`: why a job had to come back, by an interruption's class, or its kind if it has none.
RESTART_REASONS = {
    "preemption": "preemption",
    "user": "user_error",
    "infra": "infrastructure_failure",
    "unknown": "unknown_failure",
}
RECOVERY_TIERS = ("in_process", "in_job", "reschedule")  # values of the label `tier`
CHECKPOINT_PHASES = ("blocking", "background")  # values of the label `phase`
# Labels with a word of their own in OpenTelemetry's conventions; every other label L is the attribute `ett.L`.
_ATTRIBUTES = {"reason": "error.type"}


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricName:
    """One metric. `unit` is a UCUM code; `otel` is empty for one that only a scraped server has."""

    prometheus: str
    otel: str
    instrument: Instrument
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    @property
    def point_attributes(self) -> tuple[str, ...]:
        """Return the OpenTelemetry attribute of each label that is not the resource's, in order."""
        return tuple(attribute(label) for label in self.labels if label not in RESOURCE_LABELS)


def attribute(label: str) -> str:
    """Return the OpenTelemetry attribute that says what the Prometheus label `label` says."""
    return _ATTRIBUTES.get(label, f"ett.{label}")


def _counter(prometheus: str, otel: str, unit: str, labels: tuple[str, ...], text: str) -> MetricName:
    return MetricName(prometheus=prometheus, otel=otel, instrument="counter", unit=unit, labels=labels, help=text)


def _gauge(prometheus: str, otel: str, unit: str, labels: tuple[str, ...], text: str) -> MetricName:
    return MetricName(prometheus=prometheus, otel=otel, instrument="gauge", unit=unit, labels=labels, help=text)


def _histogram(
    prometheus: str, otel: str, labels: tuple[str, ...], text: str, buckets: tuple[float, ...] = DURATION_BUCKETS_S
) -> MetricName:
    return MetricName(
        prometheus=prometheus, otel=otel, instrument="histogram", unit="s", labels=labels, help=text, buckets=buckets
    )


_MODEL = RESOURCE_LABELS

COMPONENT_RANK_TIME = _counter(
    "ett_component_rank_seconds_total",
    "ett.component.rank_time",
    "s",
    (*_MODEL, "component"),
    "Rank-seconds of each component; training is effective + wasted, wasted is booked when it is found.",
)
COMPONENT_JOB_TIME = _counter(
    "ett_component_job_seconds_total",
    "ett.component.job_time",
    "s",
    (*_MODEL, "component"),
    "Seconds of jobs' wall time in each component, whatever their number of ranks.",
)
COMPONENT_REVISED = _counter(
    "ett_component_revised_rank_seconds_total",
    "ett.component.revised_rank_time",
    "s",
    (*_MODEL, "component"),
    "Rank-seconds by which a component turned out smaller than it had been published.",
)
WALL_RANK_TIME = _counter(
    "ett_wall_rank_seconds_total",
    "ett.wall.rank_time",
    "s",
    _MODEL,
    "Rank-seconds of wall time; the sum of all components but wasted.",
)
RESTARTS = _counter(
    "ett_restarts_total",
    "ett.restarts",
    "{restart}",
    (*_MODEL, "reason"),
    "Interruptions that a job came back from: failures, preemptions, in-process restarts.",
)
ATTEMPT_COMPONENT_DURATION = _histogram(
    "ett_attempt_component_duration_seconds",
    "ett.attempt.component.duration",
    ("cluster", "component"),
    "Seconds that one finished attempt spent in a component.",
)
RECOVERY_DURATION = _histogram(
    "ett_recovery_duration_seconds",
    "ett.recovery.duration",
    ("cluster", "tier"),
    "Seconds from a failure to the first new step after it.",
)
JOBS = MetricName(
    prometheus="ett_jobs",
    otel="ett.jobs",
    instrument="up_down_counter",
    unit="{job}",
    labels=("cluster", "team", "state"),
    help="Jobs by state.",
)
CHECKPOINT_SAVE_DURATION = _histogram(
    "ett_checkpoint_save_duration_seconds",
    "ett.checkpoint.save.duration",
    ("cluster", "phase"),
    "Seconds of a committed checkpoint: all of it (background), and what training waited for (blocking).",
)

METRICS: tuple[MetricName, ...] = (
    COMPONENT_RANK_TIME,
    COMPONENT_JOB_TIME,
    COMPONENT_REVISED,
    WALL_RANK_TIME,
    RESTARTS,
    ATTEMPT_COMPONENT_DURATION,
    RECOVERY_DURATION,
    JOBS,
    CHECKPOINT_SAVE_DURATION,
)
