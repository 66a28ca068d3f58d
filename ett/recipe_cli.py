"""`ett config show`: the resolved configuration, and with --origin where each value came from."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ett.errors import NotFound, UsageError
from ett.recipe import SITE_ONLY, ResolvedRecipe, resolve, resolve_telemetry
from ett.shown_text import say
from ett.site import site_tables


@click.group()
def group() -> None:
    """Show the resolved configuration and where each value came from."""


@group.command()
@click.argument("recipe", type=click.Path(path_type=Path), required=False)
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one value; repeatable.")
@click.option(
    "--config",
    "site",
    type=click.Path(path_type=Path),
    help="The site file; else $ETT_CONFIG or $ETT_HOME/ett.toml.",
)
@click.option("--origin", is_flag=True, help="Print where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(recipe: Path | None, overrides: tuple[str, ...], site: Path | None, origin: bool, as_json: bool) -> None:
    """Print every key of RECIPE as it will be used, and the site file's own sections; these alone without RECIPE."""
    named = site_file(site)
    tables = {} if named is None else _checked_tables(named)
    if recipe is None:
        if overrides:
            raise UsageError("--set without a RECIPE", expected="the recipe whose values it overrides")
        if named is None:
            raise NotFound("there is no site file", do="name a RECIPE, --config FILE or $ETT_CONFIG")
        resolved = ResolvedRecipe(path="", sections={}, origins={})
    else:
        resolved = resolve(recipe, overrides, environ=os.environ, site=named)
    own = {section: {key: value for key, (value, _) in table.items()} for section, table in tables.items()}
    origins = {f"{section}.{key}": place for section, table in tables.items() for key, (_, place) in table.items()}
    if as_json:
        data = {
            "path": resolved.path or None,
            "hash": resolved.hash if recipe is not None else None,
            "sections": resolved.sections,
            "site": {"path": None if named is None else str(named), "sections": own},
            "origins": resolved.origins | origins,
        }
        click.echo(json.dumps({"schema": "ett.config/v1", "data": data, "warnings": []}, indent=1))
        return
    shown = replace(resolved, sections=resolved.sections | own, origins=resolved.origins | origins)
    say(_render(shown, origin))


def _checked_tables(site: Path) -> dict[str, dict[str, tuple[Any, str]]]:
    """The site file's own sections as every reader of them would take them."""
    from ett.collector.site_labels import read_site
    from ett.store.database import without_password

    tables = site_tables(site)
    read_site(site, "")
    resolve_telemetry({}, site)
    if "url" in tables.get("store", {}):
        url, place = tables["store"]["url"]
        tables["store"]["url"] = (without_password(url), place)
    return tables


def site_file(given: Path | None = None) -> Path | None:
    """Return the site file to use: the given one, else $ETT_CONFIG, else $ETT_HOME/ett.toml where it exists."""
    if given is not None:
        return given
    if configured := os.environ.get("ETT_CONFIG"):
        return Path(configured)
    default = Path(os.environ.get("ETT_HOME", ".ett"), "ett.toml")
    return default if default.is_file() else None


def _render(resolved: ResolvedRecipe, origin: bool) -> str:
    lines: list[str] = []
    for section, table in resolved.sections.items():
        lines.append(f"[{section}]")
        lines += [_line(name, value, resolved, origin, section) for name, value in _leaves(table)]
        lines.append("")
    return "\n".join(lines).rstrip()


def _line(name: str, value: Any, resolved: ResolvedRecipe, origin: bool, section: str) -> str:
    text = f"{_key(name) if section in SITE_ONLY else name} = {json.dumps(value)}"
    return f"{text:<48} # {resolved.origins.get(f'{section}.{name}', 'default')}" if origin else text


def _key(name: str) -> str:
    """A name with a dot is one key of the site file, "initialization.restore": TOML wants quotes around it."""
    return json.dumps(name) if "." in name else name


def _leaves(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
