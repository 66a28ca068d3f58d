"""Reading event log files: what is whole is kept, what is not is counted, a newer schema is refused."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from ett.errors import CorruptState, NotFound
from ett.event_line import encode_line
from ett.event_reader import EventLog, merge, parse_file, read_folder
from ett.event_schema import Record, build_record


def beat(seq: int, **fields: Any) -> dict[str, Any]:
    common = {"v": 1, "job": "j", "att": 1, "gen": 0, "src": "r0", "rank": 0, "host": "h", "boot": "b", "pid": 7}
    return common | {"seq": seq, "wall_ns": 10**18 + seq, "mono_ns": 100 + seq, "ev": "heartbeat"} | fields


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(encode_line(record) for record in records)


def read(data: bytes, name: str = "1/r0-h-7-b.jsonl") -> EventLog:
    return merge([parse_file(name, data)])


def test_a_record_has_its_line_s_fields() -> None:
    (record,) = read(lines(beat(0, step=5))).records
    assert (record.ev, record.att, record.src, record.rank, record.seq, record.mono_ns) == (
        "heartbeat",
        1,
        "r0",
        0,
        0,
        100,
    )
    assert record.data["step"] == 5
    assert record.where == "heartbeat 1/r0-h-7-b.jsonl seq 0"


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(1, len(lines(beat(0)))))
def test_a_torn_last_line_is_dropped_and_flagged(cut: int) -> None:
    log = read(lines(beat(0), beat(1))[:-cut])
    assert [r.seq for r in log.records] == [0]
    assert log.problems.flags() == ["torn_tail"]


def test_a_last_line_with_a_wrong_checksum_is_a_torn_tail() -> None:
    log = read(lines(beat(0)) + lines(beat(1)).replace(b"r0", b"r1"))
    assert (log.problems.torn_tail, log.problems.corrupt_record) == (1, 0)


def test_a_wrong_checksum_before_the_end_is_a_corrupt_record() -> None:
    log = read(lines(beat(0), beat(1), beat(2)).replace(b'"seq":1', b'"seq":9'))
    assert [r.seq for r in log.records] == [0, 2]
    assert log.problems.flags() == ["corrupt_record", "lost_records"]


def test_a_gap_in_seq_counts_the_lost_records() -> None:
    log = read(lines(beat(2), beat(5)))
    assert log.problems.lost_records == 4  # 0, 1, 3, 4


def test_a_duplicate_is_ignored_wherever_it_lies() -> None:
    first = parse_file("1/a.jsonl", lines(beat(0), beat(1), beat(0)))
    copy = parse_file("elsewhere/a-copy.jsonl", lines(beat(1), beat(0)))
    log = merge([first, copy])
    assert [r.seq for r in log.records] == [0, 1]
    assert log.problems.duplicate_record == 3
    assert log.problems.flags() == []


def test_files_of_different_writers_may_have_the_same_numbers() -> None:
    log = merge([parse_file("1/a.jsonl", lines(beat(0))), parse_file("1/b.jsonl", lines(beat(0, src="r1", rank=1)))])
    assert len(log.records) == 2


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(CorruptState, match="schema version 2"):
        read(lines(beat(0, v=2)))


def test_an_unknown_kind_or_field_is_kept_aside() -> None:
    log = read(lines(beat(0, ev="comet", tail=[1, {"a": None}])))
    assert [r.ev for r in log.records] == ["comet"]
    assert log.problems.flags() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"ev": "step", "b_mono": 1, "e_mono": 2},
        {"ev": "step", "b_mono": 1, "e_mono": "2", "c0": 0, "c1": 1},
        {"ev": "step", "b_mono": 1, "e_mono": 2, "samples": 3},
        {"ev": "ckpt_commit", "id": "a"},
        {"ev": "span_begin", "name": "init"},
        {"mono_ns": "100"},
        {"wall_ns": None},
        {"ev": 3},
    ],
)
def test_a_record_without_a_field_that_a_rule_needs_is_skipped(fields: dict[str, Any]) -> None:
    log = read(lines(beat(0) | fields, beat(1)))
    assert [r.seq for r in log.records] == [1]
    assert "malformed_record" in log.problems.flags()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "true", '"5"'])
def test_a_cursor_that_is_no_finite_number_is_malformed(number: str) -> None:
    body = encode_line(beat(0, ev="ckpt_commit", cursor=77))[:-10].replace(b"77", number.encode())
    log = read(body + b"\t%08x\n" % zlib.crc32(body) + lines(beat(1)))
    assert [r.ev for r in log.records] == ["heartbeat"]


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff\xfe", b"null", b""])
def test_a_checked_line_that_is_no_record_is_skipped(body: bytes) -> None:
    log = read(body + b"\t%08x\n" % zlib.crc32(body) + lines(beat(0)))
    assert [r.seq for r in log.records] == [0]
    assert log.problems.malformed_record == 1


def test_what_the_writers_dropped_is_counted_once_a_process() -> None:
    log = read(lines(beat(0, dropped=2), beat(1, dropped=5)))
    assert log.problems.dropped_records == 5
    assert log.problems.flags() == ["dropped_records"]


def test_every_file_under_events_is_read_from_a_job_s_folder_too(tmp_path: Path) -> None:
    for name, record in (("0/sup-h-1-b.jsonl", beat(0, src="sup")), ("3/r0-h-7-b.jsonl", beat(0))):
        path = tmp_path / "events" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(lines(record))
    (tmp_path / "events" / "notes.txt").write_text("not a log")
    assert len(read_folder(tmp_path).records) == len(read_folder(tmp_path / "events").records) == 2


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no event log"):
        read_folder(tmp_path / "nowhere")


def test_a_rank_is_known_from_its_source() -> None:
    record = build_record({k: v for k, v in beat(0, src="r12").items() if k != "rank"}, "f")
    assert isinstance(record, Record)
    assert record.rank == 12


def test_a_later_file_of_a_process_carries_its_count_of_drops_on() -> None:
    files = [lines(beat(0, dropped=2)), lines(beat(0, dropped=5, mono_ns=900))]
    log = merge(parse_file(f"1/r0-h-7-b.{number}.jsonl", data) for number, data in enumerate(files))
    assert log.problems.dropped_records == 5
