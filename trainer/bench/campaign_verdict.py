"""What is wrong with a job that faults were injected into: its end, its bits, its account. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ett.accounting import account
from ett.event_reader import read_folder
from ett.event_schema import NS, Record
from ett.trainer.bench.campaign_job import Ended


def wrongs(ended: Ended, whole: Ended, num_failures: int, *, is_other_host: bool = False) -> list[str]:
    """Return one line for each thing that is not as it must be.

    Args:
        whole: the job that nothing happened to.
        num_failures: that the account must count.
        is_other_host: the job began on a host that is gone with its log, and went on at a checkpoint.
    """
    if ended.code != 0:
        named = [line for line in ended.err.splitlines() if line.startswith(("error[", "ett: "))]
        return [f"it ended with code {ended.code}: {' / '.join(named[-3:])}"]
    if is_other_host and ended.losses:
        lines = whole.losses.splitlines(keepends=True)
        whole = replace(whole, losses="".join(lines[len(lines) - len(ended.losses.splitlines()) :]))
    return [*wrong_bits(ended, whole), *wrong_faults(ended), *wrong_account(ended, num_failures)]


def wrong_bits(ended: Ended, whole: Ended) -> list[str]:
    found = [
        f"{name} is {ended.facts.get(name)}, undisturbed {value}"
        for name, value in whole.facts.items()
        if ended.facts.get(name) != value
    ]
    if not whole.facts:
        found.append("the undisturbed job has no checkpoint to compare with")
    if ended.losses != whole.losses:
        found.append(f"its losses differ from the undisturbed ones{_first_difference(ended.losses, whole.losses)}")
    return found


def wrong_faults(ended: Ended) -> list[str]:
    """Return what of the plan did not happen, and which failures the log does not name as injected."""
    unfired = [line for line in ended.err.splitlines() if "never fired" in line]
    ends = [r for r in ended.records("attempt_ended", "fault") if r.data.get("reason", "failed") == "failed"]
    return unfired + [
        f"the {r.ev} of attempt {r.att} has the cause {r.data.get('cause')!r}, not injected_fault"
        for r in ends
        if r.data.get("cause") != "injected_fault"
    ]


def wrong_account(ended: Ended, num_failures: int) -> list[str]:
    """Compare the report with its own sum, and the attempts' times with the observer's."""
    report = ended.report
    if not report:
        return ["`ett report` says nothing"]
    found = []
    if sum(report["ns"].values()) != report["total_ns"]:
        found.append(f"the components sum to {sum(report['ns'].values())} ns of {report['total_ns']}")
    if report["interruptions"]["failures"] != num_failures:
        found.append(f"{report['interruptions']['failures']} failures are counted, expected {num_failures}")
    if report["total_s"] > ended.wall_s + ended.tolerance_s:
        found.append(f"the job took {report['total_s']:.2f} s, the command {ended.wall_s:.2f} s")
    spans = attempt_spans(ended)
    if set(spans) - set(ended.lives_s):
        found.append(f"nobody saw attempts {sorted(set(spans) - set(ended.lives_s))}")
    found += compare_times(spans, ended.lives_s, ended.tolerance_s)
    return found


def compare_times(
    told: dict[int, tuple[float, float]], seen: dict[int, tuple[float, float]], tolerance_s: float
) -> list[str]:
    """Return where an attempt begins or ends at another time than it was seen to, by more than the tolerance."""
    return [
        f"attempt {number} {what} {abs(log_s - seen_s):.2f} s {'after' if log_s > seen_s else 'before'} what was seen, "
        f"tolerance {tolerance_s:.2f} s"
        for number in sorted(set(told) & set(seen))
        for what, log_s, seen_s in zip(("begins", "ends"), told[number], seen[number], strict=True)
        if abs(log_s - seen_s) > tolerance_s
    ]


def attempt_spans(ended: Ended) -> dict[int, tuple[float, float]]:
    """Return begin and end of each attempt by the account, in seconds of this host's monotonic clock."""
    log = read_folder(ended.job_dir)
    told = account(log, as_of_ns=max(r.wall_ns for r in log.records) + NS)
    assert told is not None
    offset_ns = next(r.wall_ns - r.mono_ns for r in log.records if r.ev == "job_submitted")
    attempts = [timeline.attempt for timeline in told.timelines]
    return {
        a.number: ((a.start_ns - offset_ns) / NS, (a.end_ns - offset_ns) / NS)
        for a in attempts
        if a.start_ns is not None
    }


def _first_difference(ours: str, theirs: str) -> str:
    for number, (one, other) in enumerate(zip(ours.splitlines(), theirs.splitlines(), strict=False), start=1):
        if one != other:
            return f", first in line {number}: {one} instead of {other}"
    return f": {len(ours.splitlines())} lines instead of {len(theirs.splitlines())}"


def moments(ended: Ended) -> dict[str, float]:
    """Return what the first failure of a job took, in seconds: until it was seen, and until the first step after it.

    `detected_s` from the fault to the supervisor's record; `back_s` from the fault to the end of the first step after
    it, on every rank, less `read_s`, for which its checkpoint was read between them.
    """
    seen = ended.records("attempt_ended", "fault")
    seen_s = next(r.mono_ns / NS for r in seen if r.data.get("reason", "failed") == "failed")
    fault_s, rank = _last_injected(ended, seen_s)
    after = [r for r in ended.records("step") if r.data["b_mono"] / NS > seen_s]
    ranks = {r.rank for r in after}
    back_s = max(min(r.data["e_mono"] / NS for r in after if r.rank == one) for one in ranks)
    read_s = _restore_s(ended.records("span_begin", "span_end"), rank, fault_s, back_s)
    return {"detected_s": seen_s - fault_s, "back_s": back_s - fault_s - read_s, "read_s": read_s}


def _last_injected(ended: Ended, before_s: float) -> tuple[float, int | None]:
    last = [r for r in ended.records("fault_injected") if r.mono_ns / NS < before_s][-1]
    return last.mono_ns / NS, last.rank


def _restore_s(spans: Sequence[Record], rank: int | None, begin_s: float, end_s: float) -> float:
    """Return how long the longest restore took that has no other one within: around it a node of the start waits."""
    begun = {
        (r.pid, r.data["id"]): r
        for r in spans
        if r.ev == "span_begin" and r.rank == rank and r.data["name"] == "restore" and begin_s < r.mono_ns / NS < end_s
    }
    around = {(r.pid, r.data.get("parent")) for r in begun.values()}
    ends = {(r.pid, r.data["id"]): r.mono_ns for r in spans if r.ev == "span_end"}
    took_ns = [ends[key] - r.mono_ns for key, r in begun.items() if key not in around and key in ends]
    return max(took_ns, default=0) / NS
