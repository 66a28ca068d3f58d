from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.errors import AccessDenied, DataError, NotFound, Unreachable
from ett.trainer.data import text_source
from ett.trainer.data.text_source import TextSource, TextWindow

TEXT = b"".join(b"line %d\n" % n for n in range(10))
BOM = b"\xef\xbb\xbf"


def windows_of(path: Path | str, num_lines: int = 4) -> list[TextWindow]:
    return list(TextSource(str(path)).windows(num_lines))


def test_windows_hold_whole_lines_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(TEXT)
    windows = windows_of(tmp_path / "a.tsv")
    assert b"".join(window.block for window in windows) == TEXT
    assert [(w.num_rows, w.start.first_line, w.start.first_row, w.start.offset) for w in windows] == [
        (4, 0, 0, 0),
        (4, 4, 4, 28),
        (2, 8, 8, 56),
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 5, 7, 64])
def test_windows_do_not_depend_on_how_much_is_read_at_once(
    tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tsv").write_bytes(TEXT)
    whole = windows_of(tmp_path / "a.tsv")
    monkeypatch.setattr(text_source, "_CHUNK_BYTES", chunk_bytes)
    assert windows_of(tmp_path / "a.tsv") == whole


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for name, text in {"b": b"2\n3\n", "a": b"0\n1", "c": b"", "d": b"4\n", ".x": b"!\n", "_SUCCESS": b"!\n"}.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "folder").mkdir()
    windows = windows_of(tmp_path, 8)
    assert [window.block for window in windows] == [b"0\n1", b"2\n3\n", b"4\n"]
    assert [window.start.first_row for window in windows] == [0, 2, 4]
    assert [window.start.first_line for window in windows] == [0, 0, 0]


@pytest.mark.parametrize("name", ["day.tsv", "day.gz"])
@pytest.mark.parametrize("packed", [False, True])
def test_gzip_is_known_by_its_first_bytes_not_its_name(tmp_path: Path, name: str, packed: bool) -> None:
    (tmp_path / name).write_bytes(gzip.compress(TEXT) if packed else TEXT)
    assert b"".join(window.block for window in windows_of(tmp_path / name)) == TEXT


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT) + gzip.compress(TEXT))
    assert b"".join(window.block for window in windows_of(tmp_path / "a.gz")) == TEXT * 2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", [b"", BOM])
def test_windows_from_a_position_are_those_of_a_whole_pass(tmp_path: Path, packed: bool, mark: bytes) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(gzip.compress(mark + TEXT) if packed else mark + TEXT)
    whole = windows_of(tmp_path)
    for n, window in enumerate(whole):
        assert list(TextSource(str(tmp_path)).windows(4, window.start)) == whole[n:]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BOM + b"0\t1\n")
    assert windows_of(tmp_path / "a")[0].block == b"0\t1\n"


def test_a_byte_order_mark_within_a_file_is_left_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0\n" + BOM + b"1\n")
    assert [window.block for window in windows_of(tmp_path / "a", 1)] == [b"0\n", BOM + b"1\n"]


@pytest.mark.parametrize("scheme", ["memory://text-source", "file://{tmp}", "local://{tmp}"])
def test_fsspec_urls_are_read(tmp_path: Path, scheme: str) -> None:
    url = scheme.format(tmp=tmp_path)
    for name in ("b.gz", "a"):
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(gzip.compress(TEXT) if name == "b.gz" else TEXT)
    assert b"".join(window.block for window in windows_of(url)) == TEXT * 2
    assert b"".join(window.block for window in windows_of(f"{url}/b.gz")) == TEXT


@pytest.mark.parametrize("cut", [5, 20, -9, -4])
def test_a_gzip_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT)[:cut])
    with pytest.raises(DataError, match=r"a\.gz: damaged gzip data"):
        windows_of(tmp_path / "a.gz")


def test_a_gzip_file_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT, mtime=0))
    packed[-6] ^= 1
    (tmp_path / "a.gz").write_bytes(packed)
    with pytest.raises(DataError, match="damaged gzip data"):
        windows_of(tmp_path / "a.gz")


