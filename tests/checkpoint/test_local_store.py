"""Names in a local folder while others sweep it: a creation ends well, finds its name taken, or says who took over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ett.checkpoint.local_store import LocalStore
from ett.errors import ConfigError, Conflict


class Swept(LocalStore):
    """Another process deletes what is unfinished just before it gets its name. makes: what it creates before."""

    makes = ""

    def _link(self, temporary: Path, final: Path) -> None:
        others = LocalStore(self.root)
        if self.makes:
            others.create(self.makes, b"another's")
        for name in others.unfinished():
            others.delete(name)
        super()._link(temporary, final)


def test_a_creation_that_a_newer_life_has_swept_says_so(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=r"d/t0000\.seg.*was removed") as raised:
        Swept(tmp_path).create("d/t0000.seg", b"ours")
    assert raised.value.code == "L008"
    assert LocalStore(tmp_path).list("") == []


def test_a_creation_that_was_swept_because_the_name_is_taken_finds_it_taken(tmp_path: Path) -> None:
    store = Swept(tmp_path)
    store.makes = "commits/0000000000000001.json"
    with pytest.raises(FileExistsError):
        store.create(store.makes, b"ours")
    assert store.read(store.makes) == b"another's"


def test_a_folder_that_a_newer_life_has_swept_before_it_is_synced_says_so(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.create_stream("d/ab/uuid/t0000.seg") as file:
        file.write(b"ours")
    LocalStore(tmp_path).delete("d/ab/uuid/t0000.seg")
    with pytest.raises(Conflict, match="d/ab/uuid was removed"):
        store.sync(["d/ab/uuid/t0000.seg"])


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever deletes the last file of a folder removes the folder, which another may just have found there."""
    mkdir, gone = Path.mkdir, []

    def after_a_deletion(self: Path, *args: int, **options: bool) -> None:
        if self.name == "uuid" and not gone:
            gone.append(self.parent)
            os.rmdir(self.parent)
        mkdir(self, *args, **options)

    (tmp_path / "d" / "ab").mkdir(parents=True)
    monkeypatch.setattr(Path, "mkdir", after_a_deletion)
    LocalStore(tmp_path).create("d/ab/uuid/t0000.seg", b"ours")
    assert gone
    assert LocalStore(tmp_path).read("d/ab/uuid/t0000.seg") == b"ours"


@pytest.mark.parametrize("top", ["commits", "d"])
def test_names_are_deleted_from_a_folder_that_is_a_link_to_another_disk(tmp_path: Path, top: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / top).symlink_to(tmp_path / "elsewhere")
    store = LocalStore(tmp_path / "job")
    store.create(f"{top}/ab/f", b"1")
    store.delete(f"{top}/ab/f")
    store.create(f"{top}/f", b"2")
    store.delete(f"{top}/f")
    assert store.list("") == []
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["file", "link to nowhere"])
def test_what_is_no_folder_is_not_a_name_that_another_writer_has_taken(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "job"
    place.write_bytes(b"") if kind == "file" else place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is no folder"):
        LocalStore(place).create("commits/1.json", b"1")
