"""A report as a person reads it in a terminal or a file: no colour, no redraw, so that both look the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ett.event_schema import COMPONENTS, NS, Component
from ett.interruptions import FailureClass
from ett.recompilations import Recompilations
from ett.report import Report

_BAR_CELLS = 64
GLYPHS: dict[Component, str] = {
    "effective": "█",
    "wasted": "▓",
    "initialization": "▒",
    "compilation": "#",
    "scheduling": "░",
    "shutdown": "-",
}
_TOP_REASONS = 3
# Flags whose meaning no warning says already.
_FLAGS = {
    "inferred_end": "nobody wrote the end of an attempt (its supervisor died); it ends at its last record",
    "inferred_start": "nobody wrote the start of an attempt; it begins at its first record",
    "recovered_step": "the record of a step was lost; the cursors around it give the step its time",
    "cursor_unknown": "an attempt continued from a position that nobody recorded; its steps may be new or replayed",
    "samples_inferred": "batches of some steps had no size that hooks could see; such a step counts as one sample",
    "inferred_by_hooks": "evaluations, saves, restores or the end of training were seen from outside",
    "clock_unsynced": "a host's clock was never compared with the supervisor's; its times are as it says",
    "no_job_submitted": "nobody wrote the submission; the window opens at the first record",
}


def render(
    report: Report,
    beside: Mapping[Component, tuple[str, str]] | None = None,
    told: Sequence[str] = (),
    objective: float | None = None,
) -> str:
    """Return the report's lines: header, bar, components with their top reasons, failures, window.

    Args:
        beside: each component's budget and owner, where the site file knows any.
        objective: of ETT, from 0 to 1.
        told: lines of who caused what, and of fixes.
    """
    width = max((len(owner) for _, owner in beside.values()), default=0) + 2 if beside else 0
    columns = "" if beside is None else f"{'budget':>8}  {'owner':<{width}}"
    lines = [
        _header(report, objective),
        _bar(report),
        f"  {'component':<15}{'time':>10}  {'share':>8}  {columns}top reasons",
    ]
    for component in sorted(COMPONENTS, key=lambda c: (-report.ns[c], COMPONENTS.index(c))):
        columns = "" if beside is None else f"{beside[component][0]:>8}  {beside[component][1]:<{width}}"
        lines.append(_component_line(report, component, columns))
    lines.append(f"  {'total':<15}{duration(report.total_ns):>10}  {share(1.0 if report.total_ns else None):>8}")
    lines += [_failure_line(report), *told]
    if report.num_replayed_steps:
        replayed = duration(report.detail_ns["wasted.replay"])
        lines.append(f"replayed {count(report.num_replayed_steps, 'step')} ({replayed}) over data already learned from")
    if recompiled := recompilation_line(report.recompilations):
        lines.append(recompiled)
    if report.state_word in ("running", "lost"):
        remote = f", the loss of a host {duration(report.at_risk_remote_ns)}"
        remote = remote if report.at_risk_remote_ns != report.at_risk_ns else ""
        lines.append(f"at risk {duration(report.at_risk_ns)}: what a failure now would lose{remote}")
    lines += [f"flagged {flag}: {_FLAGS[flag]}" for flag in report.flags if flag in _FLAGS]
    lines.append(_window_line(report))
    return "\n".join(lines)


def recompilation_line(found: Recompilations) -> str:
    """Return "recompiled 3 times after the first step (2.1s): …" with the guard that failed most; "" for none."""
    if not found.count:
        return ""
    where = f" on {found.num_ranks} ranks" if found.num_ranks > 1 else ""
    longest = duration(found.longest_s * NS) + (" on the slowest" if found.num_ranks > 1 else "")
    worst = found.guards[0]
    share = "" if worst.times == found.count else f", {worst.times} of them"
    why = f": {worst.guard}, in {worst.code}{share}" if worst.guard else ""
    return f"recompiled {count(found.count, 'time')} after the first step{where} ({longest}){why}"


def duration(ns: float) -> str:
    """Return 14h 02m, 31m 07s, 12.3s, 7ms, 40us; a zero is 0s."""
    seconds = ns / NS
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}us" if ns else "0s"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}h {minutes % 60:02}m"


def share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.1f} %"


def points(ratio: float) -> str:
    """Return +1.9 points: hundredths of the wall time."""
    return f"{ratio * 100:+.1f} points"


def cells(ns: Mapping[Component, int], order: Sequence[Component], width: int) -> dict[Component, int]:
    """Share `width` cells of a bar among the components, by largest remainders: they sum to the width, or to 0."""
    total = sum(ns.values())
    if not total:
        return {}
    found = {c: ns[c] * width // total for c in order}
    rest = sorted(order, key=lambda c: -(ns[c] * width % total))
    for component in rest[: width - sum(found.values())]:
        found[component] += 1
    return found


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _header(report: Report, objective: float | None) -> str:
    parts = [report.job or "(no job)", report.state_word, count(report.num_ranks, "rank")]
    parts += [count(report.num_attempts, "attempt"), f"wall {duration(report.total_ns)}", f"ETT {share(report.ett)}"]
    if objective is not None:
        parts[-1] += f" (objective {share(objective)})"
    return "   ".join(parts)


def _bar(report: Report) -> str:
    order = sorted(COMPONENTS, key=lambda c: (-report.ns[c], COMPONENTS.index(c)))
    return "".join(GLYPHS[c] * n for c, n in cells(report.ns, order, _BAR_CELLS).items())


def _component_line(report: Report, component: Component, columns: str) -> str:
    ns = report.ns[component]
    ratio = ns / report.total_ns if report.total_ns else None
    reasons = [(name.split(".", 1)[1], n) for name, n in report.detail_ns.items() if name.startswith(f"{component}.")]
    reasons.sort(key=lambda item: (-item[1], item[0]))
    top = ", ".join(f"{name} {duration(n)}" for name, n in reasons[:_TOP_REASONS]) if component != "effective" else ""
    return f"{GLYPHS[component]} {component:<15}{duration(ns):>10}  {share(ratio):>8}  {columns}{top}".rstrip()


def _failure_line(report: Report) -> str:
    failures = report.count("failure", "inprocess")
    classes: tuple[FailureClass, ...] = ("infra", "user", "unknown")
    causes = [f"{n} {name}" for name in classes if (n := report.num_failures_of(name))]
    failed = count(failures, "failure") + (f" ({', '.join(causes)})" if failures else "")
    parts = [f"{failed} lost {duration(report.wasted_failure_ns)} of work" if failures else failed]
    parts += [
        count(report.count("inprocess"), "in-process restart"),
        count(report.count("preemption"), "preemption"),
        count(report.count("resize"), "resize"),
    ]
    return " · ".join(parts)


def _window_line(report: Report) -> str:
    span_ns = report.end_ns - report.begin_ns
    excluded = f", {duration(span_ns - report.total_ns)} excluded" if span_ns != report.total_ns else ""
    formula = report.formula
    check = f"closed formula 1 - (TTS {duration(formula.tts_ns)} + {formula.nof} x TTR {duration(formula.ttr_ns)})/wall"
    return (
        f"window {_local(report.begin_ns)} to {_local(report.end_ns)}{excluded}{_clock_note(report)}\n"
        f"from allocation {share(report.ett_from_allocation)} · by rank-seconds {share(report.capacity_ett)}"
        f" · {check} = {share(formula.ett)}"
    )


def _clock_note(report: Report) -> str:
    if report.clock_uncertainty_ns is None:
        return ", a clock could not be tied to the supervisor's"
    return f", clocks within {duration(report.clock_uncertainty_ns)}" if report.clock_uncertainty_ns else ""


def _local(ns: int) -> str:
    return datetime.fromtimestamp(ns // NS).astimezone().isoformat(sep=" ", timespec="seconds")
