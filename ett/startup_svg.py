"""A rank's start as one SVG: a row a node, a bar from its begin to its end, lines from what it waited for."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ett.event_schema import NS
from ett.report_text import duration
from ett.shown_text import shown
from ett.startup_log import StartedNode, StartedRank
from ett.startup_path import StartPath, start_path

_WIDTH, _LEFT, _RIGHT = 960, 150, 90
_COLUMNS = _WIDTH - _LEFT - _RIGHT
_TOP, _ROW, _BAR = 62, 26, 16
_CRITICAL, _OTHER, _TEXT, _MUTED, _GRID = "#D55E00", "#3D8FB8", "#1B1F24", "#5F6B76", "#D6DBE0"
_STEPS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


def startup_svg(start: StartedRank) -> str:
    """Return the picture of a start, up to its first step or to its last record."""
    path = start_path(start)
    ends = [node.end_ns or node.begin_ns for node in start.nodes]
    end_ns = start.first_step_ns or max(ends, default=start.begin_ns)
    scale = _Scale(start.begin_ns, max(end_ns, start.begin_ns + 1))
    bottom = _TOP + len(start.nodes) * _ROW
    height = bottom + 48
    title = _title(start)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12" fill="{_TEXT}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#FFFFFF"/>',
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
        *_key(),
        *_axis(scale, bottom),
        *([] if path is None else _waits(start, path, scale)),
        *(part for row, node in enumerate(start.nodes) for part in _row(row, node, path, scale)),
        *_first_step(start, scale, bottom),
        "</svg>",
    ]
    return shown("\n".join(parts)) + "\n"


class _Scale:
    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.span_ns = begin_ns, end_ns - begin_ns

    def x(self, time_ns: int) -> float:
        return round(_LEFT + _COLUMNS * (time_ns - self.begin_ns) / self.span_ns, 2)


def _title(start: StartedRank) -> str:
    where = f"attempt {start.attempt}" + (f".{start.generation}" if start.generation else "") + f", rank {start.rank}"
    took = "no first step yet" if start.total_ns is None else f"{start.total_ns / NS:.2f} s to the first step"
    return f"Start of {start.job} · {where} · {took}"


def _key() -> Iterator[str]:
    for x, colour, name in ((_LEFT, _CRITICAL, "on the critical path"), (_LEFT + 170, _OTHER, "beside it")):
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="46">{name}</text>'


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    span_s = scale.span_ns / NS
    step_s = next((step for step in _STEPS_S if span_s / step <= 10), span_s)
    for tick in range(int(span_s / step_s) + 1):
        x = scale.x(scale.begin_ns + round(tick * step_s * NS))
        yield f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}" stroke="{_GRID}"/>'
        label = duration(tick * step_s * NS)
        yield f'<text x="{x}" y="{bottom + 16}" text-anchor="middle" fill="{_MUTED}">{label}</text>'


def _waits(start: StartedRank, path: StartPath, scale: _Scale) -> Iterator[str]:
    """Yield a line from the end of each node that another waited for: down, then to the begin of that one's bar."""
    for row, found in enumerate(path.nodes):
        for other in found.waited_for:
            before = start.nodes[other]
            assert before.end_ns is not None
            is_critical = found.is_critical and path.nodes[other].is_critical
            colour = _CRITICAL if is_critical else "#B6BEC6"
            x0, x1 = scale.x(before.end_ns), scale.x(found.node.begin_ns)
            yield f'<path d="M{x0} {_middle(other)}V{_middle(row)}H{x1}" fill="none" stroke="{colour}"/>'


def _row(row: int, node: StartedNode, path: StartPath | None, scale: _Scale) -> Iterator[str]:
    is_critical = path is not None and path.nodes[row].is_critical
    x = scale.x(node.begin_ns)
    end_ns = scale.begin_ns + scale.span_ns if node.end_ns is None else node.end_ns
    width = max(1.5, round(scale.x(end_ns) - x, 2))
    took = "has no end" if node.end_ns is None else duration(node.end_ns - node.begin_ns)
    y = _middle(row) - _BAR // 2
    yield f'<text x="{_LEFT - 8}" y="{_middle(row) + 4}" text-anchor="end">{escape(node.name)}</text>'
    yield (
        f"<g><title>{escape(f'{node.name}: {took}')}</title>"
        f'<rect x="{x}" y="{y}" width="{width}" height="{_BAR}" fill="{_CRITICAL if is_critical else _OTHER}"/></g>'
    )
    is_late = x + width > _LEFT + _COLUMNS - 60  # beyond it stands the first step
    place, anchor = (x - 5, "end") if is_late else (x + width + 5, "start")
    text = f'x="{round(place, 2)}" y="{_middle(row) + 4}" text-anchor="{anchor}" fill="{_MUTED}"'
    yield f"<text {text}>{took}</text>"


def _first_step(start: StartedRank, scale: _Scale, bottom: int) -> Iterator[str]:
    if start.first_step_ns is not None:
        x = scale.x(start.first_step_ns)
        yield f'<line x1="{x}" y1="{_TOP - 6}" x2="{x}" y2="{bottom}" stroke="{_TEXT}" stroke-width="1.5"/>'
        yield f'<text x="{x}" y="{bottom + 34}" text-anchor="middle">first step</text>'


def _middle(row: int) -> int:
    return _TOP + row * _ROW + _ROW // 2
