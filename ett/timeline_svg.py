"""A job's account as one SVG: a lane an attempt, a bar a component, commits, failures and a legend with the shares.

Colours and patterns tell the components apart also for the colour-blind and in print; every bar has a title for screen
readers. The same account drawn twice gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, groupby

from ett.accounting import JobAccount
from ett.event_schema import COMPONENTS, NS, Component
from ett.interval_set import Interval
from ett.piece_sums import measure_by_reason, measure_each
from ett.report_text import duration, share
from ett.shown_text import shown
from ett.timeline_labels import LabelledBar, below, fits, inside

_WIDTH, _LEFT, _RIGHT = 960, 92, 24
_COLUMNS = _WIDTH - _LEFT - _RIGHT  # pixels of the time axis
_TOP, _LANE, _BAR = 56, 86, 28
_BELOW = 23  # from a bar's bottom to the first row of names: a commit's mark lies between
_NARROWEST_BORDERED = 3  # pixels; a line in a narrower bar would hide it
COLOURS: dict[Component, str] = {
    "effective": "#0072B2",
    "wasted": "#D55E00",
    "initialization": "#B87A00",
    "scheduling": "#3D8FB8",
    "compilation": "#B0568B",
    "shutdown": "#5F6B76",
}
HATCHES: dict[Component, str] = {
    "wasted": "M0 0L8 8M8 0L0 8",
    "initialization": "M0 8L8 0",
    "scheduling": "M3 3h2v2h-2z",
    "compilation": "M0 0L8 8",
    "shutdown": "M4 0V8",
}
_ORDER: tuple[Component, ...] = ("effective", "wasted", "initialization", "scheduling", "compilation", "shutdown")


_Verdict = tuple[Component, str]  # component, and the reason that is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    lane: int
    x: int
    width: int
    ns: int
    verdict: _Verdict


def timeline_svg(account: JobAccount) -> str:
    """Return the picture of a job's whole window; an empty window gives a picture without bars."""
    lanes = max(1, len(account.timelines))
    height = _TOP + lanes * _LANE + 74
    scale = _Scale(account.window.start_ns, max(account.window.end_ns, account.window.start_ns + 1))
    bars = list(_bars(account, scale))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="#1B1F24">',
        f"<title>{escape(_title(account))}</title>",
        hatch_patterns(),
        f'<rect width="{_WIDTH}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">{escape(_title(account))}</text>',
        *_axis(scale, lanes),
        *(_lane_label(i, t.attempt.number) for i, t in enumerate(account.timelines)),
        *(_bar(bar, is_first=i == 0 or bars[i - 1].lane != bar.lane) for i, bar in enumerate(bars)),
        *_labels(bars),
        *_commits(account, scale),
        *_failures(account, scale),
        *_legend(account, _TOP + lanes * _LANE + 44),
        "</svg>",
    ]
    return shown("\n".join(parts)) + "\n"  # XML has no way to write a control character


