"""The picture of a job's saves shows each of them, and is the one in docs/."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ett.checkpoint.save_facts import SaveFacts
from ett.checkpoint.save_records import SaveRecord, read_saves
from ett.checkpoint.saves_picture import main, saves_picture
from ett.errors import NoCheckpoint

DOCS = Path(__file__).parents[2] / "docs"
FACTS = SaveFacts(stall_s=0.5, write_s=2.0, base_bytes=3_000_000, cold_bytes=1_000_000, threshold=0.25)


def saves(*facts: SaveFacts, upload_s: float | None = None) -> list[SaveRecord]:
    return [
        SaveRecord(ckpt_uuid=str(n), step=n, policy="adaptive", facts=each, upload_s=upload_s)
        for n, each in enumerate(facts)
    ]


def bars(picture: str, colour: str) -> list[float]:
    """Return the heights of the bars of a colour; what names it in the title is a box of 10."""
    found = re.findall(rf'height="([\d.]+)" fill="{colour}"', picture)
    return [float(height) for height in found if height != "10"]


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter() if element.tag.endswith("text")]


def test_the_picture_in_docs_is_that_of_the_recorded_job(tmp_path: Path) -> None:
    main([str(DOCS / "saves-example/events"), str(tmp_path / "saves.svg")])
    assert (tmp_path / "saves.svg").read_text() == (DOCS / "img/saves.svg").read_text()


def test_the_recorded_job_has_all_its_saves() -> None:
    found = list(read_saves(DOCS / "saves-example/events").values())
    assert [save.step for save in found] == list(range(2, 146, 2))


def test_bytes_are_stacked_by_kind() -> None:
    picture = saves_picture(saves(FACTS, replace(FACTS, base_bytes=0, hot_bytes=2_000_000)))
    blue, red, green = (bars(picture, colour) for colour in ("#4269d0", "#d1495b", "#3ca951"))
    assert [len(blue), len(red), len(green)] == [1, 1, 2]
    assert blue[0] == pytest.approx(3 * green[0], abs=0.1)
    assert red[0] == pytest.approx(2 * green[1], abs=0.1)
    assert "4 MB" in words(picture)


def test_uploads_are_drawn_where_every_save_has_one() -> None:
    assert "upload" not in words(saves_picture(saves(FACTS, FACTS)))
    assert "upload" in words(saves_picture(saves(FACTS, FACTS, upload_s=3.0)))


def test_ways_of_capture_are_drawn_where_there_are_some() -> None:
    captured = replace(FACTS, prefetch_rows=100, sweep_rows=900, guard_rows=0)
    assert "Rows of each save, by way of capture" not in words(saves_picture(saves(FACTS)))
    picture = saves_picture(saves(captured))
    assert {"prefetch", "sweep", "guard"} < set(words(picture))
    _, prefetch = bars(picture, "#4269d0")
    assert bars(picture, "#bbb") == [pytest.approx(9 * prefetch, abs=0.1)]


def test_a_job_without_saves_has_no_picture(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="no save is recorded"):
        main([str(tmp_path), str(tmp_path / "out.svg")])
