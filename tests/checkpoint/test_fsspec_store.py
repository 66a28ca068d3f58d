"""Any other fsspec URL: taken where a name is created in one step, refused where it is only looked up first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from checkpoint_world import holds, restored_world, saved_world
from fsspec.implementations.memory import MemoryFileSystem

from ett.checkpoint import CheckpointConfig
from ett.checkpoint.commit_log import prepare_folder
from ett.checkpoint.fsspec_store import FsspecStore
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.s3_store import S3Store
from ett.checkpoint.store import open_store
from ett.errors import ConfigError, Unreachable


class LooksFirst(MemoryFileSystem):  # type: ignore[misc]
    """Creates as fsspec's default does: it asks whether the name exists, then writes."""

    protocol = "looksfirst"
    pipe_file = fsspec.AbstractFileSystem.pipe_file


class Replaces(MemoryFileSystem):  # type: ignore[misc]
    protocol = "replaces"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        super().pipe_file(path, value, mode="overwrite")


class IsDown(MemoryFileSystem):  # type: ignore[misc]
    """Does not list some folder, and looks for files as fsspec's default does, folder by folder."""

    protocol = "isdown"
    find = fsspec.AbstractFileSystem.find
    refused: ClassVar[str] = ""

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:
        if self.refused and path.rstrip("/").endswith(self.refused):
            raise OSError("503 Service Unavailable")
        return super().ls(path, detail=detail, **kwargs)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for system in (LooksFirst, Replaces, IsDown):
        fsspec.register_implementation(system.protocol, system, clobber=True)
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.mark.slow
def test_a_job_saves_to_and_restores_from_it() -> None:
    saved_world("memory://job", 2, [1, 2])  # type: ignore[arg-type]
    assert holds(restored_world("memory://job", 3), 2)  # type: ignore[arg-type]


def test_names_are_given_once_and_lists_are_relative(tmp_path: Path) -> None:
    store = FsspecStore("memory://a/b")
    store.create("commits/1.json", b"first")
    with pytest.raises(FileExistsError):
        store.create("commits/1.json", b"second")
    (tmp_path / "file").write_bytes(b"0123456789")
    store.put_file("d/f", tmp_path / "file", "h")
    store.put_file("d/f", tmp_path / "file", "h")
    assert store.list("") == ["commits/1.json", "d/f"]
    assert store.list("none") == []
    buffer = bytearray(4)
    with store.open("d/f") as reader:
        assert reader.read_into(8, memoryview(buffer)) == 2
    assert bytes(buffer[:2]) == b"89"
    store.delete("d/f")
    store.delete("d/f")
    with pytest.raises(FileNotFoundError):
        store.size("d/f")


@pytest.mark.parametrize("refused", ["/commits", "/d"])
def test_a_store_that_does_not_list_is_not_one_without_commits(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job would start over, and delete as orphans what it cannot see the commits of."""
    store = FsspecStore("isdown://job")
    for name in ("commits/1.json", "d/ab/x/f"):
        store.create(name, b"1")
    assert store.list("") == ["commits/1.json", "d/ab/x/f"]
    monkeypatch.setattr(IsDown, "refused", refused)
    with pytest.raises(Unreachable, match="503"):
        store.list(refused.strip("/"))
    with pytest.raises(Unreachable, match="503"):
        store.list("")


@pytest.mark.parametrize("scheme", ["looksfirst", "replaces"])
def test_a_store_without_create_only_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigError) as raised:
        prepare_folder(open_store(f"{scheme}://folder"))
    assert raised.value.code == "F007"


def test_a_uri_chooses_its_store(tmp_path: Path) -> None:
    assert isinstance(open_store(f"file://{tmp_path}"), LocalStore)
    assert isinstance(open_store(str(tmp_path)), LocalStore)
    assert isinstance(open_store("s3://bucket/job"), S3Store)
    assert isinstance(open_store("memory://job"), FsspecStore)


def test_an_unknown_scheme_is_refused_when_configured() -> None:
    with pytest.raises(ConfigError, match="'s4'") as raised:
        CheckpointConfig(uri="s4://bucket")
    assert raised.value.code == "F004"


def test_a_stream_that_breaks_off_leaves_nothing() -> None:
    """A file system that is written to directly completes what an exception cut off (s3fs #154)."""
    store = FsspecStore("memory://a/b")
    with pytest.raises(ZeroDivisionError), store.create_stream("d/f") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert store.list("") == []
