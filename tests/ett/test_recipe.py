"""Recipes: precedence, types, and errors that name the line and the nearest key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

import ett.recipe
from ett.errors import ConfigError, NotFound, UsageError
from ett.recipe import ResolvedRecipe, resolve
from ett.recipe_sections import JobConfig, LaunchConfig
from ett.toml_lines import key_lines


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    rows: int = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnConfig:
    width: int = 1
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    path: str = ""
    ratio: float = 0.5
    layers: tuple[int, ...] = (8, 4)
    pooling: Literal["sum", "mean"] = "sum"
    limit: int | None = None
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    columns: dict[str, ColumnConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ConfigError(f"data.ratio is {self.ratio}", expected="at most 1")


@pytest.fixture(autouse=True)
def known_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"job": JobConfig, "launch": LaunchConfig, "data": DataConfig}
    monkeypatch.setattr(ett.recipe, "sections", lambda: known)


def recipe(folder: Path, text: str, *overrides: str, **more: object) -> ResolvedRecipe:
    path = folder / "job.toml"
    path.write_text(text)
    return resolve(path, overrides, **more)  # type: ignore[arg-type]


def test_values_and_defaults_resolve_to_plain_json(tmp_path: Path) -> None:
    resolved = recipe(tmp_path, "[data]\nlayers = [3]\n[data.generate]\nrows = 7\n")
    assert resolved.sections["data"] == {
        "path": "",
        "ratio": 0.5,
        "layers": [3],
        "pooling": "sum",
        "limit": None,
        "generate": {"rows": 7},
        "columns": {},
    }


def test_a_flag_beats_the_environment_beats_the_file_beats_the_site_file(tmp_path: Path) -> None:
    site = tmp_path / "ett.toml"
    site.write_text("[defaults.data]\npath = 'site'\nratio = 0.1\nlimit = 1\n[defaults.data.generate]\nrows = 1\n")
    environ = {"ETT_DATA_RATIO": "0.3", "ETT_DATA_GENERATE_ROWS": "3"}
    text = "[data]\nratio = 0.2\nlimit = 2\n[data.generate]\nrows = 2\n"
    resolved = recipe(tmp_path, text, "data.generate.rows=4", environ=environ, site=site)
    assert resolved.sections["data"]["path"] == "site"
    assert resolved.sections["data"]["limit"] == 2
    assert resolved.sections["data"]["ratio"] == 0.3
    assert resolved.sections["data"]["generate"]["rows"] == 4


def test_tables_that_a_recipe_names_itself_have_defaults_overrides_origins(tmp_path: Path) -> None:
    text = "[data.columns.C1]\nwidth = 3\n[data.columns.C2]\nkind = 'a'\n"
    resolved = recipe(tmp_path, text, "data.columns.C2.kind=b", "data.columns.C9.width=7")
    assert resolved.sections["data"]["columns"] == {
        "C1": {"width": 3, "kind": ""},
        "C2": {"width": 1, "kind": "b"},
        "C9": {"width": 7, "kind": ""},
    }
    origins = {key.removeprefix("data.columns."): at for key, at in resolved.origins.items() if "columns" in key}
    assert origins["C1.width"] == f"{tmp_path}/job.toml:2"
    assert (origins["C2.kind"], origins["C1.kind"]) == ("--set data.columns.C2.kind", "default")


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        ("[data.columns.C1]\nwitdh = 3\n", ":2: unknown key 'data.columns.C1.witdh'", "'columns.NAME.width'"),
        ("[data.columns.C1]\nwidth = 'x'\n", ':2: data.columns.C1.width is "x"', "an integer"),
        ("[data.columns]\nC1 = 3\n", ":2: data.columns.C1 is not a table", "a table [data.columns.C1]"),
        ("[data]\ncolumns = 3\n", ":2: data.columns is not a table", "a table [data.columns]"),
    ],
)
def test_what_is_wrong_in_a_table_that_a_recipe_names_is_named_with_its_line(
    tmp_path: Path, text: str, fact: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    assert fact in caught.value.fact and expected in caught.value.expected


def test_origins_name_file_line_flag_or_default(tmp_path: Path) -> None:
    resolved = recipe(tmp_path, "[data]\n# note\nratio = 0.2\n", "data.path=x", environ={"ETT_DATA_LIMIT": "5"})
    origins = resolved.origins
    assert origins["data.ratio"] == f"{tmp_path}/job.toml:3"
    assert (origins["data.path"], origins["data.limit"]) == ("--set data.path", "$ETT_DATA_LIMIT")
    assert origins["data.pooling"] == "default"


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("[data]\npath = 'x'\nlayrs = [1]\n", 3, "'layers'"),
        ("[dta]\npath = 'x'\n", 1, "'data'"),
        ("[data]\n[data.generate]\nrow = 3\n", 3, "'generate.rows'"),
    ],
)
def test_an_unknown_name_says_its_line_and_the_nearest_name(tmp_path: Path, text: str, line: int, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    assert f"job.toml:{line}:" in caught.value.fact
    assert hint in caught.value.expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("path", "3", "a string"),
        ("layers", "3", "a list"),
        ("layers", "['a']", "an integer"),
        ("pooling", "'max'", "'sum', 'mean'"),
        ("limit", "true", "an integer"),
        ("generate", "3", "a table"),
        ("ratio", "'high'", "a number"),
        ("ratio", "1.5", "at most 1"),
    ],
)
def test_a_wrong_value_names_its_line_the_value_and_what_was_expected(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, f"[data]\n{key} = {value}\n")
    assert "job.toml:2:" in caught.value.fact
    assert expected in caught.value.expected


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2"):
        recipe(tmp_path, "[data]\npath = \n")


def test_a_missing_recipe_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.toml"):
        resolve(tmp_path / "none.toml")


@pytest.mark.parametrize("override", ["data.path", "path=3", "=3"])
def test_a_malformed_override_is_a_usage_error(tmp_path: Path, override: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        recipe(tmp_path, "", override)


def test_an_unknown_override_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.pth"):
        recipe(tmp_path, "", "data.pth=x")


def test_the_hash_changes_with_a_value_alone(tmp_path: Path) -> None:
    plain = recipe(tmp_path, "[data]\nlimit = 1\n")
    assert recipe(tmp_path, "# note\n[data]\nlimit = 1\n").hash == plain.hash
    assert recipe(tmp_path, "[data]\nlimit = 2\n").hash != plain.hash


def test_key_lines_survive_comments_quotes_and_multi_line_values() -> None:
    text = '# [no]\na = """\n[not.a.table]\nb = 1\n"""\n[ t . "u" ] # x\n"k" = 1\nl = [\n 1,\n]\n[[many]]\nz = 2\n'
    assert key_lines(text) == {"a": 2, "t.u": 6, "t.u.k": 7, "t.u.l": 8, "many": 11, "many.z": 12}
