"""`ett compile-cache`: what a store of packs has, whether it may be used, and what of it goes. Needs no torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ett.compile_cache.cache import local_folder
from ett.compile_cache.pack import Pack, open_pack
from ett.compile_cache.pack_store import PackStore, Stored, open_pack_store
from ett.compile_cache.signing_key import signing_key
from ett.compile_cache.store_bound import by_key, key_of, last_used_unix_s, num_bytes, surplus
from ett.errors import ConfigError, CorruptState, NotFound
from ett.recipe import resolve
from ett.recipe_cli import site_file
from ett.seams import SEAMS, load
from ett.shown_text import say
from ett.store_uri import check_uri

_uri = click.option("--uri", default="", help="A store that hosts share (compile.uri); else this host's own.")
_key_file = click.option("--key-file", default="", help="As compile.key_file; $ETT_COMPILE_CACHE_KEY goes first.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List, show, verify, fill and bound what torch.compile made, kept for the next start."""


@group.command("ls", short_help="List the keys of a store, the last used first.")
@_uri
@_as_json
def list_command(uri: str, as_json: bool) -> None:
    """List the keys of a store, the last used first; nothing is read of their packs."""
    store = _open(uri)
    rows = sorted(by_key(store.stored()).items(), key=lambda row: last_used_unix_s(row[1]), reverse=True)
    keys = [
        {
            "key": key,
            "packs": len(packs),
            "bytes": num_bytes(packs),
            "used": _when(last_used_unix_s(packs)),
        }
        for key, packs in rows
    ]
    if as_json:
        _print_json("ls", {"uri": store.uri, "keys": keys})
        return
    for row in keys:
        say(f"{row['key']}  {row['packs']:>3} packs  {row['bytes']:>12,} bytes  used {row['used']}")
    if not keys:
        say(f"nothing in {store.uri}")


@group.command("show", short_help="Show what a key was made of, and what its packs have.")
@click.argument("key")
@_uri
@_key_file
@_as_json
def show_command(key: str, uri: str, key_file: str, as_json: bool) -> None:
    """Show what KEY, or the one key that begins so, was made of, and what its packs have."""
    store = _open(uri)
    found = _packs_of(store, key)
    opened = list(_opened(store, found, key_file))
    packs = [pack for _, pack in opened if isinstance(pack, Pack)]
    rows = [_facts(*each) for each in opened]
    parts = packs[0].parts if packs else None
    data = {"uri": store.uri, "key": key_of(found[0]), "parts": parts, "packs": rows}
    if as_json:
        _print_json("show", data)
        return
    lines = [f"key       {data['key']}", f"store     {store.uri}"]
    for part, value in (parts or {}).items():
        lines.append(f"{part:<9} {json.dumps(value, sort_keys=True)}")
    lines += [f"pack      {row['name']}  {row['bytes']:,} bytes  {_sentence(row)}" for row in rows]
    say("\n".join(lines))


@group.command("verify", short_help="Check the signature and every byte of each pack; exit code 8 if one is refused.")
@click.argument("key", required=False, default="")
@_uri
@_key_file
@_as_json
def verify_command(key: str, uri: str, key_file: str, as_json: bool) -> int:
    """Check each pack, of KEY or of all, as a start would, but for its size; exit code 8 if one is refused."""
    store = _open(uri)
    stored = _packs_of(store, key) if key else store.stored()
    rows = [_facts(*each) for each in _opened(store, stored, key_file)]
    if as_json:
        _print_json("verify", {"uri": store.uri, "packs": rows})
    else:
        say("\n".join(f"{row['name']}  {_sentence(row)}" for row in rows) or f"nothing in {store.uri}")
    return CorruptState.exit_code if any(row["problem"] for row in rows) else 0


