"""[telemetry]: where a fleet's collector is said, and that a nearer place wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett.errors import ConfigError
from ett.recipe import resolve, resolve_telemetry

RECIPE = Path(__file__).parents[2] / "examples" / "criteo.toml"


def site_of(folder: Path, text: str) -> Path:
    site = folder / "ett.toml"
    site.write_text(f"[telemetry]\n{text}\n")
    return site


def test_the_site_file_says_it_for_every_launch(tmp_path: Path) -> None:
    site = site_of(tmp_path, 'endpoint = "http://site:1"\nflush_interval = "3s"')
    found = resolve_telemetry({}, site)
    assert (found.endpoint, found.flush_interval_s, found.shutdown_flush_s, found.sends) == (
        "http://site:1",
        3,
        2,
        True,
    )
    assert resolve(RECIPE, site=site).sections["telemetry"]["endpoint"] == "http://site:1"


def test_the_environment_wins_over_the_site_file(tmp_path: Path) -> None:
    site = site_of(tmp_path, 'endpoint = "http://site:1"')
    assert resolve_telemetry({"ETT_TELEMETRY_ENDPOINT": "https://own:2/ett"}, site).endpoint == "https://own:2/ett"


def test_a_recipe_wins_over_the_site_file(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.read_text() + '\n[telemetry]\nmode = "off"\n')
    resolved = resolve(recipe, site=site_of(tmp_path, 'endpoint = "http://site:1"')).sections["telemetry"]
    assert (resolved["endpoint"], resolved["mode"]) == ("http://site:1", "off")


def test_without_an_endpoint_nothing_is_sent() -> None:
    assert not resolve_telemetry({}, None).sends
    assert not resolve_telemetry({"ETT_TELEMETRY_ENDPOINT": "file:"}, None).sends


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('endpoint = "ftp://x"', "telemetry.endpoint"),
        ('mode = "required"', "telemetry.mode"),
        ('mode = "maybe"', "telemetry.mode"),
        ('flush_interval = "soon"', "telemetry.flush_interval"),
        ('flush_interval = "1ms"', "telemetry.flush_interval"),
        ('shutdown_flush = "-1s"', "telemetry.shutdown_flush"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"ett.toml:2: {named}"):
        resolve_telemetry({}, site_of(tmp_path, text))
