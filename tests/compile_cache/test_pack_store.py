"""A folder or bucket may have more than packs: what is not named as one is not ours to list, count or delete."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from ett.compile_cache.pack_store import ABANDONED_S, FolderPacks, open_pack_store
from ett.compile_cache.store_bound import drop_oldest

PACK = f"{'0af3' * 8}/0000.pack"
FOREIGN = [
    ".git/objects/pack/pack-1234.pack",
    f"{'0af3' * 8}/more/0000.pack",
    f"{'0af3' * 8}/0000.pack.pack",
    f"{'0AF3' * 8}/0000.pack",
    f"below/{PACK}",
    "0000.pack",
]


@pytest.mark.parametrize("is_local", [True, False], ids=["folder", "bucket"])
def test_only_what_is_named_as_a_pack_is_one(is_local: bool, tmp_path: Path) -> None:
    uri = str(tmp_path) if is_local else f"memory://bucket-{uuid4().hex}"
    system, root = fsspec.core.url_to_fs(uri)
    for name in (PACK, *FOREIGN):
        system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{root}/{name}", b"x")
    store = open_pack_store(uri)
    assert [stored.name for stored in store.stored()] == [PACK]
    assert [stored.name for stored in store.stored(PACK.partition("/")[0])] == [PACK]
    system.rm(root, recursive=True)


def test_what_a_publisher_that_was_killed_left_goes(tmp_path: Path) -> None:
    folder = tmp_path / ("0af3" * 8)
    folder.mkdir()
    names = [f".{letter * 16}.tmp" for letter in "ab"]
    for name in (*names, ".of-another.tmp"):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - ABANDONED_S - 60,) * 2)
    os.utime(folder / names[1])  # is being written
    drop_oldest(FolderPacks(tmp_path), 1 << 30)
    assert sorted(path.name for path in folder.iterdir()) == [names[1], ".of-another.tmp"]
