"""A job's account as one SVG: a lane an attempt, a bar a component, commits, failures and a legend with the shares.

Colours and patterns tell the components apart also for the colour-blind and in print; every bar has a title for screen
readers. The same account drawn twice gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from ett.accounting import JobAccount
from ett.event_schema import COMPONENTS, NS, Component
from ett.rank_timeline import Piece
from ett.report_text import duration, share

_WIDTH, _LEFT, _RIGHT = 960, 92, 24
_TOP, _LANE, _BAR = 56, 58, 28
_COLOURS: dict[Component, str] = {
    "effective": "#0072B2",
    "wasted": "#D55E00",
    "initialization": "#B87A00",
    "scheduling": "#3D8FB8",
    "compilation": "#B0568B",
    "shutdown": "#5F6B76",
}
_HATCHES: dict[Component, str] = {
    "wasted": "M0 0L8 8M8 0L0 8",
    "initialization": "M0 8L8 0",
    "scheduling": "M3 3h2v2h-2z",
    "compilation": "M0 0L8 8",
    "shutdown": "M4 0V8",
}
_ORDER: tuple[Component, ...] = ("effective", "wasted", "initialization", "scheduling", "compilation", "shutdown")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    lane: int
    begin_ns: int
    end_ns: int
    component: Component
    reason: str


def timeline_svg(account: JobAccount) -> str:
    """Return the picture of a job's whole window; an empty window gives a picture without bars."""
    lanes = max(1, len(account.timelines))
    height = _TOP + lanes * _LANE + 74
    scale = _Scale(account.window.start_ns, max(account.window.end_ns, account.window.start_ns + 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="#1B1F24">',
        f"<title>{escape(_title(account))}</title>",
        _patterns(),
        f'<rect width="{_WIDTH}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">{escape(_title(account))}</text>',
        *_axis(scale, lanes),
        *(_lane_label(i, t.attempt.number) for i, t in enumerate(account.timelines)),
        *(_bar(bar, scale) for bar in _bars(account)),
        *_commits(account, scale),
        *_failures(account, scale),
        *_legend(account, _TOP + lanes * _LANE + 44),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.end_ns = begin_ns, end_ns

    def x(self, time_ns: int) -> float:
        width = _WIDTH - _LEFT - _RIGHT
        return round(_LEFT + width * (time_ns - self.begin_ns) / (self.end_ns - self.begin_ns), 2)


def _title(account: JobAccount) -> str:
    total = sum(piece.end_ns - piece.begin_ns for piece in account.pieces)
    effective = _spent(account.pieces)["effective"]
    ett = share(effective / total if total else None)
    return f"{account.job}   {account.window.state.lower()}   wall {duration(total)}   ETT {ett}"


def _spent(pieces: Sequence[Piece]) -> dict[Component, int]:
    spent = dict.fromkeys(COMPONENTS, 0)
    for piece in pieces:
        spent[piece.component] += piece.end_ns - piece.begin_ns
    return spent


def _bars(account: JobAccount) -> Iterator[_Bar]:
    """Join adjacent pieces of one component; time between attempts is drawn in the lane of the next one."""
    starts = [t.pieces[0].begin_ns for t in account.timelines if t.pieces]
    ends = [t.pieces[-1].end_ns for t in account.timelines if t.pieces]

    def lane(piece: Piece) -> int:
        over = sum(end <= piece.begin_ns for end in ends)
        return min(over, max(0, len(starts) - 1))

    for key, group in groupby(account.pieces, lambda p: (lane(p), p.component, _shown_reason(p))):
        pieces = list(group)
        yield _Bar(lane=key[0], begin_ns=pieces[0].begin_ns, end_ns=pieces[-1].end_ns, component=key[1], reason=key[2])


def _shown_reason(piece: Piece) -> str:
    return "" if piece.component == "effective" else piece.reason


def _bar(bar: _Bar, scale: _Scale) -> str:
    x, end_x = scale.x(bar.begin_ns), scale.x(bar.end_ns)
    y, width = _TOP + bar.lane * _LANE, max(end_x - x, 0.4)
    label = f"{bar.component}{'.' + bar.reason if bar.reason else ''} {duration(bar.end_ns - bar.begin_ns)}"
    shape = f'x="{x}" y="{y}" width="{width:.2f}" height="{_BAR}"'
    hatch = f'<rect {shape} fill="url(#hatch-{bar.component})"/>' if bar.component in _HATCHES else ""
    text = ""
    if width > 7 * len(bar.reason or bar.component):
        text = (
            f'<text x="{x + width / 2:.2f}" y="{y + _BAR / 2 + 4}" text-anchor="middle" fill="#FFFFFF" '
            f'stroke="{_COLOURS[bar.component]}" stroke-width="3" paint-order="stroke">'
            f"{escape(bar.reason or bar.component)}</text>"
        )
    fill = _COLOURS[bar.component]
    return f'<g><title>{escape(label)}</title><rect {shape} fill="{fill}"/>{hatch}{text}</g>'


def _patterns() -> str:
    tiles = [
        f'<pattern id="hatch-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="#FFFFFF" stroke-opacity="0.45" fill="none"/></pattern>'
        for name, path in _HATCHES.items()
    ]
    return "<defs>" + "".join(tiles) + "</defs>"


def _axis(scale: _Scale, lanes: int) -> Iterator[str]:
    span_s = (scale.end_ns - scale.begin_ns) / NS
    step_s = next((s for s in _tick_steps() if span_s / s <= 10), span_s)
    bottom = _TOP + lanes * _LANE
    for i in range(int(span_s / step_s) + 1):
        x = scale.x(scale.begin_ns + round(i * step_s * NS))
        yield f'<line x1="{x}" y1="{_TOP - 10}" x2="{x}" y2="{bottom}" stroke="#D6DBE0"/>'
        anchor, label = "start" if i == 0 else "middle", duration(i * step_s * NS)
        yield f'<text x="{x}" y="{bottom + 15}" text-anchor="{anchor}" fill="#5F6B76">{label}</text>'


def _tick_steps() -> Iterator[float]:
    yield from (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)
    hours = 1
    while True:
        yield hours * 3600.0
        hours *= 2


def _lane_label(lane: int, number: int) -> str:
    y = _TOP + lane * _LANE + _BAR / 2 + 4
    return f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end">attempt {number}</text>'


def _commits(account: JobAccount, scale: _Scale) -> Iterator[str]:
    for lane, timeline in enumerate(account.timelines):
        for timed in timeline.attempt.records:
            if timed.record.ev == "ckpt_commit":
                x, y = scale.x(timed.time_ns), _TOP + lane * _LANE + _BAR + 3
                step = timed.record.data.get("step", "?")
                yield (
                    f"<g><title>checkpoint of step {escape(str(step))} committed</title>"
                    f'<path d="M{x} {y}l4 8h-8z" fill="#1B1F24"/></g>'
                )


def _failures(account: JobAccount, scale: _Scale) -> Iterator[str]:
    for lane, timeline in enumerate(account.timelines):
        ended = timeline.attempt.ended
        if timeline.pieces and ended is not None and ended.data.get("reason") == "failed":
            x, y = scale.x(timeline.pieces[-1].end_ns), _TOP + lane * _LANE
            yield (
                f'<g stroke="#A40000" stroke-width="2.5"><path d="M{x - 5} {y - 12}l10 10m0 -10l-10 10"/></g>'
                f'<text x="{x + 9}" y="{y - 3}" fill="#A40000">failure</text>'
            )


def _legend(account: JobAccount, y: int) -> Iterator[str]:
    spent = _spent(account.pieces)
    total = sum(spent.values())
    column = (_WIDTH - _LEFT - _RIGHT) / len(_ORDER)
    for i, component in enumerate(_ORDER):
        x = round(_LEFT + i * column, 2)
        shape = f'x="{x}" y="{y - 11}" width="14" height="14"'
        hatch = f'<rect {shape} fill="url(#hatch-{component})"/>' if component in _HATCHES else ""
        ratio = share(spent[component] / total if total else None)
        yield (
            f'<rect {shape} fill="{_COLOURS[component]}"/>{hatch}<text x="{x + 19}" y="{y}">{component}</text>'
            f'<text x="{x + 19}" y="{y + 16}" fill="#5F6B76">{duration(spent[component])} · {ratio}</text>'
        )
    yield f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end" fill="#5F6B76">▲ commit</text>'
