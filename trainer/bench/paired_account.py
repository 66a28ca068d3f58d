"""A leg of the paired benchmark in figures, read from its event log; and what is wrong with it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ett.accounting import account
from ett.event_reader import read_folder
from ett.event_schema import COMPONENTS, NS, Record
from ett.report import build_report
from ett.trainer.bench.paired_workload import PLAIN, JobPlan, Leg
from ett.trainer.loss_log import losses_of

Row = dict[str, Any]
# Two programs that compile differently round differently; over a whole job the mean loss hardly shows it.
MEAN_LOSS_TOLERANCE = 0.01


def account_row(job_dir: Path, command_ns: tuple[int, int]) -> Row:
    """Return where the time of a command went, in nanoseconds by component, and what its job did.

    Time before the first record and after the job's end is the command's own: scheduling, as nobody trains. So the
    components sum to what a stopwatch beside the command shows. `first_ns` is the part up to the first failure.

    Args: command_ns: its begin and end, on the monotonic clock of this host.
    """
    log = read_folder(job_dir)
    told = account(log, as_of_ns=max(r.wall_ns for r in log.records) + NS)
    assert told is not None
    submitted = next(r for r in log.records if r.ev == "job_submitted")
    to_normalised = submitted.wall_ns - submitted.mono_ns
    begun_ns, ended_ns = (at + to_normalised for at in command_ns)
    faults = sorted((r for r in log.records if r.ev == "fault_injected"), key=lambda r: r.mono_ns)
    first_fault_ns = faults[0].mono_ns + to_normalised if faults else ended_ns
    whole, first = build_report(told), build_report(told, (told.window.start_ns, first_fault_ns))
    before_ns, after_ns = whole.begin_ns - begun_ns, ended_ns - whole.end_ns
    steps = [r for r in log.records if r.ev == "step" and r.rank == 0]
    return {
        "wall_ns": command_ns[1] - command_ns[0],
        "ns": _with_scheduling(whole.ns, before_ns + after_ns),
        "first_ns": _with_scheduling(first.ns, before_ns),
        "outside_ns": [before_ns, after_ns],
        "detail_ns": dict(whole.detail_ns),
        "ett_by_report": whole.ett,
        "state": whole.state_word,
        "failures": sum(i.is_failure for i in whole.interruptions),
        "faults": [r.data["step"] for r in faults],
        "steps": max((r.data["step"] for r in steps), default=0),
        "samples": max((r.data["c1"] for r in steps), default=0),
        "step_ms": _median_step_ms(steps),
        "flags": list(whole.flags),
    }


def mean_loss(text: str) -> float | None:
    """Return the mean over the steps of a metrics.jsonl; None without one."""
    losses = losses_of(text.splitlines(keepends=True))
    return statistics.fmean(losses.values()) if losses else None


def wrongs(leg: Leg, row: Mapping[str, Any], plan: JobPlan, whole: Mapping[str, Any] | None) -> list[str]:
    """Return one line for each thing that is not as it must be, or the leg is no half of a pair.

    Args: whole: the row of the undisturbed leg; None: this is it.
    """
    if row["code"] != 0:
        return [f"it ended with code {row['code']}: {row['said']}"]
    kills = list(plan.kills) if leg.has_failures else []
    expected = {"state": "succeeded", "faults": kills, "failures": len(kills), "steps": plan.steps}
    if whole is not None:
        expected["samples"] = whole["samples"]
    if whole is not None and leg.variant != PLAIN:
        expected |= {"facts": whole["facts"], "loss": whole["loss"]}
    found = [f"{name}: {row[name]}, expected {value}" for name, value in expected.items() if row[name] != value]
    if sum(row["ns"].values()) != row["wall_ns"]:
        found.append(f"the components sum to {sum(row['ns'].values())} ns, the command took {row['wall_ns']}")
    if min(row["outside_ns"]) < 0:
        found.append(f"the job's window leaves its command by {-min(row['outside_ns']) / NS:.3f} s")
    if leg.variant != PLAIN and not row["facts"]:
        found.append("it has no checkpoint to compare")
    if leg.variant == PLAIN and whole is not None:
        found += _wrong_loss(row["loss"], whole["loss"])
    return found


def _wrong_loss(loss: float | None, expected: float) -> list[str]:
    if loss is not None and abs(loss - expected) <= MEAN_LOSS_TOLERANCE * expected:
        return []
    return [f"its mean loss is {loss}, undisturbed {expected}: it did not learn the same"]


def _with_scheduling(ns: Mapping[Any, int], more_ns: int) -> dict[str, int]:
    return {name: ns[name] + (more_ns if name == "scheduling" else 0) for name in COMPONENTS}


def _median_step_ms(steps: Sequence[Record]) -> float:
    times = [(r.data["e_mono"] - r.data["b_mono"]) / 1e6 for r in steps]
    return round(statistics.median(times), 3) if times else 0.0
