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
# What an attempt can spend and not learn from: each has a limit that somebody answers for.
LOSSES = ("scheduling", "initialization", "compilation", "wasted", "shutdown")
# A second to four hours: a start-up's imports, and a night in a queue.
DURATION_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 5_400, 7_200, 14_400)
# How much slower the slowest rank is: 1 is not at all.
RATIO_BUCKETS = (1.01, 1.02, 1.03, 1.05, 1.075, 1.1, 1.15, 1.2, 1.3, 1.5, 1.75, 2, 3, 5, 10, 20)
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


def _histogram(prometheus: str, otel: str, labels: tuple[str, ...], text: str) -> MetricName:
    return MetricName(
        prometheus=prometheus,
        otel=otel,
        instrument="histogram",
        unit="s",
        labels=labels,
        help=text,
        buckets=DURATION_BUCKETS_S,
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

# What only a scraped server has: it sees many jobs, and keeps what it published. Revisions are rare, but every series
# could have one: without the model they stay within the bound of series.
JOB_TIME_REVISED = _counter(
    "ett_component_revised_job_seconds_total",
    "",
    "s",
    ("cluster", "team", "component"),
    "Seconds by which a component turned out smaller than it had been published.",
)
WALL_REVISED = _counter(
    "ett_wall_revised_rank_seconds_total",
    "",
    "s",
    ("cluster", "team"),
    "Rank-seconds by which wall time turned out shorter than it had been published.",
)
SUBCOMPONENT_RANK_TIME = _counter(
    "ett_subcomponent_rank_seconds_total",
    "",
    "s",
    ("cluster", "component", "phase"),
    "Rank-seconds of what a component consists of; effective time has no phases.",
)
SUBCOMPONENT_REVISED = _counter(
    "ett_subcomponent_revised_rank_seconds_total",
    "",
    "s",
    ("cluster", "component", "phase"),
    "Rank-seconds by which a phase turned out smaller than it had been published.",
)
RESTART_COST = _counter(
    "ett_restart_cost_rank_seconds_total",
    "",
    "s",
    ("cluster", "reason", "owner"),
    "Rank-seconds that interruptions caused: work lost, teardown, and the start-up paid again.",
)
ATTEMPTS_FINISHED = _counter(
    "ett_attempts_finished_total", "", "{attempt}", ("cluster", "team", "outcome"), "Attempts that ended, by how."
)
CHECKPOINT_RESTORE_DURATION = _histogram(
    "ett_checkpoint_restore_duration_seconds",
    "",
    ("cluster", "source"),
    "Seconds that an attempt spent in restoring, by the tier of the checkpoint.",
)
CHECKPOINT_OPERATIONS = _counter(
    "ett_checkpoint_operations_total",
    "",
    "{operation}",
    ("cluster", "operation", "result"),
    "Checkpoint saves and restores, by result.",
)
CHECKPOINT_BYTES = _counter(
    "ett_checkpoint_bytes_total", "", "By", ("cluster", "operation"), "Bytes of committed checkpoints."
)
LAST_CHECKPOINT = _gauge(
    "ett_model_last_durable_checkpoint_timestamp_seconds",
    "",
    "s",
    _MODEL,
    "Unix time of the last commit of the model's running job that has waited longest for one.",
)
CHECKPOINT_INTERVAL = _gauge(
    "ett_model_checkpoint_interval_seconds", "", "s", _MODEL, "Median time between commits; longest of running jobs."
)
MODEL_RUNNING = _gauge("ett_model_running", "", "1", _MODEL, "1 while a job of the model runs.")
AT_RISK = _gauge(
    "ett_model_at_risk_rank_seconds", "", "s", _MODEL, "Rank-seconds that a failure of all running jobs now would lose."
)
EXAMPLES = _counter("ett_examples_total", "", "{example}", _MODEL, "Examples learned from, each once.")
EXAMPLES_REDONE = _counter(
    "ett_examples_redone_total", "", "{example}", _MODEL, "Examples processed again after a restart."
)
RECOMPILES = _counter(
    "ett_recompiles_total",
    "",
    "{compilation}",
    _MODEL,
    "Compilations of torch.compile after a process's first step because a guard failed.",
)
CLIENT_DROPPED = _counter(
    "ett_client_events_dropped_total",
    "",
    "{event}",
    ("cluster", "cause"),
    "Records that ranks could not write in time.",
)

HANG_DETECTION_DURATION = _histogram(
    "ett_hang_detection_duration_seconds",
    "",
    ("cluster",),
    "Seconds without progress until a hang was found and its attempt ended.",
)
STRAGGLER_RATIO = MetricName(
    prometheus="ett_straggler_ratio",
    otel="",
    instrument="histogram",
    unit="1",
    labels=("cluster",),
    help="Step time of the slowest rank over that of the median rank, the median of 100 steps.",
    buckets=RATIO_BUCKETS,
)
SLO_OBJECTIVE = _gauge(
    "ett_slo_objective_ratio",
    "",
    "1",
    ("slo", "component", "owner"),
    "Share of rank-time that a component may take over 28 days; of effective: that it should reach.",
)
# On /metrics/jobs alone: the only label without a bound of its own, so it is of the largest running jobs.
JOB_COMPONENT_RANK_TIME = _gauge(
    "ett_job_component_rank_seconds",
    "",
    "s",
    ("cluster", "job", "component"),
    "Rank-seconds of each component of the 200 running jobs with most ranks.",
)

SCRAPED_ONLY: tuple[MetricName, ...] = (
    JOB_TIME_REVISED,
    WALL_REVISED,
    SUBCOMPONENT_RANK_TIME,
    SUBCOMPONENT_REVISED,
    RESTART_COST,
    ATTEMPTS_FINISHED,
    CHECKPOINT_RESTORE_DURATION,
    CHECKPOINT_OPERATIONS,
    CHECKPOINT_BYTES,
    LAST_CHECKPOINT,
    CHECKPOINT_INTERVAL,
    MODEL_RUNNING,
    AT_RISK,
    EXAMPLES,
    EXAMPLES_REDONE,
    RECOMPILES,
    CLIENT_DROPPED,
    HANG_DETECTION_DURATION,
    STRAGGLER_RATIO,
    SLO_OBJECTIVE,
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
    *SCRAPED_ONLY,
)
