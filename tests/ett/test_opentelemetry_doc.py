"""docs/opentelemetry.md shows the tables that the code has; run this file to write them anew."""

from __future__ import annotations

import re
from pathlib import Path

from ett.metric_names import METRICS
from ett.otel.attribute_names import ATTRIBUTES

PAGE = Path(__file__).parents[2] / "docs" / "opentelemetry.md"


def tables() -> dict[str, str]:
    metrics = ["| OpenTelemetry | instrument, unit | attributes | Prometheus | meaning |", "|---|---|---|---|---|"]
    metrics += [
        f"| `{m.otel}` | {m.instrument}, `{m.unit}` | {', '.join(f'`{a}`' for a in m.point_attributes) or '-'} "
        f"| `{m.prometheus}` | {m.help} |"
        for m in METRICS
        if m.otel
    ]
    attributes = ["| attribute | type | on | meaning |", "|---|---|---|---|"]
    attributes += [f"| `{name}` | {kind} | {where} | {text} |" for name, (kind, where, text) in ATTRIBUTES.items()]
    return {"Metrics": "\n".join(metrics), "Attributes": "\n".join(attributes)}


def written_anew(page: str) -> str:
    for title, table in tables().items():
        section = re.compile(rf"(?<=^## {title}\n)(.*?)(?:^\|[^\n]*\n)+", re.MULTILINE | re.DOTALL)
        page, found = section.subn(lambda m, table=table: f"{m[1]}{table}\n", page, count=1)
        assert found == 1, f"no table under {title}"
    return page


def test_the_page_has_the_tables_of_the_code() -> None:
    assert written_anew(PAGE.read_text()) == PAGE.read_text(), f"python {__file__} writes it anew"


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text()))
