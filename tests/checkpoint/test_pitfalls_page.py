"""docs/checkpoint_pitfalls.md names a test for each failure of others; a renamed one must not leave a promise."""

from __future__ import annotations

import re
from pathlib import Path

from ett.figures import load_targets

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checkpoint_pitfalls.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 50
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_every_figure_that_the_page_names_is_measured() -> None:
    named = {name for cell in re.findall(r"figures? ([^|;]+)", PAGE) for name in re.findall(r"`(\w+)`", cell)}
    assert named
    assert named <= load_targets("store", quick=False).keys()
