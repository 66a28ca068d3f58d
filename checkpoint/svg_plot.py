"""Panels of lines and bars below each other, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

PANEL = 270  # height of a plot with its title and axis
_WIDTH, _LEFT, _PLOT_WIDTH, _PLOT_HEIGHT = 760, 64, 660, 190


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Lines over one axis; tops: the largest x and y that are drawn; x_ticks: words below the axis, not quarters."""

    top: int
    title: str
    x_label: str
    x_top: float
    y_top: float
    y_unit: str
    x_ticks: Mapping[float, str] = field(default_factory=dict)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / self.x_top * _PLOT_WIDTH, self.top + _PLOT_HEIGHT * (1 - y / self.y_top)

    def frame(self) -> list[str]:
        left, bottom = self.at(0, 0)
        parts = [text(_LEFT - 48, self.top - 14, self.title, 'font-weight="bold"')]
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = self.at(0, share * self.y_top)[1]
            parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + _PLOT_WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(text(left - 8, y + 4, f"{share * self.y_top:.4g}{self.y_unit}", 'text-anchor="end"'))
            if not self.x_ticks:
                parts.append(self._tick(share * self.x_top, f"{share * self.x_top:.4g}", bottom))
        parts += [self._tick(x, words, bottom) for x, words in self.x_ticks.items()]
        return [*parts, text(left + _PLOT_WIDTH / 2, bottom + 34, self.x_label, 'text-anchor="middle"')]

    def _tick(self, x: float, words: str, bottom: float) -> str:
        return text(self.at(x, 0)[0], bottom + 16, words, 'text-anchor="middle"')

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> str:
        points = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in zip(xs, ys, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>'

    def named(self, name: str, colour: str, x: int) -> list[str]:
        """Say whose a line is, beside the title."""
        y = self.top - 14
        box = f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        return [box, text(x + 15, y, name)]

    def bars(self, xs: Sequence[float], parts: Mapping[str, Sequence[float]]) -> list[str]:
        """Return a bar at each x, of parts upon each other: their heights at each x, by colour."""
        width = 0.8 * _PLOT_WIDTH / self.x_top
        found, heights = [], [0.0] * len(xs)
        for colour, values in parts.items():
            for n, value in enumerate(values):
                if value > 0:
                    x, bottom = self.at(xs[n], heights[n])
                    heights[n] += value
                    top = self.at(xs[n], heights[n])[1]
                    place = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.2f}"'
                    found.append(f'<rect {place} fill="{colour}"/>')
        return found


def panels(plots: Sequence[Sequence[str]]) -> str:
    """Return a picture of plots, the n-th of which begins at n * PANEL."""
    height = len(plots) * PANEL + 30
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    return "\n".join([*head, *(part for plot in plots for part in plot), "</svg>\n"])


def text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" {style}>{escape(words)}</text>'
