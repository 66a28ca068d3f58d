from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from ett.errors import ConfigError, CorruptState, EttError, Unreachable
from ett.trainer.sparse.hashing import Ids
from ett.trainer.sparse.tiers import ssd_log
from ett.trainer.sparse.tiers.row_store import Bytes
from ett.trainer.sparse.tiers.ssd_log import SsdLog

ROW_BYTES = 100  # padded to 104 in the file
RECORD_BYTES = 16 + 104
IDS = np.arange(2000) * 3


def rows_of(ids: Ids, salt: int = 0) -> Bytes:
    return np.repeat((ids[:, None] * 7 + salt) % 251, ROW_BYTES, axis=1).astype(np.uint8)


@pytest.fixture
def log(tmp_path: Path) -> SsdLog:
    opened = SsdLog("t", ROW_BYTES, tmp_path / "log")
    opened.write(IDS, rows_of(IDS))
    return opened


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "log").iterdir())


def rows_in(log: SsdLog, ids: Ids = IDS) -> Bytes:
    out = np.zeros((len(ids), ROW_BYTES), np.uint8)
    assert log.read(ids, out).all()
    return out


@pytest.mark.slow
def test_overwritten_rows_cost_at_most_as_much_space_as_live_ones(log: SsdLog) -> None:
    rng = np.random.default_rng(1)
    newest = dict.fromkeys(IDS.tolist(), 0)
    for salt in range(1, 200):
        ids = rng.choice(IDS, 500, replace=False)
        log.write(ids, rows_of(ids, salt))
        newest |= dict.fromkeys(ids.tolist(), salt)
    live = len(IDS) * RECORD_BYTES
    assert log.disk_bytes <= 2 * live + 3 * ssd_log.SMALLEST_SEGMENT_BYTES
    assert np.array_equal(rows_in(log), rows_of(IDS, np.array([newest[i] for i in IDS.tolist()])[:, None]))


def test_freed_rows_give_their_space_back(log: SsdLog, tmp_path: Path) -> None:
    log.write(IDS + 1, rows_of(IDS + 1))
    log.free(IDS)
    log.free(IDS[:5])
    log.write(IDS[:1], rows_of(IDS[:1]))
    for _ in range(20):
        log.write(IDS + 1, rows_of(IDS + 1))
    assert sum(path.stat().st_size for path in files(tmp_path)) == log.disk_bytes
    assert log.disk_bytes <= 2 * len(log) * RECORD_BYTES + 3 * ssd_log.SMALLEST_SEGMENT_BYTES


def test_open_files_do_not_grow_with_the_log(log: SsdLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_log, "LARGEST_SEGMENT_BYTES", ssd_log.SMALLEST_SEGMENT_BYTES)
    for begin in range(10_000, 60_000, 10_000):
        ids = np.arange(begin, begin + 10_000)
        log.write(ids, rows_of(ids))
    assert len(files(tmp_path)) > 20
    targets = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    assert len([target for target in targets if target.startswith(str(tmp_path))]) == 1


def test_what_is_closed_leaves_no_file(log: SsdLog, tmp_path: Path) -> None:
    log.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("offset", [0, 9, 16, 16 + ROW_BYTES - 1])
def test_a_flipped_bit_of_id_check_or_row_is_found(log: SsdLog, tmp_path: Path, offset: int) -> None:
    (path,) = files(tmp_path)
    at = 5 * RECORD_BYTES + offset
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))
    with pytest.raises(CorruptState, match=rf"table t: the record of id 15 at byte {5 * RECORD_BYTES} of .*rows"):
        rows_in(log)
    assert np.array_equal(rows_in(log, IDS[:5]), rows_of(IDS[:5]))


def test_an_older_record_of_the_same_id_is_found(log: SsdLog, tmp_path: Path) -> None:
    log.write(IDS[:1], rows_of(IDS[:1], salt=1))
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    newest = len(IDS) * RECORD_BYTES
    content[newest : newest + RECORD_BYTES] = content[:RECORD_BYTES]
    path.write_bytes(content)
    with pytest.raises(CorruptState, match="id 0 at byte"):
        rows_in(log, IDS[:1])


def test_a_file_that_was_cut_is_an_error_and_no_signal(log: SsdLog, tmp_path: Path) -> None:
    (path,) = files(tmp_path)
    os.truncate(path, 4096)
    with pytest.raises(CorruptState, match=r"table t: .* has been cut"):
        rows_in(log)


def test_a_file_that_was_removed_is_an_error(log: SsdLog, tmp_path: Path) -> None:
    files(tmp_path)[0].unlink()
    with pytest.raises(CorruptState, match=r"table t: .*no such file"):
        rows_in(log)


def full_disk(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_that_names_the_table_and_what_was_written_is_still_read(
    log: SsdLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_disk)
        ids = np.arange(50_000)
        with pytest.raises(Unreachable, match=r"table t: no space left for .*rows") as caught:
            log.write(ids, rows_of(ids, salt=5))
        assert caught.value.code == "S002"
        assert "sparse.tier_dir" in caught.value.do
    assert np.array_equal(rows_in(log), rows_of(IDS))
    log.write(ids, rows_of(ids, salt=5))
    assert np.array_equal(rows_in(log), rows_of(IDS, salt=5))


def test_a_write_that_breaks_off_is_written_over_by_the_next(log: SsdLog, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def torn(fd: int, data: memoryview, offset: int) -> int:
        if len(data) <= RECORD_BYTES:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, data[: len(data) - RECORD_BYTES // 2], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", torn)
        with pytest.raises(EttError, match=r"table t: input/output failed on .*rows"):
            log.write(IDS[:100], rows_of(IDS[:100], salt=1))
    assert np.array_equal(rows_in(log), rows_of(IDS))
    log.write(IDS[:100], rows_of(IDS[:100], salt=2))
    assert np.array_equal(rows_in(log, IDS[:100]), rows_of(IDS[:100], salt=2))


def test_no_space_to_compact_is_no_error_of_a_write_that_had_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SsdLog("t", ROW_BYTES, tmp_path / "log")
    ids = np.arange(20_000)
    log.write(ids, rows_of(ids))
    log.write(ids[:11_000], rows_of(ids[:11_000], salt=1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full_disk)
        log.free(ids[5_000:])
    assert np.array_equal(rows_in(log, ids[:5_000]), rows_of(ids[:5_000], salt=1))


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"table t: .*no folder"):
        SsdLog("t", ROW_BYTES, tmp_path / "file" / "log")


def test_a_log_never_begins_where_something_is(log: SsdLog, tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"table t: .*exists"):
        SsdLog("t", ROW_BYTES, tmp_path / "log")
