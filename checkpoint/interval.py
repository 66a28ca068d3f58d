"""When a checkpoint is due: parsed from a recipe's `checkpoint.interval`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ett.errors import ConfigError

EXPECTED = "'auto', a number of steps such as '500 steps', or a time such as '90s', '6m', '1h'"
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_STEPS = re.compile(r"(-?\d+)\s*steps?")
_TIME = re.compile(r"(-?\d+(?:\.\d+)?)\s*([smh])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    kind: Literal["auto", "steps", "time"]
    steps: int = 0  # kind "steps": save at every multiple of this many steps
    seconds: float = 0.0  # kind "time": save when this long has passed since the last save


def parse_interval(text: str, field: str = "checkpoint.interval") -> Interval:
    """Return the interval that `text` means.

    Raises: ConfigError: no known form, zero or negative; names `field`, the value and the forms.
    """
    word = text.strip().lower()
    if word == "auto":
        return Interval(kind="auto")
    if found := _STEPS.fullmatch(word):
        steps = int(found[1])
        if steps < 1:
            raise ConfigError(f"{field} is {text!r}", expected="at least '1 steps'")
        return Interval(kind="steps", steps=steps)
    if found := _TIME.fullmatch(word):
        seconds = float(found[1]) * _SECONDS[found[2]]
        if seconds <= 0:
            raise ConfigError(f"{field} is {text!r}", expected="a time above zero")
        return Interval(kind="time", seconds=seconds)
    raise ConfigError(f"{field} is {text!r}", expected=EXPECTED)
