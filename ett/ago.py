"""A time span before now on the command line: 7d, 12h, 90m."""

from __future__ import annotations

import re
import time
from typing import Any

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Ago(click.ParamType[float]):
    """7d, 12h, 90m, 2w or 30s before now -> Unix seconds."""

    name = "ago"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d{1,9})([smhdw])", value, re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no time span such as 7d, 12h or 90m", param, ctx)
        return time.time() - int(found[1]) * _UNITS_S[found[2]]
