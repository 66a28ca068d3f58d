"""`ett config show`: the resolved configuration, and with --origin where each value came from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from ett.recipe import ResolvedRecipe, resolve


@click.group()
def group() -> None:
    """Show the resolved configuration and where each value came from."""


@group.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one value; repeatable.")
@click.option(
    "--config",
    "site",
    type=click.Path(path_type=Path),
    help="The site file; else $ETT_CONFIG or $ETT_HOME/ett.toml.",
)
@click.option("--origin", is_flag=True, help="Print where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(recipe: Path, overrides: tuple[str, ...], site: Path | None, origin: bool, as_json: bool) -> None:
    """Print every key of RECIPE as it will be used."""
    resolved = resolve(recipe, overrides, environ=os.environ, site=site_file(site))
    if as_json:
        data = {
            "path": resolved.path,
            "hash": resolved.hash,
            "sections": resolved.sections,
            "origins": resolved.origins,
        }
        click.echo(json.dumps({"schema": "ett.config/v1", "data": data, "warnings": []}, indent=1))
        return
    click.echo(_render(resolved, origin))


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
    text = f"{name} = {json.dumps(value)}"
    return f"{text:<48} # {resolved.origins.get(f'{section}.{name}', 'default')}" if origin else text


def _leaves(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
