"""`ett config show`: what holds for a fleet stands beside the recipe, with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ett.cli import run
from ett.recipe import resolve

RECIPE = Path(__file__).parents[2] / "examples" / "criteo.toml"
SITE = """\
[owners]
scheduling = "scheduler"
initialization.restore = "checkpointing"
[slo]
ett = 0.9
[teams]
ads = ["ctr-main"]
[store]
url = "postgresql://ett:secret@db/ett"
[defaults.train]
seed = 7
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "ett.toml"
    path.write_text(SITE)
    return path


def test_the_site_files_own_sections_are_shown_with_their_lines(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--config", str(site), "--origin"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f'"initialization.restore" = "checkpointing" # {site}:3' in lines
    assert f"ett = 0.9 # {site}:5" in lines
    assert f'ads = ["ctr-main"] # {site}:7' in lines
    assert not any("secret" in line for line in lines)


def test_a_recipe_is_shown_with_the_site_file_that_it_is_read_with(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "show", str(RECIPE), "--config", str(site), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["site"]["sections"]["owners"] == {"scheduling": "scheduler", "initialization.restore": "checkpointing"}
    assert data["origins"]["owners.scheduling"] == f"{site}:2"
    assert "train" in data["sections"]
    assert "owners" not in data["sections"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[slo]\nett = 2", ":2: slo.ett"),
        ("[teams]\nads = 1", "teams.ads"),
        ("[ownerz]\na='b'", ":1: unknown section [ownerz]"),
    ],
)
def test_what_no_reader_would_take_is_not_shown_as_configuration(
    text: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ett.toml").write_text(text)
    assert run(["config", "show", "--config", str(tmp_path / "ett.toml")]) == 3
    assert place in capsys.readouterr().err


def test_without_a_recipe_and_a_site_file_there_is_nothing_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.delenv("ETT_CONFIG", raising=False)
    assert run(["config", "show"]) == 4
    assert "no site file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report --fleet --config", "config show", "config show --config", "ls"])
def test_a_device_without_an_end_is_refused_as_a_configuration_file(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "ls":
        monkeypatch.setenv("ETT_CONFIG", "/dev/zero")
        args = ["ls"]
    else:
        args = [*command.split(), "/dev/zero"]
    assert run(args) == 3
    assert "/dev/zero has more than 4 MiB" in capsys.readouterr().err


def test_a_table_of_names_that_a_recipe_makes_up_has_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[checkpoint.migrate]\nposition = "restart"\nrename = { "bags.a" = "bags.b" }\n')
    found = resolve(path)
    assert found.sections["checkpoint"]["migrate"]["rename"] == {"bags.a": "bags.b"}
    assert found.origins["checkpoint.migrate.rename.bags.a"] == f"{path}:3"
    assert found.origins["checkpoint.migrate.add"] == "default"