def test_bytes_without_any_line_feed_are_refused_before_memory_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_source, "_LONGEST_LINE_BYTES", 1000)
    monkeypatch.setattr(text_source, "_CHUNK_BYTES", 300)
    (tmp_path / "a").write_bytes(b"0\n" + b"\0" * 5000)
    with pytest.raises(DataError, match="no line feed in 1,198 bytes"):
        windows_of(tmp_path / "a")


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.tsv' does not exist"):
        TextSource(str(tmp_path / "nothing.tsv"))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no files"):
        TextSource(str(tmp_path))


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    source = TextSource(str(tmp_path))
    (tmp_path / "a").unlink()
    with pytest.raises(NotFound, match="/a is gone"):
        list(source.windows(4))


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    source = TextSource(str(tmp_path))

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(source.files.storage, "_open", refuse)  # the tests may run as root, whom no mode stops
    with pytest.raises(AccessDenied, match="no permission to read"):
        list(source.windows(4))


@pytest.mark.slow
@given(text=st.text("ab\n\r", max_size=60).map(str.encode), num_lines=st.integers(1, 9), chunk_bytes=st.integers(1, 20))
def test_windows_of_any_text_join_to_it_again(text: bytes, num_lines: int, chunk_bytes: int) -> None:
    class Chunks(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(chunk_bytes)

    blocks = list(text_source._blocks("a", Chunks(text), num_lines))
    lines = io.BytesIO(text).readlines()
    assert b"".join(block for block, _ in blocks) == text
    assert [count for _, count in blocks] == [len(lines[n : n + num_lines]) for n in range(0, len(lines), num_lines)]
    assert all(block.endswith(b"\n") for block, _ in blocks[:-1])


def test_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "x").write_bytes(TEXT)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "day.tsv").symlink_to("../blobs/x")
    (tmp_path / "data" / "folder").symlink_to("../blobs")
    assert b"".join(window.block for window in windows_of(tmp_path / "data")) == TEXT
    assert TextSource(str(tmp_path / "data")).files[0].num_bytes == len(TEXT)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "day.tsv").symlink_to("nowhere")
    with pytest.raises(NotFound, match=r"day\.tsv is a link that leads nowhere"):
        TextSource(str(tmp_path))


def test_a_pipe_is_refused_because_an_epoch_reads_it_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        TextSource(str(tmp_path / "pipe"))


def test_a_store_that_fails_in_the_middle_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    source = TextSource(str(tmp_path / "a"))

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 28:
                raise OSError(5, "Input/output error")
            return super().read(28)

    monkeypatch.setattr(source.files.storage, "_open", lambda *args, **kwargs: Failing(TEXT))
    with pytest.raises(Unreachable, match=r"reading .*/a failed after line 4: .*Input/output error"):
        list(source.windows(4))


def test_windows_that_are_left_early_close_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(TEXT))
    source = TextSource(str(tmp_path / "a.gz"))
    raw = io.BytesIO(gzip.compress(TEXT))
    monkeypatch.setattr(source.files.storage, "_open", lambda *args, **kwargs: raw)
    windows = source.windows(2)
    next(windows)
    assert not raw.closed
    windows.close()
    assert raw.closed


def test_a_store_without_credentials_is_one_clear_error() -> None:
    exceptions = pytest.importorskip("botocore.exceptions")

    class Bucket(fsspec.AbstractFileSystem):  # type: ignore[misc]
        def info(self, path: str, **kwargs: Any) -> None:
            raise exceptions.NoCredentialsError

    fsspec.register_implementation("bucket", Bucket, clobber=True)
    with pytest.raises(Unreachable, match=r"data\.path 'bucket://day': Unable to locate credentials"):
        TextSource("bucket://day")


@pytest.mark.parametrize("url", ["nonsense://x/y", "s4://bucket"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(DataError, match=r"data\.path"):
        TextSource(url)
