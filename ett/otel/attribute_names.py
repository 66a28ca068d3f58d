"""Every attribute that ett puts on spans, span events, links and resources; docs/opentelemetry.md shows this table.

Names of others' conventions (`error.type`, `process.exit.code`, `service.name`, …) keep their meaning; ours begin with
`ett.`. Ids are values of attributes, never parts of a name.
"""

from __future__ import annotations

JOB_ID = "ett.job.id"
JOB_STATE = "ett.job.state"
TEAM = "ett.team"
OWNER = "ett.owner"
MODEL = "ett.model"
CLUSTER = "ett.cluster"
EFFECTIVE_RATIO = "ett.effective.ratio"
ATTEMPT_NUMBER = "ett.attempt.number"
ATTEMPT_OUTCOME = "ett.attempt.outcome"
WORLD_SIZE = "ett.world_size"
RESTART_TIER = "ett.restart.tier"
EXIT_CODE = "process.exit.code"
ERROR_TYPE = "error.type"
COMPONENT = "ett.component"
REASON = "ett.reason"
EXCLUDED_DURATION = "ett.excluded.duration"
STEP_FIRST = "ett.step.first"
STEP_LAST = "ett.step.last"
STEP_COUNT = "ett.step.count"
STEP_DURABLE = "ett.step.durable"
EXAMPLES = "ett.examples"
STALL_COUNT = "ett.stall.count"
STALL_DURATION = "ett.stall.duration"
CHECKPOINT_ID = "ett.checkpoint.id"
CHECKPOINT_STEP = "ett.checkpoint.step"
CHECKPOINT_BYTES = "ett.checkpoint.bytes"
CHECKPOINT_TIER = "ett.checkpoint.tier"
CHECKPOINT_BLOCKING = "ett.checkpoint.blocking"
CHECKPOINT_RESULT = "ett.checkpoint.result"
CHECKPOINT_VERIFIED = "ett.checkpoint.verified"
CACHE_RESULT = "ett.compile.cache.result"
FAILURE_DOMAIN = "ett.failure.domain"
FAILURE_EVIDENCE = "ett.failure.evidence"
FAILURE_RANK = "ett.failure.rank"
FAILURE_HOST = "ett.failure.host"
FAILURE_SIGNAL = "ett.failure.signal"
ROLLBACK_FROM = "ett.rollback.from_step"
ROLLBACK_TO = "ett.rollback.to_step"
SHUTDOWN_PLANNED = "ett.shutdown.planned"
LINK_KIND = "ett.link.kind"

# name -> (type, where it stands, what it says)
ATTRIBUTES: dict[str, tuple[str, str, str]] = {
    JOB_ID: ("string", "train, attempt", "The job's name; on a metric's resource only if asked for."),
    JOB_STATE: ("string", "train", "queued, running, suspended, succeeded, failed, cancelled or lost."),
    TEAM: ("string", "resource", "Modelling team that the job's time is counted for."),
    OWNER: ("string", "resource", "Who is asked about the job."),
    MODEL: ("string", "resource", "Short name of the model."),
    CLUSTER: ("string", "resource", "Cluster, where `$OTEL_RESOURCE_ATTRIBUTES` says it."),
    EFFECTIVE_RATIO: ("double", "train", "ETT: effective time over all time, from 0 to 1, as `ett report` says it."),
    "ett.scheduling.duration": ("double", "train, scheduling", "Seconds in which no attempt was alive."),
    "ett.initialization.duration": ("double", "train, initialization", "Seconds of start-up."),
    "ett.compilation.duration": ("double", "train, compilation", "Seconds of compilation."),
    "ett.effective.duration": ("double", "train, training", "Seconds of learning from new data."),
    "ett.wasted.duration": ("double", "train, training, rollback", "Seconds that brought nothing new."),
    "ett.shutdown.duration": ("double", "train, shutdown", "Seconds after training."),
    EXCLUDED_DURATION: ("double", "train", "Seconds that somebody took out of the account."),
    ATTEMPT_NUMBER: ("int", "attempt", "From 1."),
    ATTEMPT_OUTCOME: ("string", "attempt", "completed, failed, preempted, suspended or unknown."),
    WORLD_SIZE: ("int", "attempt", "Number of ranks."),
    RESTART_TIER: ("string", "attempt", "How it followed the one before: in_job or reschedule."),
    EXIT_CODE: ("int", "attempt", "Of the first rank that failed; 128 + n for a signal."),
    ERROR_TYPE: (
        "string",
        "attempt, failure",
        "user_error, infrastructure_failure, unknown_failure or preemption.",
    ),
    COMPONENT: ("string", "scheduling, initialization, compilation, training, shutdown", "The span's component."),
    REASON: ("string", "scheduling, children of initialization, stall", "Second-level reason of the account."),
    STEP_FIRST: ("int", "training, step_window", "Number of the first step that ended in it."),
    STEP_LAST: ("int", "training, step_window", "Number of the last one."),
    STEP_COUNT: ("int", "training, step_window", "Number of steps that ended in it."),
    STEP_DURABLE: ("int", "training", "Newest step that the attempt had committed at its end."),
    EXAMPLES: ("int", "training, step_window", "New examples; those that were seen before do not count again."),
    STALL_COUNT: ("int", "training", "Number of stalls of a second or more; the longest 100 are events."),
    STALL_DURATION: ("double", "stall", "Seconds."),
    CHECKPOINT_ID: ("string", "checkpoint.save, restore", "The checkpoint's id."),
    CHECKPOINT_STEP: ("int", "checkpoint.save, restore", "The step that it holds."),
    CHECKPOINT_BYTES: ("int", "checkpoint.save", "Bytes that it refers to."),
    CHECKPOINT_TIER: ("string", "checkpoint.save", "local survives a process, remote the loss of a host."),
    CHECKPOINT_BLOCKING: ("boolean", "checkpoint.save", "Whether training waited for all of it."),
    CHECKPOINT_RESULT: ("string", "checkpoint.save", "committed, abandoned or unfinished."),
    CHECKPOINT_VERIFIED: ("boolean", "restore", "Whether checksums were compared."),
    CACHE_RESULT: ("string", "compilation.graph", "hit or miss, where the compile cache said so."),
    FAILURE_DOMAIN: ("string", "failure", "workload, infrastructure or unknown."),
    FAILURE_EVIDENCE: ("string", "failure", "The record of the event log that says so."),
    FAILURE_RANK: ("int", "failure", "The rank that failed first."),
    FAILURE_HOST: ("string", "failure", "Its host."),
    FAILURE_SIGNAL: ("int", "failure", "The signal that ended it."),
    ROLLBACK_FROM: ("int", "rollback", "Last step that had been completed."),
    ROLLBACK_TO: ("int", "rollback", "Step that training went back to."),
    SHUTDOWN_PLANNED: ("boolean", "shutdown", "Whether training had said that it was done, or was asked to stop."),
    LINK_KIND: ("string", "links", "previous_attempt, or launched_by: the context in $TRACEPARENT of `ett launch`."),
}


def duration(component: str) -> str:
    """Return the attribute that holds a component's seconds."""
    return f"ett.{component}.duration"
