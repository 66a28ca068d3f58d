from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ett.errors import Unreachable
from ett.trainer.data import generated_file
from ett.trainer.data.config import GenerateConfig
from ett.trainer.data.generated_file import ensure_generated, write_criteo
from ett.trainer.data.generator import criteo_lines

CONFIG = GenerateConfig(rows=50, seed=4)


def test_the_file_is_made_with_its_rows_and_seed_in_its_name(tmp_path: Path) -> None:
    path = ensure_generated(CONFIG, tmp_path / "data")
    assert path.read_bytes() == b"".join(criteo_lines(50, 4))
    assert "50-rows-seed-4" in path.name
    assert ensure_generated(GenerateConfig(rows=51, seed=4), tmp_path / "data") != path


def test_ranks_that_come_at_once_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def counted(path: Path, rows: int, seed: int) -> int:
        made.append(path)
        return write_criteo(path, rows, seed)

    def rank(_: int) -> Path:
        all_here.wait()
        return ensure_generated(CONFIG, tmp_path)

    all_here = threading.Barrier(8, timeout=300)
    monkeypatch.setattr(generated_file, "write_criteo", counted)
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(rank, range(8)))
    assert made == list(paths)


def test_a_file_that_exists_is_used_again(tmp_path: Path) -> None:
    path = ensure_generated(CONFIG, tmp_path)
    before = path.stat()
    assert ensure_generated(CONFIG, tmp_path).stat() == before


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    path = ensure_generated(CONFIG, tmp_path)
    path.unlink()
    left = tmp_path / f".{path.name}.12345.tmp"
    left.write_bytes(b"0\t1")
    assert ensure_generated(CONFIG, tmp_path).read_bytes() == b"".join(criteo_lines(50, 4))
    assert not left.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(rows: int, seed: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(generated_file, "criteo_lines", full_disk)
    with pytest.raises(Unreachable, match=r"no space left for .*a\.tsv"):
        write_criteo(tmp_path / "a.tsv", 5, 1)
    assert not list(tmp_path.iterdir())


def test_a_packed_file_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        size = write_criteo(tmp_path / name, 50, 4, packed=True)
        assert size == (tmp_path / name).stat().st_size
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert (tmp_path / "a.gz").read_bytes()[4:8] == bytes(4)  # no time of day
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"".join(criteo_lines(50, 4))
