"""The timeline shows every second of a job: as text, and as an SVG that is well-formed whatever a job is called."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ett.accounting import JobAccount, account
from ett.event_reader import read_folder
from ett.timeline_cli import timeline_text
from ett.timeline_labels import LabelledBar, below
from ett.timeline_svg import timeline_svg

CASES = {
    case["id"]: case
    for name in ("handed.json", "ours.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
    if "events" in case
}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawn(tmp_path: Path, write_case: Callable[[Any, Path], list[str]]) -> Callable[[str], JobAccount]:
    def load(case_id: str) -> JobAccount:
        write_case(CASES[case_id], tmp_path)
        found = account(read_folder(tmp_path), as_of_ns=1_900_010_000 * 10**9)
        assert found is not None
        return found

    return load


def bars(svg: str) -> list[tuple[float, float, str]]:
    groups = ET.fromstring(svg).iter(f"{SVG}g")
    found = []
    for group in groups:
        rect, title = group.find(f"{SVG}rect"), group.find(f"{SVG}title")
        if rect is not None and title is not None:
            found.append((float(rect.get("x", 0)), float(rect.get("width", 0)), str(title.text)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case_id", sorted(CASES))
def test_every_case_is_drawn_without_a_gap(case_id: str, drawn: Callable[[str], JobAccount]) -> None:
    job = drawn(case_id)
    found = bars(timeline_svg(job))
    assert bool(found) == bool(job.pieces)
    for (x, width, _), (next_x, _, _) in pairwise(found):
        assert next_x in (x + width, x + width - 1)  # lanes of two attempts may share the pixel of the change


def test_a_bar_says_its_component_reason_and_time(drawn: Callable[[str], JobAccount]) -> None:
    titles = [title for _, _, title in bars(timeline_svg(drawn("C02")))]
    assert "wasted.replay 30.0s" in titles
    assert "effective 1m 20s" in titles


def test_every_bar_is_named_in_it_or_below_it(drawn: Callable[[str], JobAccount]) -> None:
    tree = ET.fromstring(timeline_svg(drawn("C02")))
    names = [text.text for text in tree.iter(f"{SVG}text") if text.get("aria-hidden") is None]
    for narrow in ("queue", "in_flight", "untracked"):
        assert narrow in names


def test_names_below_never_cover_each_other() -> None:
    bars = [
        LabelledBar(x=100 + 5 * i, y=0, width=5, height=28, ns=9 - i, name=f"initialization{i}", colour="#000")
        for i in range(9)
    ]
    texts = [
        ET.fromstring(f"<g>{drawn_below}</g>").find("text") for drawn_below in below(bars, left=92, right=936, under=23)
    ]
    assert [text.text for text in texts if text is not None] == [f"initialization{i}" for i in range(3)]  # the longest
    assert len({text.get("y") for text in texts if text is not None}) == 3


def test_reasons_of_one_component_have_a_border(drawn: Callable[[str], JobAccount]) -> None:
    groups = [g for g in ET.fromstring(timeline_svg(drawn("C02"))).iter(f"{SVG}g") if g.find(f"{SVG}rect") is not None]
    bordered = [group.find(f"{SVG}path") is not None for group in groups]
    assert bordered[0] is False  # nothing to the left of it
    assert all(bordered[1:4])


def test_the_text_form_has_a_line_for_each_attempt(drawn: Callable[[str], JobAccount]) -> None:
    lines = timeline_text(drawn("C02")).splitlines()
    assert [line.split("|")[0].strip() for line in lines[1:3]] == ["1", "2"]
    assert "failed" in lines[1]
    assert "completed" in lines[2]


def test_a_hostile_reason_stays_text(drawn: Callable[[str], JobAccount]) -> None:
    hostile = drawn("C02")
    pieces = tuple(piece._replace(reason="<script>alert(1)</script>") for piece in hostile.pieces)
    svg = timeline_svg(
        JobAccount(**{n: getattr(hostile, n) for n in hostile.__dataclass_fields__} | {"pieces": pieces})
    )
    assert not list(ET.fromstring(svg).iter(f"{SVG}script"))
    assert "<script" not in svg
