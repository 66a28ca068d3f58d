"""`ett compile-cache` over a folder of packs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ett.cli import cli
from ett.compile_cache.cache import CompileCache
from ett.compile_cache.cache_folder import write_files
from ett.compile_cache.config import CompileConfig
from ett.compile_cache.key import KeyParts
from ett.compile_cache.pack_store import FolderPacks
from ett.errors import ConfigError, NotFound

PARTS = KeyParts(software={"torch": "2"}, machine={}, code="c", model={"kind": "dlrm"}, options={}, shapes=[[256, 13]])
OTHER = replace(PARTS, code="d")
FILES = {f"fxgraph/p5/{'a' * 52}/{'0' * 52}": b"graph", f"t3/{'a' * 52}.so": b"object" * 100}

SMALL_PACKS = {"max_pack_bytes": 1}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    for number, parts in enumerate((PARTS, OTHER)):
        folder, environ = tmp_path / f"process-{number}", {"ETT_HOME": str(tmp_path)}
        write_files(folder, FILES)
        CompileCache(CompileConfig(), parts, folder, environ, lambda ev, **fields: None).publish()
        os.utime(pack_of(tmp_path, parts), (1000 + number,) * 2)
    return tmp_path


def pack_of(home: Path, parts: KeyParts) -> Path:
    return home / "compile-cache" / parts.key / "0000.pack"


def ett(*args: str) -> Result:
    return CliRunner().invoke(cli, ["compile-cache", *args], standalone_mode=False)


def data(*args: str) -> Any:
    done = ett(*args, "--json")
    assert done.exception is None
    return json.loads(done.output)["data"]


def test_keys_are_listed_the_last_used_first(home: Path) -> None:
    assert [row["key"] for row in data("ls")["keys"]] == [OTHER.key, PARTS.key]
    assert data("ls")["keys"][0] | {"bytes": 0} == {
        "key": OTHER.key,
        "packs": 1,
        "bytes": 0,
        "used": "1970-01-01T00:16:41+00:00",
    }


def test_an_empty_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    assert "nothing in" in ett("ls").output
    assert "nothing in" in ett("verify").output


def test_a_key_shows_what_it_was_made_of(home: Path) -> None:
    shown = data("show", PARTS.key[:12])
    assert (shown["key"], shown["parts"]) == (PARTS.key, PARTS.as_json())
    assert shown["packs"][0]["files"] == 2
    assert '"kind": "dlrm"' in ett("show", PARTS.key).output


def test_a_key_that_is_not_there_is_not_found(home: Path) -> None:
    assert "0 keys" in str(ett("show", "zzz").exception)


def test_whole_packs_pass(home: Path) -> None:
    assert ett("verify").return_value == 0
    assert [row["problem"] for row in data("verify")["packs"]] == [None, None]


def test_a_damaged_pack_is_named(home: Path) -> None:
    path = pack_of(home, PARTS)
    path.write_bytes(path.read_bytes()[:-1])
    done = ett("verify")
    assert done.return_value == 8
    assert f"{PARTS.key}/0000.pack is changed, cut" in done.output
    assert [bool(row["problem"]) for row in data("verify")["packs"]].count(True) == 1


def test_damaged_packs_go(home: Path) -> None:
    path = pack_of(home, PARTS)
    path.write_bytes(path.read_bytes()[:-1])
    assert data("gc", "--damaged", "--dry-run")["removed"] == [f"{PARTS.key}/0000.pack"]
    assert path.exists()
    assert data("gc", "--damaged")["removed"] == [f"{PARTS.key}/0000.pack"]
    assert not path.exists()
    assert pack_of(home, OTHER).exists()


@pytest.mark.parametrize("command", [("verify",), ("show", PARTS.key), ("gc", "--damaged")])
def test_no_key_is_made_to_look_at_packs(command: tuple[str, ...], home: Path) -> None:
    """Under a key made here, each pack of a store that hosts share would be one to remove."""
    (home / "compile-cache.key").unlink()
    refused = ett(*command).exception
    assert isinstance(refused, NotFound)
    assert "--key-file" in refused.render()
    assert not (home / "compile-cache.key").exists()
    assert pack_of(home, PARTS).exists()


def test_packs_of_which_no_one_is_signed_with_this_key_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_COMPILE_CACHE_KEY", "the key of other hosts")
    assert isinstance(ett("gc", "--damaged").exception, ConfigError)
    assert pack_of(home, PARTS).exists()
    assert pack_of(home, OTHER).exists()
    assert len(data("gc", "--max-bytes", "0")["removed"]) == 2


def test_a_pack_above_the_default_bound_is_not_damaged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is a recipe's (compile.max_pack_bytes), and none is named here."""
    monkeypatch.setattr(CompileConfig.__init__, "__kwdefaults__", CompileConfig.__init__.__kwdefaults__ | SMALL_PACKS)
    assert CompileConfig().max_pack_bytes == 1
    assert data("gc", "--damaged")["removed"] == []
    assert ett("verify").return_value == 0


def test_a_pack_that_goes_meanwhile_is_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = FolderPacks(home / "compile-cache").stored()
    pack_of(home, PARTS).unlink()
    monkeypatch.setattr(FolderPacks, "stored", lambda self, prefix="": stored)
    assert [row["name"] for row in data("verify")["packs"]] == [f"{OTHER.key}/0000.pack"]
    assert data("gc", "--damaged")["removed"] == []


def test_what_was_used_longest_ago_goes_until_the_rest_fits(home: Path) -> None:
    size = pack_of(home, OTHER).stat().st_size
    assert data("gc", "--max-bytes", str(size + 1))["removed"] == [f"{PARTS.key}/0000.pack"]
    assert data("gc", "--max-bytes", "0")["removed"] == [f"{OTHER.key}/0000.pack"]


def test_a_key_of_which_nothing_was_finished_goes(home: Path) -> None:
    unfinished = home / "compile-cache" / ("0" * 32) / f".{'0' * 16}.tmp"
    unfinished.parent.mkdir()
    unfinished.write_bytes(b"x")
    os.utime(unfinished, (1000, 1000))
    data("gc", "--dry-run")
    assert unfinished.exists()
    data("gc")
    assert not unfinished.parent.exists()
    assert pack_of(home, PARTS).exists()
