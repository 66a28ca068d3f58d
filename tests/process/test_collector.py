"""A collector and agents as processes: whatever is killed and however often, the store holds what the files hold."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector_process import ETT, NS, START_NS, Collector, GrowingLog, clean_environ, start_agent
from launched_job import LaunchedJob
from wait import LONGEST_S, wait_until

from ett.accounting import account
from ett.collector.batch import Block, encode
from ett.collector.body import MAX_SENT_BYTES
from ett.event_reader import read_folder
from ett.store import open_store

pytest.importorskip("uvicorn", reason="the collector's libraries are the extra ett[server]")
pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(tmp_path)
    yield collector.start()
    collector.kill()


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path / "home", "ads-ctr-7f3a")


def run_sync(log: GrowingLog, url: str, *args: str) -> subprocess.CompletedProcess[str]:
    home = log.events.parents[2]
    command = [*ETT, "sync", log.job, "--endpoint", url, "--json", *args]
    return subprocess.run(
        command, env=clean_environ(ETT_HOME=str(home)), capture_output=True, text=True, check=False, timeout=LONGEST_S
    )


def state_of(log: GrowingLog) -> dict[str, int]:
    states = list((log.events.parent / "sync").glob("*[0-9a-f].json"))
    counts: dict[str, int] = json.loads(states[0].read_text())["counts"] if states else {"sent": 0, "accepted": 0}
    return counts


def assert_store_is_the_files(collector: Collector, log: GrowingLog) -> None:
    assert collector.stored(log.job) == log.files()
    now_ns = START_NS + 10**6 * NS
    with open_store(collector.store_path) as store:
        from_store = account(store.event_log(log.job), as_of_ns=now_ns)
    from_files = account(read_folder(log.events), as_of_ns=now_ns)
    assert from_store is not None
    assert from_files is not None
    assert (from_store.pieces, from_store.flags) == (from_files.pieces, from_files.flags)


def assert_counts_add_up(collector: Collector, log: GrowingLog) -> None:
    """In the agent's books every line is there once; in the server's, those that came again are duplicates."""
    counts = state_of(log)
    assert counts["sent"] == counts["accepted"] + counts["duplicate"] + counts["rejected"] == log.num_lines
    assert counts["rejected"] == counts["unsendable"] == 0


def test_sync_sends_a_job_once_and_says_so(collector: Collector, log: GrowingLog) -> None:
    log.append(100)
    done = run_sync(log, collector.url)
    assert (done.returncode, json.loads(done.stdout)["data"]["accepted"]) == (0, 300)
    assert_store_is_the_files(collector, log)
    again = run_sync(log, collector.url)
    assert json.loads(again.stdout)["data"]["sent"] == 0
    assert collector.event_counts() == {"accepted": 300, "duplicate": 0}


def test_a_second_delivery_is_counted_as_duplicates(collector: Collector, log: GrowingLog) -> None:
    log.append(50)
    run_sync(log, collector.url)
    for path in (log.events.parent / "sync").glob("*.json"):
        path.unlink()
    done = run_sync(log, collector.url)
    assert json.loads(done.stdout)["data"] == {
        "sent": 150,
        "accepted": 0,
        "duplicate": 150,
        "rejected": 0,
        "unsendable": 0,
    }
    assert_store_is_the_files(collector, log)


def test_damaged_lines_are_rejected_and_the_rest_is_stored(collector: Collector, log: GrowingLog) -> None:
    log.append(10)
    rank = log.events / "1" / "r0-h-10-bbbbbbbb.jsonl"
    data = rank.read_bytes()
    rank.write_bytes(data.replace(b'"step":4,', b'"step":5,', 1) + b'{"torn')
    done = run_sync(log, collector.url)
    assert json.loads(done.stdout)["data"] == {
        "sent": 30,
        "accepted": 29,
        "duplicate": 0,
        "rejected": 1,
        "unsendable": 0,
    }
    assert "rejected lines are listed in" in done.stderr
    assert collector.event_counts()["rejected"] == 1


def test_sigterm_ends_the_collector_cleanly(collector: Collector) -> None:
    assert collector.get("/healthz")
    assert collector.terminate() == 0
    assert (collector.folder / "collector.err").read_text() == ""


def test_an_agent_killed_at_any_moment_only_repeats(collector: Collector, log: GrowingLog, tmp_path: Path) -> None:
    draw = random.Random(7)
    home = log.events.parents[2]
    for _ in range(12):
        log.append(400)
        before = collector.event_counts()["accepted"]  # first: on a busy host a scrape takes longer than the agent
        agent = start_agent(tmp_path, home, log.job, "--endpoint", collector.url, "--watch", "--interval", "0.05")
        wait_until(lambda b=before: collector.event_counts()["accepted"] > b, "lines to arrive")  # type: ignore[misc]
        time.sleep(draw.random() * 0.1)
        log.append(400)
        time.sleep(draw.random() * 0.1)
        agent.kill()
        agent.wait()
    assert run_sync(log, collector.url).returncode == 0
    assert_store_is_the_files(collector, log)
    assert_counts_add_up(collector, log)
    served = collector.event_counts()
    assert served["accepted"] == log.num_lines


def test_a_collector_killed_in_the_middle_of_batches_loses_nothing(log: GrowingLog, tmp_path: Path) -> None:
    draw = random.Random(11)
    collector = Collector(tmp_path).start()
    agent = start_agent(
        tmp_path, log.events.parents[2], log.job, "--endpoint", collector.url, "--watch", "--interval", "0.05"
    )
    try:
        for _ in range(6):
            log.append(6000)  # several batches
            wait_until(lambda: collector.event_counts()["accepted"] > 0, "the first batch")
            time.sleep(draw.random() * 0.3)
            collector.kill()
            log.append(200)
            collector.start()
        wait_until(lambda: state_of(log)["sent"] == log.num_lines, "everything to be acknowledged")
        agent.terminate()
        assert agent.wait(timeout=LONGEST_S) == 0
        assert_store_is_the_files(collector, log)
        assert_counts_add_up(collector, log)
    finally:
        agent.kill()
        agent.wait()
        collector.kill()


def test_events_wait_for_a_collector_that_is_down(log: GrowingLog, tmp_path: Path) -> None:
    collector = Collector(tmp_path).start()
    collector.kill()
    log.append(20)
    agent = start_agent(
        tmp_path, log.events.parents[2], log.job, "--endpoint", collector.url, "--watch", "--interval", "0.05"
    )
    try:
        wait_until(lambda: "does not take events" in (tmp_path / "agent.err").read_text())
        assert agent.poll() is None
        collector.start()
        wait_until(lambda: "answers again" in (tmp_path / "agent.err").read_text())
        wait_until(lambda: state_of(log)["accepted"] == 60)
        assert_store_is_the_files(collector, log)
    finally:
        agent.kill()
        agent.wait()
        collector.kill()


def test_an_agent_ends_with_the_process_that_started_it(collector: Collector, log: GrowingLog, tmp_path: Path) -> None:
    agent = start_agent(
        tmp_path,
        log.events.parents[2],
        log.job,
        "--endpoint",
        collector.url,
        "--watch",
        "--until-eof",
        "--interval",
        "600",
    )
    wait_until((log.events.parent / "sync").is_dir)
    log.append(5)
    assert agent.stdin is not None
    agent.stdin.close()
    assert agent.wait(timeout=LONGEST_S) == 0
    assert_store_is_the_files(collector, log)


def test_a_sync_without_a_collector_says_that_everything_is_kept(log: GrowingLog, tmp_path: Path) -> None:
    log.append(1)
    collector = Collector(tmp_path).start()
    collector.kill()
    done = run_sync(log, collector.url, "--give-up-after", "0.2")
    assert done.returncode == 6
    assert "kept all of them in their files" in done.stderr


def test_a_token_is_needed_and_never_shown(log: GrowingLog, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("k7-secret-of-this-test\n")
    collector = Collector(tmp_path, "--token-file", str(token)).start()
    try:
        log.append(1)
        refused = run_sync(log, collector.url)
        assert refused.returncode == 5
        assert run_sync(log, collector.url, "--token-file", str(token)).returncode == 0
        shown = refused.stderr + "".join((tmp_path / f"collector.{kind}").read_text() for kind in ("out", "err"))
        assert "k7-secret" not in shown
    finally:
        collector.kill()


def test_a_body_over_the_limit_is_answered_while_it_is_still_sent(collector: Collector) -> None:
    connection = http.client.HTTPConnection(collector.url.removeprefix("http://"), timeout=LONGEST_S)
    connection.request("POST", "/v1/events", body=b"x" * (4 * MAX_SENT_BYTES))
    assert connection.getresponse().status == 413
    connection.close()
    connection = http.client.HTTPConnection(collector.url.removeprefix("http://"), timeout=LONGEST_S)
    connection.request("POST", "/v1/events", body=iter([b"x" * MAX_SENT_BYTES] * 3), encode_chunked=True)
    assert connection.getresponse().status == 413


def test_a_locked_store_is_503_until_it_is_free(collector: Collector) -> None:
    import sqlite3

    holder = sqlite3.connect(collector.store_path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    connection = http.client.HTTPConnection(collector.url.removeprefix("http://"), timeout=LONGEST_S)
    body = encode([Block(job="j", file="1/r0.jsonl", lines=(b"bad\n",))])
    connection.request("POST", "/v1/events", body=body)
    reply = connection.getresponse()
    reply.read()
    assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
    holder.execute("ROLLBACK")
    connection.request("POST", "/v1/events", body=body)
    assert json.loads(connection.getresponse().read())["rejected"][0]["code"] == "bad_checksum"


def test_a_launch_ships_its_own_log_and_ends_with_the_programs_code(collector: Collector, job: LaunchedJob) -> None:
    code = job.run("--", "sh", "-c", "exit 7", ETT_TELEMETRY_ENDPOINT=collector.url)
    assert code == 7
    stored = collector.stored("j")
    assert stored == {f"0/{path.name}": path.read_bytes() for path in (job.job_dir / "events" / "0").iterdir()}
    assert b'"ev":"job_ended"' in b"".join(stored.values())


def test_a_collector_that_is_away_changes_no_exit_code_unless_strict(collector: Collector, job: LaunchedJob) -> None:
    collector.kill()
    assert job.run("--", "true", ETT_TELEMETRY_ENDPOINT=collector.url, ETT_TELEMETRY_SHUTDOWN_FLUSH="100ms") == 0
    strict = job.start_ett(
        "launch", "--strict", "--", "true", ETT_TELEMETRY_ENDPOINT=collector.url, ETT_TELEMETRY_SHUTDOWN_FLUSH="100ms"
    )
    assert strict.wait(timeout=LONGEST_S) == 6


def test_required_telemetry_refuses_a_launch_without_its_collector(collector: Collector, job: LaunchedJob) -> None:
    environ = {"ETT_TELEMETRY_ENDPOINT": collector.url}
    assert job.run("--telemetry", "required", "--", "true", **environ) == 0
    collector.kill()
    refused = job.start_ett("launch", "--job", "k", "--telemetry", "required", "--", "true", **environ)
    assert refused.wait(timeout=LONGEST_S) == 120
    assert not (job.job_dir.parent / "k").exists()
    assert "does not take events" in job.err


def test_no_counter_of_the_fleet_falls_over_kills_of_the_collector(log: GrowingLog, tmp_path: Path) -> None:
    collector = Collector(tmp_path).start()
    seen: dict[str, float] = {}
    try:
        for _ in range(4):
            log.append(50)
            assert run_sync(log, collector.url).returncode == 0
            for _ in range(2):
                counters = {
                    name: value
                    for name, value in collector.metrics().items()
                    if "_total" in name and "ett_collector" not in name
                }
                assert all(counters[name] >= value for name, value in seen.items())
                seen = counters
                collector.kill()
                collector.start()
        assert any(name.startswith("ett_component_rank_seconds_total") for name in seen)
    finally:
        collector.kill()