class _Scale:
    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.end_ns = begin_ns, end_ns

    def x(self, time_ns: int) -> float:
        return round(_LEFT + _COLUMNS * (time_ns - self.begin_ns) / (self.end_ns - self.begin_ns), 2)

    def column(self, time_ns: int) -> int:
        return (time_ns - self.begin_ns) * _COLUMNS // (self.end_ns - self.begin_ns)

    def end_of(self, column: int) -> int:
        """Return the first nanosecond after a column."""
        return self.begin_ns - (-(column + 1) * (self.end_ns - self.begin_ns) // _COLUMNS)


def _title(account: JobAccount) -> str:
    spent = _spent(account)
    total, effective = sum(spent.values()), spent["effective"]
    ett = share(effective / total if total else None)
    return f"{account.job}   {account.window.state.lower()}   wall {duration(total)}   ETT {ett}"


def _spent(account: JobAccount) -> dict[Component, int]:
    spent = dict.fromkeys(COMPONENTS, 0)
    window = (account.window.start_ns, account.window.end_ns)
    for (component, _), ns in measure_by_reason(account.pieces, [window]).items():
        spent[component] += ns
    return spent


def _bars(account: JobAccount, scale: _Scale) -> Iterator[_Bar]:
    """One bar for each run of pixel columns with one dominant verdict: a job of any length stays small and legible."""
    spent = _spent_by_column(account, scale)
    for _, columns in groupby(sorted(spent), lambda place: place[0]):
        for verdict, run in groupby(columns, lambda place: max(spent[place], key=lambda v: spent[place][v])):
            places = list(run)
            lane, first = places[0]
            last = places[-1][1]
            # Its time in the columns at both edges, where another verdict has more, belongs to the same bar.
            shared = ((lane, first - 1), (lane, last + 1))
            ns = sum(spent[place][verdict] for place in places)
            ns += sum(spent[place][verdict] for place in shared if place in spent)
            yield _Bar(lane=lane, x=_LEFT + first, width=last - first + 1, ns=ns, verdict=verdict)


def _spent_by_column(account: JobAccount, scale: _Scale) -> dict[tuple[int, int], Counter[_Verdict]]:
    """Return (lane, pixel column) -> nanoseconds of each verdict; a gap is drawn in the lane of the next attempt."""
    places = list(_columns_of_lanes(account, scale))
    spent: dict[tuple[int, int], Counter[_Verdict]] = {}
    for place, found in zip(
        ((lane, column) for lane, column, _ in places),
        measure_each(account.pieces, [interval for *_, interval in places]),
        strict=True,
    ):
        for (component, reason), ns in found.items():
            verdict = component, "" if component == "effective" else reason
            spent.setdefault(place, Counter())[verdict] += ns
    return spent


def _columns_of_lanes(account: JobAccount, scale: _Scale) -> Iterator[tuple[int, int, Interval]]:
    """Yield each pixel column with the lane whose time it is, and how much of it."""
    ends = list(accumulate((t.pieces[-1].end_ns for t in account.timelines if t.pieces), max))
    begin_ns = account.window.start_ns
    for lane, lane_end_ns in enumerate([*ends[:-1], account.window.end_ns]):
        while begin_ns < min(lane_end_ns, account.window.end_ns):
            column = scale.column(begin_ns)
            end_ns = min(lane_end_ns, account.window.end_ns, scale.end_of(column))
            yield lane, column, (begin_ns, end_ns)
            begin_ns = end_ns


def _bar(bar: _Bar, *, is_first: bool) -> str:
    component, reason = bar.verdict
    y = _TOP + bar.lane * _LANE
    label = f"{component}{'.' + reason if reason else ''} {duration(bar.ns)}"
    shape = f'x="{bar.x}" y="{y}" width="{bar.width}" height="{_BAR}"'
    hatch = f'<rect {shape} fill="url(#hatch-{component})"/>' if component in HATCHES else ""
    # Two reasons of one component have one colour: the border between them is drawn.
    border = (
        "" if is_first or bar.width < _NARROWEST_BORDERED else f'<path d="M{bar.x + 0.5} {y}v{_BAR}" stroke="#FFF"/>'
    )
    named = _labelled(bar)
    text = inside(named) if fits(named.name, bar.width) else ""
    return f'<g><title>{escape(label)}</title><rect {shape} fill="{COLOURS[component]}"/>{hatch}{border}{text}</g>'


def _labelled(bar: _Bar) -> LabelledBar:
    component, reason = bar.verdict
    y, name = _TOP + bar.lane * _LANE, reason or component
    return LabelledBar(x=bar.x, y=y, width=bar.width, height=_BAR, ns=bar.ns, name=name, colour=COLOURS[component])


def _labels(bars: Sequence[_Bar]) -> Iterator[str]:
    for _, lane in groupby(bars, lambda bar: bar.lane):
        others = (bar for bar in lane if bar.verdict[0] != "effective")  # the only colour without a pattern, and wanted
        narrow = [named for named in map(_labelled, others) if not fits(named.name, named.width)]
        yield from below(narrow, _LEFT, _LEFT + _COLUMNS, _BELOW)


def hatch_patterns() -> str:
    """Return the definitions of `url(#hatch-<component>)`."""
    tiles = [
        f'<pattern id="hatch-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}" stroke="#FFFFFF" stroke-opacity="0.45" fill="none"/></pattern>'
        for name, path in HATCHES.items()
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
    spent = _spent(account)
    total = sum(spent.values())
    column = _COLUMNS / len(_ORDER)
    for i, component in enumerate(_ORDER):
        x = round(_LEFT + i * column, 2)
        shape = f'x="{x}" y="{y - 11}" width="14" height="14"'
        hatch = f'<rect {shape} fill="url(#hatch-{component})"/>' if component in HATCHES else ""
        ratio = share(spent[component] / total if total else None)
        yield (
            f'<rect {shape} fill="{COLOURS[component]}"/>{hatch}<text x="{x + 19}" y="{y}">{component}</text>'
            f'<text x="{x + 19}" y="{y + 16}" fill="#5F6B76">{duration(spent[component])} · {ratio}</text>'
        )
    yield f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end" fill="#5F6B76">▲ commit</text>'
