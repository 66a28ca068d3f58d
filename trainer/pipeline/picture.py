"""Draw what ran when, from a trace: `python -m ett.trainer.pipeline.picture stages-rank0.json OUT.svg [FIRST LAST]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from ett.errors import NotFound, UsageError

_WIDTH, _LEFT, _ROW, _BAR, _TOP = 1120, 70, 96, 34, 52
# One colour a batch, in turn, so that the eye follows a batch through the threads.
_COLOURS = ("#4269d0", "#e58b2c", "#3ca951", "#a463f2")
_SHORT = {
    "fetch_colliding": "colliding",
    "forward_backward": "forward, backward",
    "take": "",
    "update_colliding": "rows waited for",
    "update_exclusive": "other rows",
    "update_dense": "dense",
}
_LEGEND = (
    "One colour a batch; below a thread: when it waited; arrows: for what in the other thread.",
    "Thread train, from left to right: fetch colliding rows; forward, backward; rows that a batch waits for; dense.",
)


def picture(trace: dict[str, Any], first: int, last: int) -> str:
    """Return an SVG of the batches from `first` to `last`: a row a thread, an arrow where one waited for the other."""
    events = trace["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    runs = [e for e in events if e["ph"] == "X" and first <= e["args"]["batch"] <= last]
    begin_us, end_us = min(e["ts"] for e in runs), max(e["ts"] + e["dur"] for e in runs)
    scale = (_WIDTH - _LEFT - 20) / (end_us - begin_us)

    def x(at_us: float) -> float:
        return float(_LEFT + (at_us - begin_us) * scale)

    parts = [_text(_LEFT, 18 + 16 * i, line, size=12) for i, line in enumerate(_LEGEND)]
    for tid, name in threads.items():
        parts.append(_text(8, _TOP + tid * _ROW + 22, name, size=13, weight="bold"))
    for run in runs:
        parts += _run(run, x, scale)
    parts += _arrows([e for e in events if _is_between(e, first, last)], x, begin_us, end_us)
    height = _TOP + (len(threads) - 1) * _ROW + _BAR + 40
    parts.append(_text(_LEFT, height - 10, f"{(end_us - begin_us) / 1e3:.1f} ms", size=12))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">'
    marker = (
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#333"/></marker></defs>'
    )
    return "\n".join([head, marker, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>\n"])


def _run(run: dict[str, Any], x: Any, scale: float) -> list[str]:
    batch, y = run["args"]["batch"], _TOP + run["tid"] * _ROW
    left, width = x(run["ts"]), max(run["dur"] * scale, 1.0)
    colour = _COLOURS[batch % len(_COLOURS)]
    bar = (
        f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}" stroke="white">'
        f"<title>{escape(run['name'])} of batch {batch}: {run['dur'] / 1e3:.2f} ms</title></rect>"
    )
    waited = run["args"]["waited_us"] * scale
    parts = [bar]
    if waited > 2:
        at = f'x="{max(left - waited, _LEFT):.1f}" y="{y + _BAR + 4}" width="{min(waited, left - _LEFT):.1f}"'
        parts.append(f'<rect {at} height="5" fill="{colour}" opacity="0.35"/>')
    label = _SHORT.get(run["name"], run["name"])
    if label and width > 7 * len(f"{label} {batch}"):
        parts.append(_text(left + 4, y + 21, f"{label} {batch}", size=11, fill="white"))
    return parts


def _arrows(events: Sequence[dict[str, Any]], x: Any, begin_us: float, end_us: float) -> list[str]:
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    parts = []
    for end in (e for e in events if e["ph"] == "f"):
        start = starts[end["id"]]
        if start["tid"] == end["tid"] or not (begin_us <= start["ts"] and end["ts"] <= end_us):
            continue
        y1, y2 = (
            _TOP + e["tid"] * _ROW + (_BAR if e["tid"] < o["tid"] else 0) for e, o in ((start, end), (end, start))
        )
        line = f'x1="{x(start["ts"]):.1f}" y1="{y1}" x2="{x(end["ts"]):.1f}" y2="{y2}"'
        parts.append(f'<line {line} stroke="#333" stroke-width="1" marker-end="url(#tip)"/>')
    return parts


def _is_between(event: dict[str, Any], first: int, last: int) -> bool:
    """Return whether an arrow goes from a batch that is shown to another one."""
    return event["ph"] in "sf" and all(first <= int(word) <= last for word in event["name"].split() if word.isdecimal())


def _text(x: float, y: float, text: str, *, size: int, fill: str = "#222", weight: str = "normal") -> str:
    style = f'font-size="{size}" fill="{fill}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def main(arguments: Sequence[str]) -> int:
    if len(arguments) not in (2, 4):
        print(__doc__, file=sys.stderr)
        return UsageError.exit_code
    source, target = Path(arguments[0]), Path(arguments[1])
    first, last = map(int, arguments[2:]) if len(arguments) == 4 else (1, 4)
    try:
        target.write_text(picture(json.loads(source.read_text()), first, last))
    except (OSError, ValueError) as err:
        error = NotFound(
            f"no picture of batches {first} to {last} of {source}: {err}",
            expected="the trace of a job that ran with train.trace_batches",
            do="look for stages-rank0.json in the job's folder, under $ETT_HOME/jobs (default .ett/jobs)",
        )
        print(error.render(), file=sys.stderr)
        return error.exit_code
    print(f"{target}: batches {first} to {last} of {source}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
