"""What jobs read: no format and no way of reading ahead changes a bit; a malformed row ends a job by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from launched_job import PROGRAMS, LaunchedJob

from ett.trainer.data.criteo import criteo_rows
from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID
from ett.trainer.data.generator import criteo_lines
from ett.trainer.data.position import BEGINNING

pytestmark = [pytest.mark.process, pytest.mark.slow]
RECIPE = str(PROGRAMS / "small_dlrm.toml")
ROWS = 4000


def write_text(path: Path) -> None:
    path.write_bytes(b"".join(criteo_lines(ROWS, 3)))


def write_parquet(path: Path, text: Path) -> None:
    rows = criteo_rows(str(text))
    (window,) = rows.windows(ROWS, BEGINNING)
    columns, _ = rows.take(window, np.arange(ROWS))
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    missing = {name: {"I": MISSING_COUNT, "C": MISSING_ID}.get(name[0], -1) for name in arrays}
    table = pa.table({name: pa.array(array, mask=array == missing[name]) for name, array in arrays.items()})
    pq.write_table(table, path, row_group_size=300)


def given(path: Path, **data: int) -> list[str]:
    values = {"path": str(path), "window_rows": 300, "lanes": 2} | data
    return [flag for name, value in values.items() for flag in ("--set", f"data.{name}={value}")]


def result_of(job: LaunchedJob) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((job.job_dir / "result.json").read_text())
    return result


def test_format_readers_and_kills_change_no_bit(job: LaunchedJob, tmp_path_factory: pytest.TempPathFactory) -> None:
    text, parquet = (tmp_path_factory.mktemp("input") / name for name in ("a.tsv", "a.parquet"))
    write_text(text)
    write_parquet(parquet, text)
    other = LaunchedJob(tmp_path_factory.mktemp("other"))
    assert job.run("--nproc", "2", *given(text, prefetch_batches=0), RECIPE) == 0, job.err
    ahead = given(parquet, readers=3, prefetch_batches=6)
    assert other.run("--nproc", "2", *ahead, "--chaos", "kill:rank=1,step=9", RECIPE) == 0, other.err
    assert [end["reason"] for end in other.ends()] == ["failed", "completed"]
    assert result_of(other) == result_of(job)


def test_a_malformed_line_that_one_rank_parses_ends_the_job_by_file_and_line(job: LaunchedJob) -> None:
    path = job.folder / "a.tsv"
    lines = b"".join(criteo_lines(ROWS, 3)).splitlines(keepends=True)
    lines[2345] = lines[2345].replace(b"\t", b"|", 1)
    path.write_bytes(b"".join(lines))
    assert job.run("--nproc", "2", *given(path), RECIPE) == 3, job.err
    assert [end["reason"] for end in job.ends()] == ["failed"]
    assert "a.tsv:2346: 39 fields" in job.err
