"""docs/supervisor.md names a test for each pitfall; a renamed test must not leave a promise behind."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_supervisors_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "supervisor.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 5
    assert {name for name in named if f"def {name}(" not in sources} == set()
