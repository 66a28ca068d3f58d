"""What the documents claim is computed: links lead somewhere, pictures and figures are those of the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ett.cli import cli

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLE = ROOT / "docs" / "worked-example"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    assert not [link for link in links if "://" not in link and not (document.parent / link).exists()]


def test_the_worked_example_says_what_the_page_says() -> None:
    done = CliRunner().invoke(cli, ["report", "--events", str(EXAMPLE), "--json"], catch_exceptions=False)
    data = json.loads(done.output)["data"]
    page = (ROOT / "docs" / "ett.md").read_text()
    for component in ("effective", "wasted", "initialization", "scheduling", "shutdown"):
        (row,) = re.findall(rf"^\| {component} \|.*\*\*(\d+)\*\*", page, re.MULTILINE)
        assert data["seconds"][component] == float(row)
    assert data["total_s"] == 260
    assert f"{data['ett'] * 100:.1f} %" in page
    assert f"{data['closed_formula']['ett'] * 100:.1f} % here" in page


def test_the_worked_examples_picture_is_that_of_the_command(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn.svg"
    CliRunner().invoke(cli, ["timeline", "--events", str(EXAMPLE), "--svg", str(drawn)], catch_exceptions=False)
    assert drawn.read_text() == (ROOT / "docs" / "img" / "worked-example.svg").read_text()


def test_the_picture_of_a_start_is_that_of_the_command(tmp_path: Path) -> None:
    drawn, example = tmp_path / "drawn.svg", ROOT / "docs" / "startup-example"
    args = ["timeline", "--events", str(example), "--startup", "--svg", str(drawn)]
    CliRunner().invoke(cli, args, catch_exceptions=False)
    assert drawn.read_text() == (ROOT / "docs" / "img" / "startup.svg").read_text()


def test_the_tour_names_every_source_file() -> None:
    tour = (ROOT / "docs" / "architecture.md").read_text()
    folders = ("ett", "checkpoint", "recovery", "compile_cache", "trainer", "dashboards", "alerts")
    sources = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp") and path.name != "__init__.py"
        if folder != "ett" or not set(path.relative_to(ROOT / "ett").parts) & set(folders)
    }
    named = set(re.findall(rf"`((?:{'|'.join(folders)})/[\w/]+\.(?:py|cpp))`", tour))
    assert (sorted(sources - named), sorted(named - sources)) == ([], [])
