"""Who a job's telemetry is about: the attributes of its OpenTelemetry resource, from its log."""

from __future__ import annotations

import uuid

from ett.accounting import JobAccount
from ett.otel import attribute_names as names
from ett.otel.job_span import AttributeValue, known
from ett.versions import ett_version

_INSTANCES = uuid.UUID("6f1d8f5e-5d3c-5c0a-9a43-3f5c0d1c7e11")


def job_resource(account: JobAccount, *, with_job_id: bool = False) -> dict[str, AttributeValue]:
    """Return the resource's attributes. No id of a job is among them unless asked for: it would make every metric of
    every job a series of its own in a store that keeps resources as labels.

    `service.instance.id` is the same for every export of a job, so that its counters go on over a supervisor's death.
    """
    record = account.window.submitted
    submitted = {} if account.window.submitted is None else account.window.submitted.data
    versions = submitted.get("versions")
    version = versions.get("ett") if isinstance(versions, dict) else None
    return known(
        {
            "service.namespace": "ett",
            "service.name": "ett-trainer",
            "service.version": str(version or ett_version()),
            "service.instance.id": str(uuid.uuid5(_INSTANCES, account.job)),
            "host.name": record.host if record is not None and record.host else None,
            "process.pid": record.pid if record is not None else None,
            names.TEAM: _text(submitted.get("team")),
            names.OWNER: _text(submitted.get("owner")),
            names.MODEL: _text(submitted.get("model")),
            names.JOB_ID: account.job if with_job_id else None,
        }
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
