"""Pages of jobs: the same rows in the same order by any page size, from an index; writers in turn, readers at once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ett.cli import run
from ett.errors import Conflict, CorruptState, UsageError
from ett.event_line import encode_line
from ett.store import Store, open_store
from ett.store.database import open_database, without_password
from ett.store.job_table import SORTS, JobFilter, page_of_rows

StepLine = Callable[..., bytes]
NS = 10**9
T0_NS = 1_700_000_000 * NS


def finished_job(number: int, *, team: str = "ads", model: str = "ctr", status: str = "succeeded") -> list[bytes]:
    """A job of 100 s that trained for `number % 7` tens of them."""
    start_ns = T0_NS + (number // 3) * 3600 * NS  # three jobs start at the same instant
    common = {"v": 1, "job": f"j{number}", "gen": 0, "src": "sup", "host": "h", "boot": "b", "pid": 1}
    tells: list[dict[str, Any]] = [
        {"ev": "job_submitted", "t": 0, "att": 0, "team": team, "model": model, "owner": "lee"},
        {"ev": "attempt_started", "t": 1, "att": 1, "world": 1},
        {"ev": "step", "t": 90, "att": 1, "src": "r0", "rank": 0, "step": 0, "c0": 0, "c1": 1, "world": 1,
         "b_mono": 10 * NS, "e_mono": (10 + 10 * (number % 7)) * NS},
        {"ev": "attempt_ended", "t": 100, "att": 1, "reason": "completed", "exit_code": 0},
        {"ev": "job_ended", "t": 100, "att": 0, "status": status},
    ]  # fmt: skip
    lines = []
    for seq, tell in enumerate(tells):
        t = tell.pop("t")
        lines.append(encode_line(common | {"seq": seq, "wall_ns": start_ns + t * NS, "mono_ns": t * NS} | tell))
    return lines


def fill(store: Store, num: int) -> None:
    for number in range(num):
        team, status = ("ads", "feed")[number % 2], ("succeeded", "failed", "cancelled")[number % 3]
        lines = finished_job(number, team=team, model=f"m{number % 4}", status=status)
        store.ingest(f"j{number}", "0/sup.jsonl", lines)


@pytest.mark.slow
@pytest.mark.parametrize("sort", sorted(SORTS))
@pytest.mark.parametrize("size", [1, 4, 50])
def test_pages_of_any_size_hold_each_job_once_in_order(store: Store, sort: str, size: int) -> None:
    fill(store, 23)
    expected = page_of_rows(store.jobs(), JobFilter(), sort=sort, limit=None, cursor=None).rows
    found, cursor = [], None
    while True:
        page = store.page(JobFilter(), sort=sort, limit=size, cursor=cursor)
        found += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break
    assert tuple(found) == expected
    assert len({row.job for row in found}) == 23


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        JobFilter(team="ads"),
        JobFilter(model="m2", state="failed"),
        JobFilter(since_unix_s=T0_NS / NS + 7200),
        JobFilter(team="nobody"),
        JobFilter(team="ads' OR 1=1 --"),
    ],
)
def test_a_filter_keeps_what_it_says(store: Store, asked: JobFilter) -> None:
    fill(store, 23)
    rows = store.page(asked).rows
    assert rows == page_of_rows(store.jobs(), asked, sort="start", limit=None, cursor=None).rows
    assert len(rows) < 23


def test_ett_of_a_row_is_that_of_its_report(store: Store) -> None:
    fill(store, 7)
    assert {row.job: row.ett for row in store.jobs()} == {
        f"j{n}": (n % 7) / 10 if n % 3 == 0 else 0.0
        for n in range(7)  # of those that failed nothing was kept
    }
    assert all(sum(row.ns.values()) == row.total_ns == 100 * NS for row in store.jobs())


@pytest.mark.parametrize(
    "cursor", ["x", "start.1", "ett.1.j1", "start.1.j1; DROP TABLE job", "start.9e9.j1", "start..a"]
)
def test_a_cursor_of_another_list_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        store.page(JobFilter(), sort="start", limit=2, cursor=cursor)


def test_ls_prints_the_cursor_of_the_next_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = str(tmp_path / "ett.db")
    monkeypatch.setenv("ETT_STORE", url)
    with open_store(url) as store:
        fill(store, 9)
    names, cursor = [], None
    for _ in range(3):
        more = [] if cursor is None else ["--cursor", cursor]
        assert run(["ls", "--json", "--limit", "4", "--sort", "lost", *more]) == 0
        data = json.loads(capsys.readouterr().out)["data"]
        names += [row["job"] for row in data["jobs"]]
        cursor = data["next"]
    assert cursor is None
    assert sorted(names) == [f"j{n}" for n in range(9)]


def test_the_site_file_names_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    monkeypatch.delenv("ETT_STORE", raising=False)
    (tmp_path / "ett.toml").write_text(f'[store]\nurl = "{tmp_path}/jobs.db"\n')
    assert run(["ls"]) == 4
    assert "ett ingest --all" in capsys.readouterr().err
    with open_store(tmp_path / "jobs.db") as store:
        fill(store, 2)
    assert run(["ls", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["data"]["jobs"]) == 2


@pytest.mark.parametrize(
    "asked", [JobFilter(), JobFilter(team="ads"), JobFilter(model="m1"), JobFilter(state="failed")]
)
@pytest.mark.parametrize("sort", sorted(SORTS))
def test_no_page_of_sqlite_sorts_or_scans_the_table(
    tmp_path: Path, asked: JobFilter, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "ett.db") as store:
        plans: list[str] = []
        database = store._database
        real = database.rows

        def planned(sql: str, values: Any = ()) -> Any:
            plans.extend(str(row[3]) for row in real(f"EXPLAIN QUERY PLAN {sql}", values))
            return real(sql, values)

        monkeypatch.setattr(database, "rows", planned)
        store.page(asked, sort=sort, limit=50, cursor=f"{sort}.{T0_NS}.j1")
        assert plans
        assert not [plan for plan in plans if plan.startswith("SCAN job") and "INDEX" not in plan]
        if asked == JobFilter() or sort == "start":
            assert not [plan for plan in plans if "TEMP B-TREE FOR ORDER BY" in plan]


def test_a_running_job_is_listed_as_of_now(store: Store, step_line: StepLine) -> None:
    now_ns = time.time_ns()
    store.ingest("live", "1/r0.jsonl", [step_line(0, wall_ns=now_ns, b_mono=0, e_mono=0)])
    (first,), (second,) = store.jobs(), store.jobs()
    assert first.state == second.state == "running"
    assert now_ns <= first.ended_ns < second.ended_ns


def test_a_running_job_that_fell_silent_is_lost(store: Store, step_line: StepLine) -> None:
    store.ingest("live", "1/r0.jsonl", [step_line(0, wall_ns=time.time_ns(), b_mono=0, e_mono=0)])
    assert [row.state for row in store.jobs()] == ["running"]
    later_ns = time.time_ns() + 100 * NS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: later_ns)
        assert [row.state for row in store.jobs(state="lost")] == ["lost"]
        assert store.jobs(state="running") == []


def test_a_job_whose_log_cannot_be_read_is_named_and_left_out(store: Store, step_line: StepLine) -> None:
    fill(store, 2)
    store.ingest("new", "1/r0.jsonl", [step_line(0, v=2)])
    page = store.page(JobFilter())
    assert [row.job for row in page.rows] == ["j1", "j0"]
    assert "schema version 2" in page.warnings[0]


def test_a_second_writer_waits_its_turn_and_is_told_when_it_takes_too_long(tmp_path: Path, step_line: StepLine) -> None:
    with open_store(tmp_path / "ett.db") as first, open_store(tmp_path / "ett.db") as second:
        with first._database.writing():
            with pytest.raises(Conflict, match="writing to the store"):
                with second._database.writing(wait_s=0.05):
                    pass
            assert second.jobs() == []  # a reader does not wait
        assert second.ingest("j", "1/r0.jsonl", [step_line(0)]).accepted == 1


def test_writers_of_many_threads_lose_nothing(store: Store, step_line: StepLine) -> None:
    lines = [step_line(seq) for seq in range(120)]
    counts: list[int] = []

    def write(offset: int) -> None:
        for begin in range(0, 120, 20):
            batch = (lines[begin:] + lines[:begin])[offset : offset + 30]
            counts.append(store.ingest("j", "1/r0.jsonl", batch).accepted)

    threads = [threading.Thread(target=write, args=(offset,)) for offset in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = dict(store.files("j"))["1/r0.jsonl"].splitlines(keepends=True)
    assert sorted(stored) == sorted(set(stored))
    assert len(stored) == sum(counts)


def test_threads_that_come_and_go_leave_no_connection_behind(store_url: str, step_line: StepLine) -> None:
    with open_store(store_url) as store:
        store.ingest("j", "1/r0.jsonl", [step_line(0)])
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(40):
            thread = threading.Thread(target=store.jobs)
            thread.start()
            thread.join()
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_a_store_of_a_newer_schema_is_refused(store_url: str) -> None:
    database = open_database(store_url)
    with database.writing():
        database.run("INSERT INTO schema_version VALUES (?, ?)", (999, 0))
    database.close()
    with pytest.raises(CorruptState, match="schema version 999"):
        open_store(store_url)


def test_every_migration_is_applied_once(store_url: str) -> None:
    for _ in range(2):
        database = open_database(store_url)
        versions = [version for (version,) in database.rows("SELECT version FROM schema_version ORDER BY version")]
        database.close()
        assert versions == list(range(1, len(versions) + 1))


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ett.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptState, match="no SQLite database"):
        open_store(tmp_path / "ett.db")


def test_a_damaged_block_is_found(tmp_path: Path, step_line: StepLine) -> None:
    with open_store(tmp_path / "ett.db") as store:
        store.ingest("j", "1/r0.jsonl", [step_line(seq) for seq in range(50)])
        (data,) = store._database.rows("SELECT data FROM event_block")[0]
        with store._database.writing():
            store._database.run("UPDATE event_block SET data = ?", (data[:40] + b"\xff\xff" + data[42:],))
        with pytest.raises(CorruptState, match="damaged"):
            store.event_log("j")


@pytest.mark.parametrize("url", ["mysql://x/y", "http://x"])
def test_an_unknown_kind_of_store_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_a_password_is_never_shown() -> None:
    url = "postgresql://lee:hunter2@db.example:5432/ett?sslmode=require&password=hunter2"
    assert without_password(url) == "postgresql://lee@db.example:5432/ett?sslmode=require"


def test_a_store_that_would_keep_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="gone at once"):
        open_store(":memory:")


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_exit_code_6(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'ett[postgres]'")
    assert run(["ls", "--store", f"postgresql://ett:hunter2@/x?host={tmp_path}"]) == 6
    assert "hunter2" not in capsys.readouterr().err
