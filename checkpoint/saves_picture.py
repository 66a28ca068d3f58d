"""Draw what a job's saves wrote and took: `python -m ett.checkpoint.saves_picture EVENTS OUT.svg`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from ett.checkpoint.save_facts import CAPTURES
from ett.checkpoint.save_records import SaveRecord, read_saves
from ett.checkpoint.svg_plot import PANEL, Plot, panels
from ett.errors import NoCheckpoint, UsageError

_KINDS = {"base": "#4269d0", "hot": "#d1495b", "cold": "#3ca951", "dense": "#bbb"}
_WAYS = dict(zip(CAPTURES, ("#4269d0", "#bbb", "#d1495b"), strict=True))
_TOPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
_UNITS = ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B"))


def saves_picture(saves: Sequence[SaveRecord]) -> str:
    """Return an SVG: for each save in order its bytes by kind, its seconds and its threshold.

    Where saves went on beside training, also rows by the way that they were captured.
    """
    plots = [_bytes(saves), _seconds(saves, PANEL), _thresholds(saves, 2 * PANEL)]
    if any(save.facts.sweep_rows is not None for save in saves):
        plots.append(_captures(saves, 3 * PANEL))
    return panels(plots)


def _bytes(saves: Sequence[SaveRecord]) -> list[str]:
    most = max(save.facts.num_bytes for save in saves)
    size, unit = next(each for each in _UNITS if most >= each[0] or each[0] == 1.0)
    parts = {colour: [getattr(save.facts, f"{kind}_bytes") / size for save in saves] for kind, colour in _KINDS.items()}
    return _stacked("Bytes of each save, by kind", _KINDS, parts, unit, 0)


def _captures(saves: Sequence[SaveRecord], top: int) -> list[str]:
    parts = {
        colour: [float(getattr(save.facts, f"{way}_rows") or 0) for save in saves] for way, colour in _WAYS.items()
    }
    return _stacked("Rows of each save, by way of capture", _WAYS, parts, "", top)


def _seconds(saves: Sequence[SaveRecord], top: int) -> list[str]:
    shown = {
        "stall": ("#d1495b", [save.facts.stall_s for save in saves]),
        "write": ("#4269d0", [save.facts.write_s for save in saves]),
    }
    uploads = [save.upload_s for save in saves if save.upload_s is not None]
    if len(uploads) == len(saves):
        shown["upload"] = "#3ca951", uploads
    highest = max(max(values) for _, values in shown.values())
    plot = _plot("Seconds of each save", len(saves), highest, " s", top)
    parts = plot.frame()
    for number, (name, (colour, values)) in enumerate(shown.items()):
        parts += [plot.line(_numbers(saves), values, colour), *plot.named(name, colour, 430 + 80 * number)]
    return parts


def _thresholds(saves: Sequence[SaveRecord], top: int) -> list[str]:
    plot = _plot("Threshold p* of the largest table", len(saves), 1.0, "", top)
    known = [(n, save.facts.threshold) for n, save in zip(_numbers(saves), saves, strict=True)]
    at = [(n, value) for n, value in known if value is not None]
    return [*plot.frame(), plot.line([n for n, _ in at], [value for _, value in at], "#333")]


def _stacked(title: str, colours: dict[str, str], parts: dict[str, list[float]], unit: str, top: int) -> list[str]:
    heights = [sum(values) for values in zip(*parts.values(), strict=True)]
    plot = _plot(title, len(heights), max(heights), unit, top)
    names = [
        part for n, (kind, colour) in enumerate(colours.items()) for part in plot.named(kind, colour, 430 + 80 * n)
    ]
    return [*plot.frame(), *plot.bars(range(1, len(heights) + 1), parts), *names]


def _plot(title: str, num_saves: int, highest: float, unit: str, top: int) -> Plot:
    return Plot(
        top=top + 40,
        title=title,
        x_label="save",
        x_top=4 * math.ceil((num_saves + 1) / 4),
        y_top=_round_top(highest),
        y_unit=unit,
    )


def _round_top(highest: float) -> float:
    """Return a value of at least `highest` of which a quarter has few digits."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return power * next(top for top in _TOPS if power * top >= highest)


def _numbers(saves: Sequence[SaveRecord]) -> range:
    return range(1, len(saves) + 1)


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise UsageError("two arguments are needed", expected="the folder of a job's events and the file to draw to")
    saves = list(read_saves(Path(arguments[0])).values())
    if not saves:
        raise NoCheckpoint(f"no save is recorded under {arguments[0]}")
    Path(arguments[1]).write_text(saves_picture(saves))


if __name__ == "__main__":
    main(sys.argv[1:])
