"""A report as GitHub Markdown: tables, and nothing that a user's text could turn into markup."""

from __future__ import annotations

import re

from ett.report_document import Document, Table
from ett.shown_text import one_line

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!~&])")


def markdown(document: Document) -> str:
    """Return the report; every text of a user is escaped."""
    lines = [f"## {escaped(document.title)}", "", " · ".join(map(escaped, document.facts)), ""]
    for table in document.tables:
        lines += [f"### {escaped(table.title)}", "", *_table(table), ""]
    lines += [f"- {escaped(note)}" for note in document.notes]
    lines += [f"- warning: {escaped(text)}" for text in document.warnings]
    return "\n".join(lines).rstrip()


def escaped(text: str) -> str:
    """Return the text on one line, so that Markdown shows it as it is."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def _table(table: Table) -> list[str]:
    rule = ["--:" if column in table.numbers else "---" for column in range(len(table.columns))]
    head, *rows = ["| " + " | ".join(map(escaped, row)) + " |" for row in (table.columns, *table.rows)]
    return [head, "|" + "|".join(rule) + "|", *rows]