@group.command("prewarm", short_help="Compile what a recipe's ranks would, and publish it.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks of the job, over all hosts; else launch.nproc.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="As of `ett launch`; repeatable.")
@click.option(
    "--config", "site", type=click.Path(path_type=Path), help="Site file; else $ETT_CONFIG, $ETT_HOME/ett.toml."
)
@_as_json
def prewarm_command(
    *, recipe: Path, ranks: int | None, overrides: tuple[str, ...], site: Path | None, as_json: bool
) -> None:
    """Compile what the ranks of RECIPE would at their first start, on a host like theirs, and publish it.

    Needs no data: nothing is compiled that the stores of the recipe have already.
    """
    sections = resolve(recipe, overrides, environ=os.environ, site=site_file(site)).sections
    sections["data"]["path"] = ""  # it is not looked at
    load(SEAMS["recipe_check"])(sections, os.getcwd())
    done = load(SEAMS["compile_prewarm"])(sections, ranks or sections["launch"]["nproc"], os.environ)
    if as_json:
        _print_json("prewarm", done)
        return
    say(f"{done['key']}  {done['fetched']}, {done['published']} in {done['compile_s']:.1f} s")


@group.command("gc", short_help="Remove the keys used longest ago, or packs that would be refused.")
@click.option("--max-bytes", type=click.IntRange(min=0), help="Remove keys until the rest has at most so many bytes.")
@click.option("--damaged", is_flag=True, help="Remove each pack that `verify` names.")
@click.option("--dry-run", is_flag=True, help="Say what would go and remove nothing.")
@_uri
@_key_file
@_as_json
def gc_command(*, max_bytes: int | None, damaged: bool, dry_run: bool, uri: str, key_file: str, as_json: bool) -> None:
    """Remove the keys used longest ago, or packs that would be refused. A running job is not affected."""
    store = _open(uri)
    stored = store.stored()
    gone = _damaged(store, stored, key_file) if damaged else []
    if max_bytes is not None:
        gone += surplus([each for each in stored if each not in gone], max_bytes)
    if not dry_run:
        store.sweep()
        for each in gone:
            store.delete(each.name)
    if as_json:
        names = [each.name for each in gone]
        _print_json("gc", {"uri": store.uri, "removed": names, "bytes": num_bytes(gone), "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    say(
        "\n".join([*(f"{verb} {each.name}" for each in gone), f"{verb} {len(gone)} packs of {num_bytes(gone):,} bytes"])
    )


def _open(uri: str) -> PackStore:
    check_uri(uri, "--uri")
    return open_pack_store(uri or str(local_folder(os.environ)))


def _packs_of(store: PackStore, key: str) -> list[Stored]:
    """Return the packs of the one key that begins like that."""
    found = {name: packs for name, packs in by_key(store.stored()).items() if name.startswith(key)}
    if len(found) != 1:
        raise NotFound(
            f"{len(found)} keys in {store.uri} begin with {key!r}",
            expected="one",
            do="`ett compile-cache ls` lists them",
            code="N002" if found else "N001",
        )
    return next(iter(found.values()))


def _opened(store: PackStore, stored: list[Stored], key_file: str) -> Iterator[tuple[Stored, Pack | CorruptState]]:
    """Yield each pack, or why a start would refuse it; one that has gone meanwhile is left out.

    Whatever its size: how large a pack may be is a recipe's to say, and only who has the key can have made it.
    """
    secret = signing_key(key_file, os.environ, may_make=False) if stored else b""
    for each in stored:
        where = f"{store.uri}/{each.name}"
        try:
            yield each, open_pack(store.read(each.name), secret, key=key_of(each), most_bytes=sys.maxsize, where=where)
        except CorruptState as err:
            yield each, err
        except FileNotFoundError:
            continue


def _damaged(store: PackStore, stored: list[Stored], key_file: str) -> list[Stored]:
    """Return the packs that would be refused. Raises: ConfigError: all are, as with a key that is not theirs."""
    refused = [
        (each, pack.code if isinstance(pack, CorruptState) else "") for each, pack in _opened(store, stored, key_file)
    ]
    if refused and all(code == "C011" for _, code in refused):
        raise ConfigError(
            f"none of the {len(refused)} packs in {store.uri} is whole and signed with the key that is used here",
            expected="the key that the ranks sign with",
            did="nothing was removed",
            do="--key-file FILE; `ett compile-cache gc --max-bytes 0` removes all packs, whoever signed them",
        )
    return [each for each, code in refused if code]


def _facts(stored: Stored, pack: Pack | CorruptState) -> dict[str, Any]:
    facts = {"name": stored.name, "bytes": stored.num_bytes}
    if isinstance(pack, CorruptState):
        return facts | {"files": None, "unpacked_bytes": None, "problem": f"ETT-{pack.code}: {pack.fact}"}
    return facts | {"files": len(pack.files), "unpacked_bytes": pack.num_bytes, "problem": None}


def _sentence(row: dict[str, Any]) -> str:
    return row["problem"] or f"{row['files']} files, {row['unpacked_bytes']:,} bytes unpacked"


def _when(unix_s: float) -> str | None:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds") if unix_s else None


def _print_json(verb: str, data: dict[str, Any]) -> None:
    click.echo(json.dumps({"schema": f"ett.compile-cache.{verb}/v1", "data": data, "warnings": []}, indent=1))
