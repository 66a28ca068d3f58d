"""Draw what a restore of the newest commit reads: `python -m ett.checkpoint.chain_picture FOLDER OUT.svg`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.table_segments import TABLE_KINDS
from ett.errors import NoCheckpoint, UsageError

_LEFT, _COLUMN, _TOP, _LANE, _BOX = 70, 128, 64, 74, 56
_BOLD = 'font-weight="bold"'
_COLOURS = {"base": "#4269d0", "hot": "#d1495b", "cold": "#3ca951"}


@dataclass(slots=True)
class _Box:
    """The files of one kind that were captured for one commit."""

    num_files: int = 0
    num_rows: int = 0
    num_tombstones: int = 0
    num_bytes: int = 0


def chain_picture(commit: Commit) -> str:
    """Return an SVG: a column for each commit from the base on, a lane for each kind, a box where files are live."""
    boxes: dict[tuple[int, str], _Box] = {}
    for table in commit.tables:
        for file in table.files:
            box = boxes.setdefault((file.seq, file.identity.kind), _Box())
            box.num_files += 1
            box.num_rows += file.num_rows
            box.num_tombstones += file.num_tombstones
            box.num_bytes += file.stored.bytes
    seqs = range(commit.base_seq, commit.seq + 1)
    width, height = _LEFT + len(seqs) * _COLUMN + 20, _TOP + len(TABLE_KINDS) * _LANE + 64
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 20, f"The files that commit {commit.seq} lists, by the commit (seq) that they were captured for"),
    ]
    for number, seq in enumerate(seqs):
        parts.append(_text(_LEFT + number * _COLUMN + _COLUMN // 2 - 18, 48, f"seq {seq}", _BOLD))
    for lane, kind in enumerate(TABLE_KINDS):
        y = _TOP + lane * _LANE
        parts.append(_text(8, y + _BOX // 2 + 5, kind, _BOLD))
        for number, seq in enumerate(seqs):
            parts += _lane(_LEFT + number * _COLUMN + 4, y, kind, boxes.get((seq, kind)))
    parts += _legend(boxes, height)
    return "\n".join([*parts, "</svg>\n"])


def _lane(x: int, y: int, kind: str, box: _Box | None) -> Iterable[str]:
    size = f'x="{x}" y="{y}" width="{_COLUMN - 8}" height="{_BOX}" rx="4"'
    if box is None:
        return [f'<rect {size} fill="none" stroke="#ccc" stroke-dasharray="3 3"/>']
    files = f"{box.num_files} file{'s' * (box.num_files > 1)}, {-(-box.num_bytes // 1024):,} KiB"
    lines = [f"{box.num_rows:,} rows", f"{box.num_tombstones:,} tombstones" if box.num_tombstones else "", files]
    shown = [line for line in lines if line]
    first = y + _BOX // 2 - 8 * len(shown) + 13
    texts = [_text(x + 8, first + 16 * n, line, 'fill="white"') for n, line in enumerate(shown)]
    return [f'<rect {size} fill="{_COLOURS[kind]}"/>', *texts]


def _legend(boxes: dict[tuple[int, str], _Box], height: int) -> Iterable[str]:
    lines = [
        "A restore reads all of these. Of every id the file with the highest seq wins, be it a row or a tombstone."
    ]
    hot = [seq for seq, kind in boxes if kind == "hot"]
    base = [seq for seq, kind in boxes if kind == "base"]
    if hot and base and max(hot) > max(base) + 1:
        what = f"The hot files of {max(hot)} have every hot row changed since {max(base)}"
        lines.append(f"{what}: earlier ones are listed no more.")
    return [_text(_LEFT, height - 40 + 20 * n, line) for n, line in enumerate(lines)]


def _text(x: int, y: int, text: str, style: str = "") -> str:
    return f'<text x="{x}" y="{y}" font-size="12" {style}>{escape(text)}</text>'


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        raise UsageError("two arguments are needed", expected="a checkpoint folder and the file to draw to")
    log = CommitLog(LocalStore(Path(arguments[0])))
    if not log.seqs():
        raise NoCheckpoint(f"no checkpoint under {arguments[0]}")
    Path(arguments[1]).write_text(chain_picture(log.read(max(log.seqs()))))


if __name__ == "__main__":
    main(sys.argv[1:])
