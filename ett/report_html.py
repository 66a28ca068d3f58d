"""A report as one HTML file: no script, nothing loaded from anywhere, light and dark, every text of a user escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape

from ett.event_schema import Component
from ett.report_document import STACKING, Bar, Document, Table
from ett.report_text import duration, share

_WIDTH, _HEIGHT = 960, 26
# light, dark: contrasts against the page are in spec/ux.md 4.6; the text of a bar is beside it, never on it.
_COLOURS: dict[Component, tuple[str, str]] = {
    "effective": ("#0072B2", "#4DA3FF"),
    "wasted": ("#D55E00", "#FF7A33"),
    "initialization": ("#B87A00", "#E69F00"),
    "scheduling": ("#3D8FB8", "#56B4E9"),
    "compilation": ("#B0568B", "#D98CB8"),
    "shutdown": ("#5F6B76", "#9AA5B1"),
}
_HATCHES: dict[Component, str] = {
    "wasted": "M0 0L8 8M8 0L0 8",
    "initialization": "M0 8L8 0",
    "scheduling": "M3 3h2v2h-2z",
    "compilation": "M0 0L8 8",
    "shutdown": "M4 0V8",
}
_STYLE = """
:root{color-scheme:light dark;--page:#FFFFFF;--text:#1B1F24;--quiet:#5F6B76;--line:#D6DBE0;%(light)s}
@media(prefers-color-scheme:dark){:root{--page:#14171C;--text:#E6EAF0;--quiet:#9AA5B1;--line:#343B44;%(dark)s}}
body{background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.4rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.8rem 0 .4rem}
p.facts{margin:.2rem 0 1rem}figure{margin:0 0 .7rem}figcaption{font-size:.85rem;overflow-wrap:anywhere}
svg.bar{width:100%%;height:26px;display:block}svg.key{width:14px;height:14px;vertical-align:-2px;margin-right:.35rem}
ul.legend{list-style:none;padding:0;margin:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem}
div.wide{overflow-x:auto}table{border-collapse:collapse;width:100%%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--quiet)}.n{text-align:right;white-space:nowrap}tr.total td{font-weight:600}
.hatch path{stroke:var(--page);stroke-opacity:.45;fill:none}
%(fills)s
"""


def html(document: Document) -> str:
    """Return the file's text; the same document gives the same bytes."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    title = escape(document.title)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'\">",
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>ETT report: {title}</title><style>{style}</style></head><body><main>",
        f"<h1>{title}</h1>",
        f'<p class="facts">{escape(" · ".join(document.facts))}</p>',
        _patterns(),
        *(part for bar in document.bars for part in _bar(bar)),
        *_legend(document.bars[0]),
        *(part for table in document.tables for part in _table(table)),
        *_list("Notes", document.notes),
        *_list("Warnings", document.warnings),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _style() -> str:
    light = ";".join(f"--{name}:{colours[0]}" for name, colours in _COLOURS.items())
    dark = ";".join(f"--{name}:{colours[1]}" for name, colours in _COLOURS.items())
    fills = "".join(f".{name}{{fill:var(--{name})}}" for name in _COLOURS)
    return _STYLE % {"light": light, "dark": dark, "fills": fills}


def _patterns() -> str:
    tiles = [
        f'<pattern id="hatch-{name}" class="hatch" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<path d="{path}"/></pattern>'
        for name, path in _HATCHES.items()
    ]
    return f'<svg width="0" height="0" aria-hidden="true"><defs>{"".join(tiles)}</defs></svg>'


def _bar(bar: Bar) -> Iterator[str]:
    total = sum(bar.ns.values())
    told = ", ".join(f"{c} {share(bar.ns[c] / total)}" for c in STACKING if bar.ns[c]) if total else "no time"
    yield f"<figure><figcaption>{escape(bar.label)}</figcaption>"
    yield (
        f'<svg class="bar" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(f"{bar.label}: {told}")}">'
    )
    before = 0
    for component in STACKING:
        ns = bar.ns[component]
        if ns:
            begin, end = before * _WIDTH / total, (before + ns) * _WIDTH / total
            # A page-coloured gap of one pixel tells neighbours apart where there is room for it.
            shape = f'x="{begin:.2f}" y="0" width="{max(end - begin - 1, (end - begin) / 2):.2f}" height="{_HEIGHT}"'
            label = f"{component} {duration(ns)}, {share(ns / total)}"
            yield f'<g><title>{escape(label)}</title><rect {shape} class="{component}"/>{_hatch(component, shape)}</g>'
        before += ns
    yield "</svg></figure>"


def _hatch(component: Component, shape: str) -> str:
    return f'<rect {shape} fill="url(#hatch-{component})"/>' if component in _HATCHES else ""


def _legend(bar: Bar) -> Iterator[str]:
    total = sum(bar.ns.values())
    yield '<ul class="legend">'
    for component in STACKING:
        shape = 'x="0" y="0" width="14" height="14"'
        key = f'<svg class="key" aria-hidden="true"><rect {shape} class="{component}"/>{_hatch(component, shape)}</svg>'
        yield f"<li>{key}{component} {share(bar.ns[component] / total if total else None)}</li>"
    yield "</ul>"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>'
    yield "".join(f'<th scope="col"{_number(table, i)}>{escape(name)}</th>' for i, name in enumerate(table.columns))
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = "".join(f"<td{_number(table, i)}>{escape(cell)}</td>" for i, cell in enumerate(row))
        yield f'<tr class="total">{cells}</tr>' if row[0] == "total" else f"<tr>{cells}</tr>"
    yield "</tbody></table></div>"


def _number(table: Table, column: int) -> str:
    return ' class="n"' if column in table.numbers else ""


def _list(title: str, texts: tuple[str, ...]) -> Iterator[str]:
    if texts:
        yield f"<h2>{title}</h2><ul>"
        yield from (f"<li>{escape(text)}</li>" for text in texts)
        yield "</ul>"
