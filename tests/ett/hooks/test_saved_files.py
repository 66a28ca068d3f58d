from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.hooks.saved_files import WHOLE_BYTES, Content, SavedFiles, SavedState, content_of


def saved(digest: str = "d", step: int = 3, num_bytes: int = 10) -> SavedState:
    return SavedState(
        digest=digest,
        num_bytes=num_bytes,
        step=step,
        cursor=step * 8,
        ckpt_id=f"a1-{step}",
        has_optimizer=True,
        is_position_known=True,
    )


def kept(files: SavedFiles, path: Path, step: int) -> SavedState:
    content = known(path)
    state = saved(content.digest(), step, content.num_bytes)
    files.add(state)
    return state


def known(target: object) -> Content:
    content = content_of(target)
    assert content is not None
    return content


def checkpoint(path: Path, value: float) -> Path:
    torch.save({"model": {"weight": torch.full((64,), value)}}, path)
    return path


def test_a_renamed_or_copied_file_is_known_by_another_process_of_the_job(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a.pt", 1.0)
    state = kept(SavedFiles(tmp_path, 1, 0), path, 5)
    shutil.copy(path, tmp_path / "copy.bin")
    os.rename(path, tmp_path / "latest.pt")
    others = SavedFiles(tmp_path, 2, 1)
    for name in ("copy.bin", "latest.pt"):
        assert others.find(known(tmp_path / name)) == state


def test_an_open_file_and_bytes_in_memory_are_known_too(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a.pt", 1.0)
    files = SavedFiles(tmp_path, 1, 0)
    state = kept(files, path, 5)
    with path.open("rb") as file:
        file.seek(3)
        assert files.find(known(file)) == state
        assert file.tell() == 3
    assert files.find(known(io.BytesIO(path.read_bytes()))) == state


def test_a_file_of_the_same_size_with_other_numbers_is_foreign(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path, 1, 0)
    kept(files, checkpoint(tmp_path / "a.pt", 1.0), 5)
    other = checkpoint(tmp_path / "b.pt", 2.0)
    assert files.find(known(other)) is None


def test_of_equal_saves_the_last_one_counts(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path, 1, 0)
    path = checkpoint(tmp_path / "a.pt", 1.0)
    for step in (5, 9, 7):
        kept(files, path, step)
    found = files.find(known(path))
    assert found is not None
    assert found.step == 9


def test_a_line_torn_by_a_kill_hides_no_other(tmp_path: Path) -> None:
    files = SavedFiles(tmp_path, 1, 0)
    path = checkpoint(tmp_path / "a.pt", 1.0)
    state = kept(files, path, 5)
    (tmp_path / "saves" / "1-r0-1.jsonl").write_text('{"digest": "a", "st')
    assert files.find(known(path)) == state


def test_a_job_that_saved_nothing_knows_nothing(tmp_path: Path) -> None:
    assert SavedFiles(tmp_path, 1, 0).find(known(checkpoint(tmp_path / "a.pt", 1.0))) is None


def test_a_target_without_bytes_of_its_own_is_not_looked_at() -> None:
    assert content_of(object()) is None


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [0, 1, 5 << 20, WHOLE_BYTES, WHOLE_BYTES + 1, 40 << 20])
def test_the_digest_sees_the_ends_of_a_file_of_any_size(num_bytes: int) -> None:
    def digest(data: bytes) -> str:
        return Content(len(data), lambda count, at: data[at : at + count], lambda: None).digest()

    plain = bytes(num_bytes)
    changed = {digest(b"\1" + plain[1:]), digest(plain[:-1] + b"\1"), digest(plain + b"\0")} if num_bytes else set()
    assert digest(plain) not in changed
    assert len(changed) == (0 if not num_bytes else 2 if num_bytes == 1 else 3)


@settings(max_examples=30)
@given(st.binary(max_size=2000), st.integers(0, 1999), st.integers(1, 255))
def test_a_small_file_is_digested_whole(data: bytes, at: int, flip: int) -> None:
    def digest(data: bytes) -> str:
        return Content(len(data), lambda count, at: data[at : at + count], lambda: None).digest()

    if at < len(data):
        other = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
        assert digest(other) != digest(data)
