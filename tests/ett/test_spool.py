"""The event files are the queue: nothing is skipped, nothing is sent as half a line, and a crash only repeats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ett.collector.spool import BATCH_BYTES, LONGEST_LINE_BYTES, Batch, Counts, Spool
from ett.errors import Conflict

URL = "http://127.0.0.1:9480"
SUP, RANK = "0/sup-h-1-b.jsonl", "1/r0-h-2-b.jsonl"


@pytest.fixture
def events(tmp_path: Path) -> Path:
    for name in (SUP, RANK):
        (tmp_path / "events" / name).parent.mkdir(parents=True)
    return tmp_path / "events"


def spool_of(events: Path) -> Spool:
    return Spool("j", events, events.parent / "sync", URL)


def write(events: Path, name: str, data: bytes) -> None:
    with (events / name).open("ab") as file:
        file.write(data)


def taken(batch: Batch, *rejected: dict[str, Any]) -> dict[str, Any]:
    return {"accepted": batch.num_lines - len(rejected), "duplicate": 0, "rejected": list(rejected)}


def drain(spool: Spool) -> list[tuple[str, bytes]]:
    spool.look()
    sent = []
    while (batch := spool.next_batch()) is not None:
        sent += [(block.file, line) for block in batch.blocks() for line in block.lines]
        spool.acknowledge(batch, taken(batch))
    return sent


def test_whole_lines_are_sent_once(events: Path) -> None:
    spool = spool_of(events)
    write(events, RANK, b"a\nb\nhalf")
    assert drain(spool) == [(RANK, b"a\n"), (RANK, b"b\n")]
    write(events, RANK, b" done\n")
    assert drain(spool) == [(RANK, b"half done\n")]
    assert spool.counts == Counts(sent=3, accepted=3)


def test_what_was_not_acknowledged_is_sent_again_by_the_next_agent(events: Path) -> None:
    write(events, RANK, b"a\nb\n")
    first = spool_of(events)
    first.look()
    assert first.next_batch() is not None
    first.close()
    assert drain(spool_of(events)) == [(RANK, b"a\n"), (RANK, b"b\n")]


def test_what_was_acknowledged_stays_so_over_a_restart(events: Path) -> None:
    write(events, RANK, b"a\n")
    first = spool_of(events)
    drain(first)
    first.close()
    write(events, RANK, b"b\n")
    second = spool_of(events)
    assert drain(second) == [(RANK, b"b\n")]
    assert second.counts.sent == 2


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"schema": "another"}'])
def test_a_lost_state_file_only_repeats(events: Path, state: bytes) -> None:
    write(events, RANK, b"a\n")
    first = spool_of(events)
    drain(first)
    first.close()
    (state_file,) = (events.parent / "sync").glob("*.json")
    state_file.write_bytes(state)
    assert drain(spool_of(events)) == [(RANK, b"a\n")]


def test_an_attempts_end_never_overtakes_what_its_ranks_wrote_before_it(events: Path) -> None:
    spool = spool_of(events)
    write(events, RANK, b"step\n")
    write(events, SUP, b"attempt_ended\n")
    assert [name for name, _ in drain(spool)] == [RANK, SUP]
    write(events, SUP, b"more\n")
    spool.look()
    write(events, SUP, b"written after the look\n")
    batch = spool.next_batch()
    assert batch is not None
    assert [line for block in batch.blocks() for line in block.lines] == [b"more\n"]


def test_a_batch_is_at_most_a_mebibyte_of_whole_lines(events: Path) -> None:
    spool = spool_of(events)
    line = b"x" * 999 + b"\n"
    write(events, RANK, line * 3000)
    spool.look()
    sizes = []
    while (batch := spool.next_batch()) is not None:
        sizes.append(sum(stretch.end - stretch.begin for stretch in batch.stretches))
        assert {len(each) for block in batch.blocks() for each in block.lines} == {1000}
        spool.acknowledge(batch, taken(batch))
    assert max(sizes) <= BATCH_BYTES
    assert sum(sizes) == 3_000_000


def test_bytes_that_never_become_a_line_are_passed_over_with_a_note(events: Path) -> None:
    spool = spool_of(events)
    write(events, RANK, b"z" * (2 * LONGEST_LINE_BYTES) + b"\nafter\n")
    sent = drain(spool)
    assert sent[-1] == (RANK, b"after\n")
    write(events, RANK, b"y" * (BATCH_BYTES + 5))
    assert drain(spool) == []
    assert spool.counts.unsendable == 1
    assert "without a line feed" in spool.rejected_file.read_text()


def test_a_rejected_line_is_written_down_and_passed_over(events: Path) -> None:
    spool = spool_of(events)
    write(events, RANK, b"good\nbad\n")
    spool.look()
    batch = spool.next_batch()
    assert batch is not None
    spool.acknowledge(batch, taken(batch, {"job": "j", "file": RANK, "line": 1, "code": "bad_checksum", "text": "…"}))
    noted = json.loads(spool.rejected_file.read_text())
    assert (noted["file"], noted["byte"], noted["line"], noted["code"]) == (RANK, 5, "bad", "bad_checksum")
    assert drain(spool) == []
    assert spool.counts == Counts(sent=2, accepted=1, rejected=1)


def test_one_agent_at_a_time_ships_a_job_to_an_endpoint(events: Path) -> None:
    first = spool_of(events)
    with pytest.raises(Conflict):
        spool_of(events)
    Spool("j", events, events.parent / "sync", "http://127.0.0.1:1").close()
    first.close()
    spool_of(events).close()


def test_a_file_that_became_shorter_is_another_file(events: Path) -> None:
    spool = spool_of(events)
    write(events, RANK, b"a\nb\nc\n")
    drain(spool)
    (events / RANK).write_bytes(b"new\n")
    assert drain(spool) == [(RANK, b"new\n")]


def test_files_that_are_no_event_files_stay_where_they_are(events: Path) -> None:
    (events / "notes.jsonl").write_bytes(b"a\n")
    (events / "1" / "deep").mkdir()
    (events / "1" / "deep" / "x.jsonl").write_bytes(b"a\n")
    (events / "1" / "readme.txt").write_bytes(b"a\n")
    assert drain(spool_of(events)) == []


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.sampled_from([SUP, RANK]), st.binary(min_size=1, max_size=30)),
            st.just(("ship", "", b"")),
            st.just(("ship and die", "", b"")),
            st.just(("restart", "", b"")),
        ),
        max_size=30,
    )
)
def test_after_any_history_every_whole_line_arrived_in_order(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, str, bytes]]
) -> None:
    events = tmp_path_factory.mktemp("spool") / "events"
    for name in (SUP, RANK):
        (events / name).parent.mkdir(parents=True)
    arrived: dict[str, list[bytes]] = {SUP: [], RANK: []}
    seen: dict[str, int] = {SUP: 0, RANK: 0}
    spool = spool_of(events)
    for what, name, data in [*history, ("write", RANK, b"\n"), ("ship", "", b"")]:
        if what == "write":
            write(events, name, data)
        elif what == "restart":
            spool.close()
            spool = spool_of(events)
        else:
            spool.look()
            batch = spool.next_batch()
            if batch is not None:
                for stretch in batch.stretches:
                    assert stretch.begin <= seen[stretch.file], "a gap"
                    fresh = (events / stretch.file).read_bytes()[seen[stretch.file] : stretch.end]
                    arrived[stretch.file] += fresh.splitlines(keepends=True) if b"\r" not in fresh else [fresh]
                    seen[stretch.file] = max(seen[stretch.file], stretch.end)
                if what == "ship":
                    spool.acknowledge(batch, taken(batch))
    spool.close()
    for name in (SUP, RANK):
        path = events / name
        whole = path.read_bytes() if path.exists() else b""
        assert whole[: seen[name]] == whole[: whole.rfind(b"\n") + 1]
