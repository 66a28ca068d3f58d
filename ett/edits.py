"""The edits of `ett whatif`, parsed: scale a component, drop a cause, save at another interval."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from ett.errors import ConfigError, UsageError
from ett.event_schema import COMPONENTS, NS
from ett.seams import SEAMS, load
from ett.section import nearest
from ett.stops import Stop

_PERCENT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*%", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)(?:\s+per\s+attempt)?", re.ASCII)
_UNIT_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
# Beyond these nothing is a question any more: a slip of the keyboard, answered as if it were meant.
MOST_RATIO, MOST_PER_START_S = 100, 30 * 86_400
# What a fix cannot set: these follow from failures and from the work itself.
_NO_KNOBS = ("effective", "wasted.replay", "wasted.in_flight", "wasted.unsaved_tail")
GROUPS = {"failures": ("failure", "inprocess"), "preemptions": ("preemption",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """`ratio` times what each start paid, or exactly `per_start_ns` of each that paid any; one of them is there."""

    text: str
    component: str
    reason: str | None
    ratio: Fraction | None = None
    per_start_ns: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """Stops of one group, reason or class never happened."""

    text: str
    cause: str

    def covers(self, stop: Stop) -> bool:
        return self.cause in (stop.reason, stop.cause_class) or stop.kind in GROUPS.get(self.cause, ())


@dataclass(frozen=True, kw_only=True, slots=True)
class NewInterval:
    """Save after every multiple of `steps`, or at the first step that ends `ns` after the last save."""

    text: str
    kind: Literal["steps", "time"]
    steps: int = 0
    ns: int = 0


Edit = Scale | Removal | NewInterval


def parse_set(text: str, recorded: Iterable[str] | None) -> Scale:
    """Return the edit of `--set compilation=-80%` or `--set initialization.restore=30s`.

    Args:
        recorded: "component.reason" of everything that was paid; None: not known yet, any reason may be.
    Raises: UsageError: no such form or name, nothing that a fix could set, or a change without measure.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    component, _, reason = name.partition(".")
    known = sorted({*(recorded or ()), *COMPONENTS})
    is_known = name in known or (recorded is None and component in COMPONENTS and bool(reason))
    if not equals or not is_known:
        expected = nearest(name, [n for n in known if n not in _NO_KNOBS and not n.startswith("effective")])
        raise UsageError(f"--set {text!r}", expected=f"NAME=-80% or NAME=30s; {expected}")
    if name in _NO_KNOBS or component == "effective":
        raise UsageError(
            f"--set {text!r}: {name} follows from the work and from failures",
            expected="a component or reason that a fix can change",
            do="use --remove or --checkpoint-interval",
        )
    part = reason or None
    if found := _PERCENT.fullmatch(value):
        ratio = 1 + Fraction(Decimal(found[1])) / 100
        if not 0 <= ratio <= MOST_RATIO:
            raise UsageError(
                f"--set {text[:80]!r}",
                expected=f"-100% (nothing can cost less than nothing) to +{(MOST_RATIO - 1) * 100}%",
            )
        return Scale(text=text, component=component, reason=part, ratio=ratio)
    if found := _DURATION.fullmatch(value):
        seconds = Decimal(found[1]) * _UNIT_S[found[2]]
        if seconds > MOST_PER_START_S:
            raise UsageError(
                f"--set {text[:80]!r}", expected=f"at most {MOST_PER_START_S // 3600}h for each start: 30 days"
            )
        return Scale(text=text, component=component, reason=part, per_start_ns=int(seconds * NS))
    raise UsageError(
        f"--set {text[:80]!r}", expected="a change such as -80%, or a time for each start such as 30s or 1.5m"
    )


def parse_remove(text: str, stops: Iterable[Stop] | None) -> Removal:
    """Return the edit of `--remove reason=host_failure`, `failures` or `preemptions`.

    Args:
        stops: what stopped the jobs; None: not known yet.
    Raises: UsageError: none of the jobs was ever stopped by that.
    """
    cause = text.partition("=")[2].strip() if text.startswith("reason=") else text.strip()
    edit = Removal(text=f"remove {cause}", cause=cause)
    if stops is None:
        return edit
    stops = list(stops)
    if not any(edit.covers(stop) for stop in stops):
        met = sorted({name for stop in stops for name in (stop.reason, stop.cause_class)})
        groups = [name for name, kinds in GROUPS.items() if any(stop.kind in kinds for stop in stops)]
        known = ", ".join(dict.fromkeys([*groups, *met])) or "nothing: there was no interruption"
        raise UsageError(f"--remove {text!r}: no interruption here has that cause", expected=known)
    return edit


def parse_new_interval(text: str) -> NewInterval:
    """Return the edit of `--checkpoint-interval "6m"` or `"500 steps"`, spelled as in a recipe."""
    try:
        found = load(SEAMS["checkpoint_interval"])(text, "--checkpoint-interval")
    except ConfigError as err:
        raise UsageError(err.fact, expected=err.expected) from err
    if found.seconds > MOST_PER_START_S:
        raise UsageError(f"--checkpoint-interval {text[:80]!r}", expected="at most 720h: 30 days")
    if found.kind == "auto":
        raise UsageError("--checkpoint-interval 'auto'", expected="a time such as '6m', or '500 steps'")
    return NewInterval(
        text=f"checkpoint interval {text}", kind=found.kind, steps=found.steps, ns=round(found.seconds * NS)
    )
