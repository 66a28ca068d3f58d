"""A recipe: one TOML file whose keys are the field names of the config dataclasses, resolved to plain values.

Precedence: `--set section.key=value` > `$ETT_SECTION_KEY` > the recipe > the site file's `[defaults.section]` > the
dataclass. `ett config show --origin` prints where each value came from. Everything is checked here, before anything
starts, and every error names the line.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from ett.errors import ConfigError, UsageError
from ett.recipe_sections import JobConfig, LaunchConfig, TelemetryConfig
from ett.seams import SEAMS, load
from ett.section import build_section, nearest
from ett.toml_file import read_toml

OWN_SECTIONS: dict[str, type] = {"job": JobConfig, "launch": LaunchConfig, "telemetry": TelemetryConfig}
_NAME = "NAME"  # stands for a table's own name in [sparse.tables.NAME]
SITE_ONLY = frozenset({"defaults", "slo", "owners", "teams", "store"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedRecipe:
    """A checked recipe: every key of every section has a value that its dataclass accepts."""

    path: str
    sections: dict[str, dict[str, Any]]
    origins: dict[str, str]  # "section.key" -> "file:line", "--set", "$ETT_…" or "default"

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON of `sections`."""
        body = json.dumps(self.sections, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.sha256(body).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any
    origin: str


def sections() -> dict[str, type]:
    """Return the dataclass of every recipe section, by name; imports no torch."""
    above: dict[str, str] = load(SEAMS["recipe_sections"])
    return OWN_SECTIONS | {name: load(target) for name, target in above.items()}


def resolve(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    site: str | Path | None = None,
) -> ResolvedRecipe:
    """Read a recipe and return its resolved values.

    Args:
        path: the TOML file.
        overrides: "section.key=value", the value in TOML's spelling or a bare string; they win over everything.
        environ: where `ETT_SECTION_KEY` is looked up; None reads none.
        site: the site file whose `[defaults.section]` tables come last; None for none.
    Raises: ConfigError (unknown section or key, wrong type, invalid value: names the line), NotFound, UsageError.
    """
    known = sections()
    values: dict[str, _Value] = {}
    if site is not None:
        values |= _site_values(Path(site), known)
    values |= _file_values(Path(path), known)
    values |= _environ_values(environ or {}, known)
    values |= _override_values(overrides, known)
    resolved = {name: _build_named(name, cls, values) for name, cls in known.items()}
    plain = {name: asdict(section) for name, section in resolved.items()}
    plain = json.loads(json.dumps(plain))
    names = [f"{section}.{name}" for section, table in plain.items() for name, _ in _plain_leaves(table)]
    origins = {key: _origin(key, values) for key in names}
    return ResolvedRecipe(path=str(path), sections=plain, origins=origins)


def _origin(key: str, values: Mapping[str, _Value]) -> str:
    """Return where a value came from; one of a table whose keys a recipe makes up, from where the table did."""
    given = [name for name in values if key == name or key.startswith(f"{name}.")]
    return values[given[0]].origin if given else "default"


def resolve_telemetry(environ: Mapping[str, str], site: str | Path | None) -> TelemetryConfig:
    """Return [telemetry] where there is no recipe: `$ETT_TELEMETRY_…` > the site file > the defaults.

    Raises: ConfigError, NotFound, UsageError: as `resolve`.
    """
    known: dict[str, type] = {"telemetry": TelemetryConfig}
    values = {} if site is None else _site_values(Path(site), sections())
    values = {key: value for key, value in values.items() if key.startswith("telemetry.")}
    section: TelemetryConfig = _build_named("telemetry", TelemetryConfig, values | _environ_values(environ, known))
    return section


def _build_named(section: str, cls: type, values: Mapping[str, _Value]) -> Any:
    tree: dict[str, Any] = {}
    used = {key: value for key, value in values.items() if key.split(".")[0] == section}
    for key, value in used.items():
        *parents, leaf = key.split(".")[1:]
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value.value
    try:
        return build_section(cls, tree, section)
    except ConfigError as err:
        named = [key for key in sorted(used, key=len, reverse=True) if key in err.fact]
        named = named or [key for key in used if f"{key.split('.')[-1]} " in err.fact]
        place = used[named[0]].origin if named else ""
        fact = f"{place}: {err.fact}" if place and place != "default" else err.fact
        raise ConfigError(fact, expected=err.expected, do=err.do or "correct it", code=err.code) from err


def _file_values(path: Path, known: Mapping[str, type]) -> dict[str, _Value]:
    tree, lines = read_toml(path, "recipe")
    return _flatten(tree, known, path, lines)


def _site_values(path: Path, known: Mapping[str, type]) -> dict[str, _Value]:
    tree, lines = read_toml(path, "site file")
    for name in tree:
        if name not in SITE_ONLY and name not in known:
            expected = nearest(name, [*SITE_ONLY, *known])
            raise ConfigError(f"{path}:{lines.get(name, 1)}: unknown section [{name}]", expected=expected, code="F002")
    places = {k.removeprefix("defaults."): v for k, v in lines.items()}
    # A fleet has one collector: its section needs no [defaults] around it.
    own = _flatten({"telemetry": tree["telemetry"]}, known, path, lines) if "telemetry" in tree else {}
    return own | _flatten(tree.get("defaults", {}), known, path, places)


def _flatten(
    tree: Mapping[str, Any], known: Mapping[str, type], path: Path, lines: Mapping[str, int]
) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for section, table in tree.items():
        place = f"{path}:{lines.get(section, 1)}"
        if section not in known:
            raise ConfigError(f"{place}: unknown section [{section}]", expected=nearest(section, known), code="F002")
        if not isinstance(table, dict):
            raise ConfigError(f"{place}: {section} is {table!r}", expected=f"a table [{section}]")
        for key, value in _leaves(table, known[section], section):
            origin = f"{path}:{lines.get(key, lines.get(section, 1))}"
            _check_known(key, known, origin)
            values[key] = _Value(value, origin)
    return values


def _leaves(table: Mapping[str, Any], cls: type, prefix: str) -> list[tuple[str, Any]]:
    hints = typing.get_type_hints(cls)
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = f"{prefix}.{key}"
        nested, named = hints.get(key), _named_tables(hints.get(key))
        if isinstance(value, dict) and nested is not None and is_dataclass(nested):
            found += _leaves(value, typing.cast(type, nested), name)
        elif isinstance(value, dict) and named is not None:
            for own_name, own in value.items():
                at = f"{name}.{own_name}"
                found += _leaves(own, named, at) if isinstance(own, dict) else [(at, own)]
        else:
            found.append((name, value))
    return found


def _environ_values(environ: Mapping[str, str], known: Mapping[str, type]) -> dict[str, _Value]:
    keys = [key for key in _leaf_names(known) if f".{_NAME}." not in key]
    names = {"ETT_" + key.replace(".", "_").upper(): key for key in keys}
    return {
        key: _Value(_parse_value(environ[name], key, known), f"${name}")
        for name, key in names.items()
        if name in environ
    }


def _override_values(overrides: Sequence[str], known: Mapping[str, type]) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise UsageError(f"--set {text!r}", expected="section.key=value, such as train.seed=7")
        key = key.strip()
        _check_known(key, known, f"--set {key}")
        values[key] = _Value(_parse_value(value.strip(), key, known), f"--set {key}")
    return values


def _parse_value(text: str, key: str, known: Mapping[str, type]) -> Any:
    if _hint(key, known) is str:
        return text.removeprefix('"').removesuffix('"') if text.startswith('"') else text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare string; the type check refuses it with the key's name where it does not fit


def _check_known(key: str, known: Mapping[str, type], origin: str) -> None:
    section, _, rest = key.partition(".")
    if section not in known:
        raise ConfigError(f"{origin}: unknown section [{section}]", expected=nearest(section, known), code="F002")
    names = [name.partition(".")[2] for name in _leaf_names({section: known[section]})]
    rest = _without_names(rest, names)
    if any(name.startswith(f"{rest}.") for name in names):
        raise ConfigError(f"{origin}: {key} is not a table", expected=f"a table [{key}]", code="F003")
    if rest not in names:
        raise ConfigError(f"{origin}: unknown key {key!r}", expected=nearest(rest, names), do="correct it", code="F002")


def _leaf_names(known: Mapping[str, type]) -> list[str]:
    names: list[str] = []
    for section, cls in known.items():
        hints = typing.get_type_hints(cls)
        for field in fields(cls):
            nested = hints[field.name]
            name, named = f"{section}.{field.name}", _named_tables(nested)
            if named is not None:
                names += _leaf_names({f"{name}.{_NAME}": named})
            else:
                names += _leaf_names({name: nested}) if is_dataclass(nested) else [name]  # type: ignore[dict-item]
    return names


def _named_tables(hint: Any) -> type | None:
    """Return the dataclass of tables that a recipe names itself, [section.key.NAME]; None for any other hint."""
    is_named = typing.get_origin(hint) is dict and is_dataclass(typing.get_args(hint)[1])
    return typing.cast(type, typing.get_args(hint)[1]) if is_named else None


def _without_names(key: str, names: Sequence[str]) -> str:
    """Return the key with NAME for what a recipe calls a table of its own."""
    for parent in {name.partition(f".{_NAME}.")[0] for name in names if f".{_NAME}." in name}:
        if key.startswith(f"{parent}."):
            return ".".join([parent, _NAME, *key.removeprefix(f"{parent}.").split(".")[1:]])
    return key


def _plain_leaves(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _plain_leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _hint(key: str, known: Mapping[str, type]) -> Any:
    section, *path = key.split(".")
    hint: Any = known[section]
    for part in path:
        named = _named_tables(hint)
        hint = named if named is not None else typing.get_type_hints(hint)[part]
    return hint
