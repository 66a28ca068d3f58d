from __future__ import annotations

import json
import os
import threading
import zlib
from pathlib import Path

import pytest
from file_size_limit import file_size_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.event_line import MAX_LINE_BYTES, encode_line
from ett.event_log import EventWriter
from ett.event_reader import parse_file
from ett.own_descriptor import OwnDescriptor

COMMON = {"v": 1, "job": "j", "src": "r0", "ev": "note", "seq": 0, "wall_ns": 2, "mono_ns": 1}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=50), inner, max_size=20),
    max_leaves=40,
)


def body_of(line: bytes) -> bytes:
    body, tab, crc = line.rpartition(b"\t")
    assert tab == b"\t"
    assert crc == b"%08x\n" % zlib.crc32(body)
    return body


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(max_size=100), JSON_VALUES, max_size=30))
def test_a_line_is_checked_canonical_json_of_at_most_4096_bytes(fields: dict[str, object]) -> None:
    line = encode_line(fields | COMMON)
    record = json.loads(body_of(line))
    assert len(line) <= MAX_LINE_BYTES
    assert line.count(b"\n") == 1
    assert {key: record[key] for key in COMMON} == COMMON
    assert body_of(line) == json.dumps(record, sort_keys=True, separators=(",", ":")).encode()


def test_long_text_is_cut_and_says_so() -> None:
    record = json.loads(body_of(encode_line(COMMON | {"text": "x" * 9000, "step": 7})))
    assert record["text"].endswith("[cut: 9000 chars]")
    assert record["step"] == 7


def test_values_without_a_json_form_become_text_or_null() -> None:
    record = json.loads(body_of(encode_line(COMMON | {"path": Path("/a"), "loss": float("nan"), "set": {3}})))
    assert (record["path"], record["loss"], record["set"]) == ("/a", None, [3])


def test_a_record_cannot_take_the_writers_common_fields(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r3", {"job": "j", "att": 2, "rank": 3})
    assert writer.emit("note", job="other", att=9, seq=77, src="sup", text="kept")
    (record,) = parse_file("f", only_file(tmp_path).read_bytes()).records
    assert (record.job, record.att, record.seq, record.src, record.rank) == ("j", 2, 0, "r3", 3)
    assert record.data["text"] == "kept"


def test_a_file_is_named_for_its_one_writer(tmp_path: Path) -> None:
    EventWriter(tmp_path, "sup", {}).emit("note")
    (record,) = parse_file("f", only_file(tmp_path).read_bytes()).records
    assert only_file(tmp_path).name == f"sup-{record.host}-{os.getpid()}-{record.boot[:8]}.jsonl"


def test_two_writers_of_one_process_never_share_a_file(tmp_path: Path) -> None:
    for _ in range(3):
        EventWriter(tmp_path, "r0", {}).emit("note")
    assert [len(parse_file("f", path.read_bytes()).records) for path in tmp_path.iterdir()] == [1, 1, 1]


def test_threads_leave_no_gap_and_no_torn_line(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"}, wait_s=10)
    threads = [threading.Thread(target=lambda: [writer.emit("note") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parsed = parse_file("f", only_file(tmp_path).read_bytes())
    assert [record.seq for record in parsed.records] == list(range(800))
    assert not parsed.is_torn


def test_a_full_file_is_followed_by_another_that_counts_from_zero(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"}, rotate_bytes=1000)
    for _ in range(20):
        writer.emit("note", text="x" * 100)
    files = [parse_file(path.name, path.read_bytes()).records for path in tmp_path.iterdir()]
    assert len(files) > 3
    assert sum(map(len, files)) == 20
    assert all([record.seq for record in records] == list(range(len(records))) for records in files)


def test_a_device_that_is_full_costs_records_and_nothing_else(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"})
    assert writer.emit("note")
    assert writer._file is not None
    os.dup2(os.open("/dev/full", os.O_WRONLY), writer._file.fd)
    writer._file = OwnDescriptor(writer._file.fd)
    assert [writer.emit("ckpt_commit", cursor=1) for _ in range(3)] == [False] * 3
    assert writer.dropped == 3


def test_a_folder_that_cannot_be_made_costs_records_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("a file")
    writer = EventWriter(tmp_path / "events" / "1", "r0", {"job": "j"})
    assert not writer.emit("note")
    assert not writer.emit("note")
    assert writer.dropped == 2


def test_a_line_that_the_disk_took_half_of_spoils_no_other(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"})
    with file_size_limit(1500):
        written = [writer.emit("note", text="x" * 300) for _ in range(6)]
    torn = parse_file("f", only_file(tmp_path).read_bytes())
    assert written.count(True) == len(torn.records) == 6 - writer.dropped
    assert torn.is_torn
    assert writer.emit("note", text="after")
    healed = parse_file("f", only_file(tmp_path).read_bytes())
    assert healed.records[-1].data["text"] == "after"
    assert len(healed.records) == len(torn.records) + 1


def test_another_threads_stuck_write_holds_nobody_up(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"}, wait_s=0.01)
    results: list[bool] = []
    with writer._lock:
        thread = threading.Thread(target=lambda: results.append(writer.emit("note")))
        thread.start()
        thread.join(timeout=300)
    assert results == [False]
    assert writer.dropped == 1


def test_a_closed_writer_drops_and_counts(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, "r0", {"job": "j"})
    writer.close()
    assert not writer.emit("note")
    assert writer.dropped == 1


def test_a_disk_that_never_answers_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda fd: answer.wait(timeout=300))
    writer = EventWriter(tmp_path, "r0", {"job": "j"}, wait_s=0.01)
    assert writer.emit("ckpt_commit", cursor=1)
    assert writer.emit("train_end")
    assert not answer.is_set()
    answer.set()
