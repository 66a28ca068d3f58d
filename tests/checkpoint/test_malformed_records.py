"""Documents whose checksum is right and whose content is not, and names that lead elsewhere, are typed errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_world import holds, restored_world

from ett.checkpoint.canonical_json import seal, unseal
from ett.checkpoint.commit import parse_commit
from ett.checkpoint.commit_log import LAST_SEQ, CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.pins import holds as holds_of
from ett.checkpoint.verify import damage
from ett.cli import run
from ett.errors import ConfigError, CorruptState

NEWEST = "commits/0000000000000003.json"
Fields = dict[str, Any]


def changed(folder: Path, change: Callable[[Fields], object]) -> Path:
    """Change the newest record, as somebody would who seals it again."""
    (folder / NEWEST).write_bytes(changed_record(folder, change))
    return folder


def changed_record(folder: Path, change: Callable[[Fields], object]) -> bytes:
    fields = unseal((folder / NEWEST).read_bytes())
    assert fields is not None
    change(fields)
    return seal(fields)


def of_table(**values: object) -> Callable[[Fields], object]:
    return lambda fields: fields["tables"][0].update(values)


def of_file(**values: object) -> Callable[[Fields], object]:
    return lambda fields: fields["tables"][0]["files"][0].update(values)


def without(name: str) -> Callable[[Fields], object]:
    return lambda fields: fields.pop(name)


MALFORMED = {
    **{f"no {name}": without(name) for name in ("tables", "seq", "features_required", "min_reader", "dense")},
    "another kind of seq": lambda fields: fields.update(seq="3"),
    "a version that is none": lambda fields: fields.update(min_reader="new"),
    "stats": lambda fields: fields.update(stats="none"),
    "rows": of_file(n_rows="244"),
    "more rows than bytes": of_file(n_rows=10**18),
    "fewer than no rows": of_file(n_rows=-1),
    "bytes": of_file(bytes=10**30),
    "kind": of_file(kind="lukewarm"),
    "dtype": of_table(weight_dtype="float99"),
    "dim": of_table(dim=0),
    "table id": of_table(id="../../elsewhere"),
    "dense files": lambda fields: fields["dense"].update(files=[]),
    "dense twice": lambda fields: fields["dense"].update(files=fields["dense"]["files"] * 2),
    **{
        f"path {path[:20]}": of_file(path=path)
        for path in (
            "../elsewhere",
            "/etc/passwd",
            "d/../FORMAT.json",
            "d/./x",
            "d//x",
            "d/",
            "",
            "d",
            NEWEST,
            "d/" + "x" * 300,
            "d/\ud800",
            "d/ä",
            "pins/a",
        )
    },
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED)
def test_a_sealed_record_that_is_none_is_damage(saved: Path, change: Callable[[Fields], object]) -> None:
    with pytest.raises(CorruptState, match=f"{NEWEST} has its checksum, but not the fields of its kind"):
        parse_commit(changed_record(saved, change), NEWEST)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 200_000, b'{"a":' + b"9" * 10_000 + b"}", b"\xff\xfe{"])
def test_text_that_no_parser_takes_is_damage(copy: Path, text: bytes) -> None:
    (copy / NEWEST).write_bytes(text)
    (copy / "FORMAT.json").write_bytes(text)
    assert run(["checkpoint", "verify", str(copy)]) == 8
    assert holds(restored_world(copy, 1), 1)


def test_a_restore_steps_over_a_malformed_record(copy: Path) -> None:
    assert holds(restored_world(changed(copy, of_file(path="../../elsewhere")), 1), 1)


def test_no_command_is_led_out_of_the_folder(copy: Path) -> None:
    """Nothing outside is read, written or deleted, and nothing within goes while a record is not understood."""
    outside = copy.parent / "elsewhere"
    outside.write_bytes(b"mine")
    before = sorted(path.relative_to(copy) for path in copy.rglob("*"))
    changed(copy, of_file(path="../elsewhere"))
    for argv in (["gc", "--keep-last", "1", "--yes"], ["verify", "--level", "load"]):
        assert run(["checkpoint", argv[0], str(copy), *argv[1:]]) == 8
    assert outside.read_bytes() == b"mine"
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == before


def test_another_major_is_refused_by_name_whatever_else_it_has(copy: Path) -> None:
    (copy / NEWEST).write_bytes(seal({"document": "commit", "format": "rckpt", "major": 2, "body": []}))
    with pytest.raises(ConfigError, match=r"0003\.json is of format 2\.\?"):
        CommitLog(LocalStore(copy)).read_all()
    assert run(["checkpoint", "ls", str(copy)]) == 3


def test_ids_outside_what_the_record_says_are_damage(copy: Path) -> None:
    """Which files are read for a range of ids is decided by the record."""
    store = LocalStore(changed(copy, of_file(min_id=5)))
    err = damage(store, CommitLog(store).read(3), "load")
    assert err is not None
    assert "has other ids than 5 to" in err.fact


@pytest.mark.parametrize("top", ["pins", "leases"])
def test_a_hold_of_nothing_is_damage(copy: Path, top: str) -> None:
    store = LocalStore(copy)
    store.create(f"{top}/a.json", seal({"document": top}))
    with pytest.raises(CorruptState, match=f"{top}/a.json"):
        holds_of(store, 0.0)
    assert run(["checkpoint", "gc", str(copy)]) == 8


def test_a_number_after_the_last_is_refused(copy: Path) -> None:
    """A record of it would be listed by nobody: what a job saves after that would be lost without a word."""
    (copy / f"commits/{LAST_SEQ}.json").write_bytes(b"left by somebody")
    with pytest.raises(CorruptState, match="leaves no number"):
        restored_world(copy, 1)


@pytest.mark.parametrize("change", [of_table(digest="0" * 16), of_table(rows=501)], ids=["digest", "rows"])
def test_rows_that_are_not_those_of_the_stored_digest_are_not_restored(
    copy: Path, change: Callable[[Fields], object]
) -> None:
    """Every byte is as it was written and has its checksum: only the digest of what was loaded tells."""
    assert holds(restored_world(changed(copy, change), 2), 1)
    assert run(["checkpoint", "verify", str(copy), "--level", "load"]) == 8
