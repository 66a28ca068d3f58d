"""What a job's event log says of its saves: also of those whose commits are gone, and how long uploads took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ett.checkpoint.save_facts import SaveFacts
from ett.job_history import records_of

_RANK_ZERO = "r0-*"  # which tells of all ranks' parts, and whose upload ends with the commit


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveRecord:
    ckpt_uuid: str
    step: int
    policy: str
    facts: SaveFacts
    upload_s: float | None = None  # until the remote store had the commit; None: it has no remote store, or not yet

    def as_json(self) -> dict[str, Any]:
        return self.facts.as_json() | ({} if self.upload_s is None else {"upload_s": self.upload_s})


def read_saves(events: Path) -> dict[str, SaveRecord]:
    """Return a job's saves by the ids of their commits, in the order in which they were made.

    Raises: CorruptState: a record of a newer schema version.
    """
    uploads = records_of(events, "ckpt_upload", _RANK_ZERO)
    upload_s: Mapping[Any, Any] = {record.data.get("id"): record.data.get("seconds") for record in uploads}
    found: dict[str, SaveRecord] = {}
    for record in sorted(records_of(events, "ckpt_detail", _RANK_ZERO), key=lambda each: each.wall_ns):
        ckpt_uuid, step, facts = record.data.get("id"), record.data.get("step"), SaveFacts.of_stats(record.data)
        if facts is not None and isinstance(ckpt_uuid, str) and isinstance(step, int):
            policy = str(record.data.get("policy", ""))
            found[ckpt_uuid] = SaveRecord(
                ckpt_uuid=ckpt_uuid, step=step, policy=policy, facts=facts, upload_s=upload_s.get(ckpt_uuid)
            )
    return found
