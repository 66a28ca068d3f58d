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

_PERCENT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*%")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)(?:\s+per\s+attempt)?")
_UNIT_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
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


def parse_set(text: str, recorded: Iterable[str]) -> Scale:
    """Return the edit of `--set compilation=-80%` or `--set initialization.restore=30s`.

    Args:
        recorded: "component.reason" of everything that the job paid.
    Raises: UsageError: no such form or name, or nothing that a fix could set.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    component, _, reason = name.partition(".")
    known = sorted({*recorded, *COMPONENTS})
    if not equals or name not in known:
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
        if ratio < 0:
            raise UsageError(f"--set {text!r}", expected="at most -100%: nothing can cost less than nothing")
        return Scale(text=text, component=component, reason=part, ratio=ratio)
    if found := _DURATION.fullmatch(value):
        per_start_ns = int(Decimal(found[1]) * _UNIT_S[found[2]] * NS)
        return Scale(text=text, component=component, reason=part, per_start_ns=per_start_ns)
    raise UsageError(f"--set {text!r}", expected="a change such as -80%, or a time for each start such as 30s or 1.5m")


def parse_remove(text: str, stops: Iterable[Stop]) -> Removal:
    """Return the edit of `--remove reason=host_failure`, `failures` or `preemptions`.

    Raises: UsageError: the job was never stopped by that.
    """
    cause = text.partition("=")[2].strip() if text.startswith("reason=") else text.strip()
    edit = Removal(text=f"remove {cause}", cause=cause)
    stops = list(stops)
    if not any(edit.covers(stop) for stop in stops):
        met = sorted({name for stop in stops for name in (stop.reason, stop.cause_class)})
        groups = [name for name, kinds in GROUPS.items() if any(stop.kind in kinds for stop in stops)]
        known = ", ".join(dict.fromkeys([*groups, *met])) or "nothing: it was never interrupted"
        raise UsageError(f"--remove {text!r}: no interruption of this job has that cause", expected=known)
    return edit


def parse_new_interval(text: str) -> NewInterval:
    """Return the edit of `--checkpoint-interval "6m"` or `"500 steps"`, spelled as in a recipe."""
    try:
        found = load(SEAMS["checkpoint_interval"])(text, "--checkpoint-interval")
    except ConfigError as err:
        raise UsageError(err.fact, expected=err.expected) from err
    if found.kind == "auto":
        raise UsageError("--checkpoint-interval 'auto'", expected="a time such as '6m', or '500 steps'")
    return NewInterval(
        text=f"checkpoint interval {text}", kind=found.kind, steps=found.steps, ns=round(found.seconds * NS)
    )
