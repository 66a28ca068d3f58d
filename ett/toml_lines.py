"""Where a key of a TOML document stands: tomllib checks the document but gives no positions."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=\s*(.*)$"""
)


def key_lines(text: str) -> dict[str, int]:
    """Return the first line (from 1) of every table and key, by dotted name, of a document that tomllib accepts."""
    lines: dict[str, int] = {}
    prefix, until = "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        if until:
            if until in line:
                until = ""
            continue
        if header := _HEADER.match(line):
            prefix = _plain(header[1])
            lines.setdefault(prefix, number)
        elif pair := _KEY.match(line):
            name = _plain(pair[1])
            lines.setdefault(f"{prefix}.{name}" if prefix else name, number)
            until = _open_quotes(pair[2])
    return lines


def _plain(dotted: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in dotted.split("."))


def _open_quotes(value: str) -> str:
    for quotes in ('"""', "'''"):
        if value.count(quotes) % 2:
            return quotes
    return ""
