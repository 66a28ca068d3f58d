from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ett.errors import NotFound
from ett.trainer.demo import MOST_ROWS, count_rows, plan_demo


@pytest.mark.parametrize("num_rows", [200, 2000, 50_000, 300_000])
def test_the_kill_comes_between_two_checkpoints_with_steps_left(num_rows: int) -> None:
    plan = plan_demo(num_rows, 1024, "")
    settings = dict(setting.split("=") for setting in plan.settings)
    batch_size, interval = int(settings.get("train.batch_size", 1024)), int(settings["checkpoint.interval"].split()[0])
    num_steps = num_rows * 9 // 10 // batch_size
    assert interval < plan.kill_step < num_steps
    assert plan.kill_step % interval


def test_rows_are_counted_in_plain_files_as_in_gzip_ones(tmp_path: Path) -> None:
    lines = b"0\t1\n" * 7
    (tmp_path / "plain.tsv").write_bytes(lines)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(lines))
    assert [count_rows(str(tmp_path / name)) for name in ("plain.tsv", "packed.gz")] == [7, 7]
    assert count_rows(str(tmp_path)) == 14
    assert count_rows(f"file://{tmp_path}/plain.tsv", limit=5) == 5


def test_a_large_input_is_read_in_part() -> None:
    settings = dict(setting.split("=") for setting in plan_demo(MOST_ROWS, 1024, "/data").settings)
    assert int(settings["train.max_steps"]) * 1024 < MOST_ROWS
    assert "eval.max_rows" in settings
    assert not [s for s in plan_demo(MOST_ROWS - 1, 1024, "/data").settings if "max_" in s]


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.tsv' does not exist"):
        count_rows(str(tmp_path / "nothing.tsv"))
