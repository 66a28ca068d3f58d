"""Another launch of a job agrees with the kept one, or is refused before it writes anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ett.errors import Conflict, CorruptState
from ett.job_folder import JobFolder
from ett.kept_launch import KeptLaunch
from ett.launch_plan import LaunchPlan

RECIPE = LaunchPlan(kind="recipe", target="/a/criteo.toml", cwd="/")
SECTIONS = {"train": {"seed": 1, "batch_size": 128}, "data": {"generate": {"rows": 5}}}


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    found = JobFolder(tmp_path / "j")
    found.create()
    RECIPE.keep(found, SECTIONS, {})
    return found


def test_a_new_job_agrees_with_everything(tmp_path: Path) -> None:
    kept = KeptLaunch.of(JobFolder(tmp_path / "new"))
    kept.check(RECIPE, SECTIONS)
    assert (kept.drift(SECTIONS), kept.put_back()) == ([], False)


@pytest.mark.parametrize(("kind", "target"), [("script", "s.py"), ("command", "/a/criteo.toml"), ("module", "m")])
def test_another_program_is_refused(folder: JobFolder, kind: str, target: str) -> None:
    other = LaunchPlan(kind=kind, target=target, cwd="/")  # type: ignore[arg-type]
    with pytest.raises(Conflict, match=r"runs /a/criteo\.toml \(recipe\)"):
        KeptLaunch.of(folder).check(other, None)


def test_a_recipe_may_have_moved(folder: JobFolder) -> None:
    KeptLaunch.of(folder).check(LaunchPlan(kind="recipe", target="/b/other.toml", cwd="/"), SECTIONS)


@pytest.mark.parametrize("text", ["", '{"train": {"se'])
def test_a_damaged_kept_recipe_is_one_error(folder: JobFolder, text: str) -> None:
    folder.recipe_file.write_text(text)
    with pytest.raises(CorruptState, match=r"recipe\.json"):
        KeptLaunch.of(folder).check(RECIPE, None)
    KeptLaunch.of(folder).check(RECIPE, SECTIONS)  # a recipe that is given again replaces it


def test_every_changed_key_is_said(folder: JobFolder) -> None:
    now = {"train": {"seed": 1, "batch_size": 256}, "data": {"generate": {"rows": 7}}}
    assert KeptLaunch.of(folder).drift(now) == ["data.generate.rows: 5 -> 7", "train.batch_size: 128 -> 256"]
    assert KeptLaunch.of(folder).drift(None) == []


def test_a_changed_uri_is_said_without_its_password(folder: JobFolder) -> None:
    said = KeptLaunch.of(folder).drift(SECTIONS | {"publish": {"to": "ftp://user:secret@host/x"}})
    assert said == ["publish.to: None -> ftp://host/x"]


def test_a_refused_launch_leaves_what_was_kept(folder: JobFolder) -> None:
    kept = KeptLaunch.of(folder)
    LaunchPlan(kind="recipe", target="/b/x.toml", cwd="/").keep(folder, {"train": {"seed": 9}}, {})
    assert kept.put_back()
    assert json.loads(folder.recipe_file.read_text()) == SECTIONS
    assert json.loads(folder.launch_file.read_text())["target"] == "/a/criteo.toml"
