"""Records of one attempt -> its checkpoint saves: from begin to commit, and what training waited for of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ett.clock_alignment import Timed
from ett.event_schema import Record

_BLOCKING_SPANS = ("ckpt_save", "final_save")
SaveResult = Literal["committed", "abandoned", "unfinished"]


@dataclass(kw_only=True, slots=True)
class CheckpointSave:
    """[start_ns, end_ns]: of a committed one up to its first commit, else up to what stopped it."""

    id: str
    step: object
    start_ns: int
    end_ns: int
    result: SaveResult
    bytes: object = None
    tier: str | None = None
    waited_until_ns: int | None = None  # where training went on; None: it never waited

    @property
    def blocking_ns(self) -> int:
        return 0 if self.waited_until_ns is None else self.waited_until_ns - self.start_ns


def checkpoint_saves(records: Sequence[Timed], end_ns: int) -> list[CheckpointSave]:
    """Return an attempt's saves by begin; one that nothing ended lasts to the next fault or to `end_ns`."""
    faults = [time_ns for time_ns, record in records if record.ev == "fault"]
    saves: list[CheckpointSave] = []
    open_saves: dict[str, CheckpointSave] = {}
    waits = _waits(records, end_ns)
    for time_ns, record in records:
        if time_ns > end_ns:
            break
        data = record.data
        if record.ev == "ckpt_begin":
            stop_ns = min((fault for fault in faults if fault >= time_ns), default=end_ns)
            save = CheckpointSave(
                id=_id(data),
                step=data.get("step"),
                start_ns=time_ns,
                end_ns=min(stop_ns, end_ns),
                result="unfinished",
            )
            open_saves[save.id] = save
            saves.append(save)
        elif record.ev == "ckpt_commit":
            _commit(saves, open_saves.pop(_id(data), None), time_ns, record, waits)
        elif record.ev == "ckpt_abandoned":
            for key, save in list(open_saves.items()):
                if save.step == data.get("step"):
                    save.end_ns, save.result = time_ns, "abandoned"
                    del open_saves[key]
    for save in saves:
        _set_wait(save, waits)
    return sorted(saves, key=lambda save: save.start_ns)


def _commit(
    saves: list[CheckpointSave], save: CheckpointSave | None, time_ns: int, record: Record, waits: Sequence[_Wait]
) -> None:
    data = record.data
    if save is None:
        earlier = next((s for s in saves if s.id == _id(data) and s.result == "committed"), None)
        if earlier is not None:  # the same checkpoint, now in a tier that survives more
            earlier.tier = str(data.get("tier", "local"))
            return
        # A script that says only that it saved: what is known of the begin is when training began to wait.
        start_ns = next((w.begin_ns for w in waits if w.begin_ns <= time_ns <= w.end_ns), time_ns)
        save = CheckpointSave(
            id=_id(data), step=data.get("step"), start_ns=start_ns, end_ns=time_ns, result="committed"
        )
        saves.append(save)
    save.end_ns, save.result, save.tier = time_ns, "committed", str(data.get("tier", "local"))
    save.bytes = data.get("bytes")


@dataclass(frozen=True, slots=True)
class _Wait:
    begin_ns: int
    end_ns: int


def _waits(records: Sequence[Timed], end_ns: int) -> list[_Wait]:
    """When the rank that writes checkpoints waited for one."""
    running: dict[tuple[str, Any], int] = {}
    found = []
    for time_ns, record in records:
        if record.ev == "span_begin" and record.data.get("blocking") is not False:
            if record.data["name"] in _BLOCKING_SPANS:
                running[record.file, str(record.data["id"])] = time_ns
        elif record.ev == "span_end":
            begin_ns = running.pop((record.file, str(record.data["id"])), None)
            if begin_ns is not None:
                found.append(_Wait(begin_ns, time_ns))
    found += [_Wait(begin_ns, end_ns) for begin_ns in running.values()]
    return sorted(found, key=lambda wait: (wait.begin_ns, wait.end_ns))


def _set_wait(save: CheckpointSave, waits: Sequence[_Wait]) -> None:
    wait = next((w for w in waits if w.begin_ns <= save.start_ns < w.end_ns), None)
    if wait is not None:
        save.waited_until_ns = min(wait.end_ns, save.end_ns)


def _id(data: Any) -> str:
    return str(data.get("id", f"cursor {data.get('cursor')}"))
