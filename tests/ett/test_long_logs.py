"""What a view of a job costs grows with its log, not with its log times what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ett import column_pieces, log_columns
from ett.accounting import JobAccount, account
from ett.bench_log import BenchJob, load_workload
from ett.event_reader import EventLog, read_folder
from ett.explain import intervals
from ett.figures import FIGURES
from ett.lives import recorded_job
from ett.piece_sums import measure_by_reason, measure_each
from ett.store.export_trace import trace_of
from ett.timeline_cli import timeline_text
from ett.timeline_svg import timeline_svg

pytestmark = pytest.mark.skipif(log_columns.NATIVE is None, reason="the extension is not built")
VIEWS: dict[str, Callable[[JobAccount], Any]] = {
    "timeline": timeline_text,
    "svg": timeline_svg,
    "explain": lambda job: intervals(job.pieces),
    "whatif": recorded_job,
    "trace": lambda job: trace_of([job], 10**8),
    "short trace": lambda job: trace_of([job], 10**5),
}
# Pieces that a view may make of each piece that there is; those that draw sums make none but at an attempt's edges.
MADE = {"explain": 1, "whatif": 1, "trace": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    workload = load_workload(FIGURES.parent / "workloads" / "accounting.toml")
    found = {}
    for records in (8_000, 32_000):
        found[records] = tmp_path_factory.mktemp("log")
        BenchJob(workload, records=records).write(found[records] / "events")
    return found


def job_of(folder: Path, *, in_columns: bool = True) -> JobAccount:
    log = read_folder(folder)
    found = account(log if in_columns else EventLog(list(log.records)), as_of_ns=0, cut_at_as_of=False)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_makes_a_piece_once_at_most(
    view: str, folders: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    real = column_pieces.SweptPieces.rows

    def counted(self: column_pieces.SweptPieces, first: int, last: int) -> Iterator[Any]:
        nonlocal made
        made += last - first
        return real(self, first, last)

    monkeypatch.setattr(column_pieces.SweptPieces, "rows", counted)
    for folder in folders.values():
        job, made = job_of(folder), 0
        VIEWS[view](job)
        assert made <= MADE.get(view, 0) * len(job.pieces) + 20 * len(job.timelines)


@pytest.mark.slow
def test_sums_of_records_look_at_the_pieces_of_their_interval_alone(folders: dict[int, Path]) -> None:
    job = job_of(folders[8_000], in_columns=False)
    looked_at = 0

    class Counted(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked_at
            found = super().__getitem__(index)
            looked_at += len(found) if isinstance(index, slice) else 1
            return found

    pieces = column_pieces.ColumnPieces([Counted(job.pieces)])
    begin_ns, end_ns = job.window.start_ns, job.window.end_ns
    edges = [begin_ns + (end_ns - begin_ns) * i // 1000 for i in range(1001)]
    each = measure_each(pieces, list(pairwise(edges)))
    assert looked_at < 2 * len(job.pieces) + 1000 * 40
    whole = measure_by_reason(job.pieces, [(begin_ns, end_ns)])
    assert {reason: sum(found.get(reason, 0) for found in each) for reason in whole} == whole


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_columns_is_that_of_records(view: str, folders: dict[int, Path]) -> None:
    columns, records = (job_of(folders[8_000], in_columns=which) for which in (True, False))
    assert VIEWS[view](columns) == VIEWS[view](records)


@pytest.mark.slow
def test_a_trace_that_does_not_fit_is_bounded(folders: dict[int, Path]) -> None:
    found = trace_of([job_of(folders[32_000])], 300_000)
    assert sum(map(len, found.lines)) <= 300_000
    assert found.num_events > 500
    assert "neighbouring steps became one" in found.notes[0]
