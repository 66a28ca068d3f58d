"""Draw the paired benchmark: `python -m ett.trainer.bench.paired_bars RESULTS.json OUT.svg`.

Two bars a shape, plain above optimised, of the median seconds of each component.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from ett.errors import UsageError
from ett.event_schema import Component
from ett.timeline_svg import COLOURS, HATCHES, hatch_patterns

_ORDER: tuple[Component, ...] = ("effective", "wasted", "initialization", "compilation", "scheduling", "shutdown")
_WIDTH, _LEFT, _COLUMNS = 960, 190, 640
_TOP, _SHAPE, _BAR = 56, 84, 28
_GREY = "#5F6B76"
Spreads = Mapping[str, Mapping[str, float]]


def paired_bars(shapes: Mapping[str, Any]) -> str:
    """Return an SVG. Args: shapes: `detail.shapes` of the results of `ett bench ett`."""
    height = _TOP + len(shapes) * _SHAPE + 40
    longest_s = max(told[leg]["wall_s"]["median"] for told in shapes.values() for leg in ("plain", "optimised"))
    title = "Where the time of a job goes: plain and optimised, the same steps and the same two failures"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="#1B1F24">',
        f"<title>{title}</title>",
        hatch_patterns(),
        f'<rect width="{_WIDTH}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="24" y="24" font-size="15" font-weight="600">{title}</text>',
    ]
    for number, (name, told) in enumerate(shapes.items()):
        top = _TOP + number * _SHAPE
        parts.append(f'<text x="24" y="{top + 34}" font-weight="600">{escape(name)}</text>')
        for leg, y in (("plain", top), ("optimised", top + _BAR + 6)):
            parts += _bar(leg, told[leg], y, _COLUMNS / longest_s)
    return "\n".join([*parts, *_legend(height - 18), "</svg>"]) + "\n"


def _bar(leg: str, told: Mapping[str, Any], y: int, scale: float) -> Iterator[str]:
    yield f'<text x="{_LEFT - 8}" y="{y + 18}" text-anchor="end" fill="{_GREY}">{leg}</text>'
    x, spent = float(_LEFT), told["components_s"]
    for component in _ORDER:
        seconds = spent[component]["median"]
        width = seconds * scale
        if width > 0:
            place = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}"'
            yield f"<g><title>{leg}, {component}: {seconds:.1f} s</title>{_filled(component, place)}</g>"
        x += width
    share, wall_s = 100 * told["ett"]["median"], told["wall_s"]["median"]
    yield f'<text x="{x + 6:.1f}" y="{y + 18}">{share:.1f} % of {wall_s:.0f} s</text>'


def _legend(y: int) -> Iterator[str]:
    for number, component in enumerate(_ORDER):
        x = 24 + number * 152
        yield _filled(component, f'x="{x}" y="{y - 11}" width="14" height="14"')
        yield f'<text x="{x + 19}" y="{y}">{component}</text>'


def _filled(component: Component, place: str) -> str:
    hatch = f'<rect {place} fill="url(#hatch-{component})"/>' if component in HATCHES else ""
    return f'<rect {place} fill="{COLOURS[component]}"/>{hatch}'


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise UsageError("two arguments are needed", expected="the results of `ett bench ett --json`; the picture")
    detail = json.loads(Path(arguments[0]).read_text())["data"]["detail"]
    if "shapes" not in detail:
        raise UsageError(f"{arguments[0]} has no pairs of jobs", do="run `ett bench ett --json`")
    Path(arguments[1]).write_text(paired_bars(detail["shapes"]))


if __name__ == "__main__":
    main(sys.argv[1:])
