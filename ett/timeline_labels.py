"""Names of the bars of a timeline's picture: inside a bar that has room, else below it on a line that leads there.

Of two that would cover each other the shorter time goes unnamed; its bar still has its title.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

_PIXELS_A_LETTER = 7  # at the picture's own size of 12
_PIXELS_A_SMALL_LETTER = 6  # at size 10
_GAP = 8
_ROW, _NUM_ROWS = 11, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledBar:
    """`x`, `y`, `width` and `height` in pixels; `ns`: which of two names matters more."""

    x: int
    y: int
    width: int
    height: int
    ns: int
    name: str
    colour: str


def fits(name: str, width: int) -> bool:
    return width > _PIXELS_A_LETTER * len(name)


def inside(bar: LabelledBar) -> str:
    """Return the name in its bar. The outline is a text of its own: not every viewer paints it below the letters."""
    place = f'x="{bar.x + bar.width / 2:g}" y="{bar.y + bar.height / 2 + 4:g}" text-anchor="middle"'
    name = escape(bar.name)
    return (
        f'<text {place} aria-hidden="true" fill="none" stroke="{bar.colour}" stroke-width="3">{name}</text>'
        f'<text {place} fill="#FFFFFF">{name}</text>'
    )


def below(bars: Iterable[LabelledBar], left: int, right: int, under: int) -> Iterator[str]:
    """Yield the names of one lane's narrow bars, in up to three rows that begin `under` pixels below the bars."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_NUM_ROWS)]
    for bar in sorted(bars, key=lambda bar: (-bar.ns, bar.x)):
        width, centre = _PIXELS_A_SMALL_LETTER * len(bar.name), bar.x + bar.width / 2
        begin = min(max(left, centre - width / 2), right - width)
        end = begin + width
        row = next((i for i, own in enumerate(taken) if all(end < b - _GAP or begin > e + _GAP for b, e in own)), None)
        if row is None:
            continue
        taken[row].append((begin, end))
        bottom, baseline = bar.y + bar.height, bar.y + bar.height + under + row * _ROW
        yield (
            f'<path d="M{centre:g} {bottom}V{baseline - 8}" stroke="{bar.colour}" stroke-width="1.5"/>'
            f'<text x="{begin + width / 2:g}" y="{baseline}" text-anchor="middle" font-size="10">'
            f"{escape(bar.name)}</text>"
        )
