"""The native parser says what the Python reference says, for any bytes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett import event_columns
from ett.errors import CorruptState
from ett.event_line import encode_line
from ett.event_reader import ParsedFile, parse_file, parse_file_in_python

pytestmark = pytest.mark.skipif(event_columns.NATIVE is None, reason="the extension is not built")

INTEGERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**18, 10**19 - 1, 10**19, 10**20 - 1]),
)
ODD = st.one_of(
    st.none(), st.booleans(), st.floats(allow_nan=False), st.text(max_size=4), st.just([1]), st.just({"a": 1})
)
NAMES = [
    "att", "b_mono", "boot", "c0", "c1", "committed", "e_mono", "ev", "gen", "host", "job", "mono_ns", "pid", "rank",
    "samples", "seq", "src", "step", "wall_ns", "world", "note", "zeta", "id", "name", "parent", "blocking", "dropped",
    "samples_inferred",
]  # fmt: skip


KINDS = ["step", "step", "step_begin", "heartbeat", "span_begin", "span_end", "fault"]


def step(seq: int, **fields: Any) -> dict[str, Any]:
    common = {"v": 1, "job": "j", "att": 1, "gen": 0, "src": "r0", "rank": 0, "host": "h", "boot": "b", "pid": 7}
    clock = {"seq": seq, "wall_ns": 19 * 10**17 + seq, "mono_ns": 10**15 + seq, "ev": "step"}
    ends = {"b_mono": 10**15, "e_mono": 10**15 + seq, "step": seq, "c0": seq, "c1": seq + 1, "world": 1}
    return common | clock | ends | fields


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record of a step or another kind, perhaps with fields missing, of another type, or unknown."""
    record = step(draw(st.integers(0, 9)), ev=draw(st.sampled_from(KINDS)))
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        record[name] = draw(st.one_of(INTEGERS, ODD))
    for name in draw(st.lists(st.sampled_from([n for n in NAMES if n in record]), max_size=2)):
        record.pop(name, None)
    return record


def bodies() -> st.SearchStrategy[bytes]:
    canonical = records().map(lambda r: json.dumps(r, sort_keys=True, separators=(",", ":")).encode())
    other = records().map(lambda r: json.dumps(r).encode())
    return st.one_of(canonical, canonical, other, st.binary(max_size=30).filter(lambda b: b"\n" not in b))


def parts(parsed: ParsedFile) -> tuple[object, ...]:
    return (parsed.records, parsed.is_torn, parsed.num_corrupt, parsed.num_malformed)


def outcome(parse: Any, data: bytes) -> object:
    try:
        return parts(parse("1/r0.jsonl", data))
    except CorruptState as err:
        return str(err)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(lines=st.lists(bodies(), max_size=6), cut=st.integers(0, 40), flip=st.one_of(st.none(), st.integers(0, 2000)))
def test_any_bytes_give_the_same_records(lines: list[bytes], cut: int, flip: int | None) -> None:
    data = bytearray(b"".join(body + b"\t%08x\n" % zlib.crc32(body) for body in lines))
    if flip is not None and data:
        data[flip % len(data)] ^= 1 << (flip % 8)
    whole = bytes(data[: max(0, len(data) - cut)])
    assert outcome(parse_file, whole) == outcome(parse_file_in_python, whole)


@given(data=st.binary(max_size=200))
def test_noise_gives_the_same_answer(data: bytes) -> None:
    assert outcome(parse_file, data) == outcome(parse_file_in_python, data)


def test_values_are_of_the_same_types() -> None:
    data = encode_line(step(0, committed=True)) + encode_line(step(1, committed=False, samples=4))
    for native, python in zip(parse_file("f", data).records, parse_file_in_python("f", data).records, strict=True):
        assert {k: type(v) for k, v in native.data.items()} == {k: type(v) for k, v in python.data.items()}


def test_plain_steps_take_the_native_path() -> None:
    lines = event_columns.parse_lines(b"".join(encode_line(step(n)) for n in range(3)))
    assert list(lines.kinds) == [event_columns.PLAIN] * 3


def test_a_step_of_another_version_is_refused() -> None:
    with pytest.raises(CorruptState, match="schema version 2"):
        parse_file("f", encode_line(step(0, v=2)))


@given(data=st.binary(max_size=300), repeat=st.integers(1, 40))
def test_both_ways_to_a_checksum_give_that_of_zlib(data: bytes, repeat: int) -> None:
    whole = data * repeat
    assert event_columns.NATIVE.crc32(whole) == event_columns.NATIVE.crc32(whole, by_table=True) == zlib.crc32(whole)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_lines_that_differ_in_few_bytes_give_the_same_records(data: st.DataObject) -> None:
    """Lines like the one before take a short way through the parser: a byte changed anywhere must not lead astray."""
    lines = []
    for seq in range(data.draw(st.integers(2, 5))):
        fields = data.draw(st.sampled_from([{}, {"committed": True}, {"ev": "heartbeat", "dropped": 3}]))
        body = bytearray(json.dumps(step(seq, **fields), sort_keys=True, separators=(",", ":")).encode())
        if data.draw(st.booleans()):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from(b'0179-"{},:.eabtz '))
        lines.append(bytes(body) + b"\t%08x\n" % zlib.crc32(body))
    whole = b"".join(lines)
    assert outcome(parse_file, whole) == outcome(parse_file_in_python, whole)
