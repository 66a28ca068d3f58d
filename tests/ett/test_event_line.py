"""The fast encoder of a writer gives the very bytes of the canonical one, for any record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.event_line import MAX_FORMATS, MAX_LINE_BYTES, NATIVE, LineEncoder, encode_line

COMMON = {"v": 1, "gen": 0, "src": "r0", "host": 'h%s"ö', "boot": "b" * 32, "pid": 7, "job": "j", "att": 1, "rank": 0}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(max_size=12) | st.sampled_from(["step", "rank", "ev", "seq", "wall_ns", "mono_ns", "%s", "%(a)s"])
RECORDS = st.tuples(st.sampled_from(["step", "%d", "é"]), st.dictionaries(NAMES, VALUES, max_size=6))


def canonical(ev: str, fields: dict[str, Any], seq: int, wall_ns: int, mono_ns: int) -> bytes:
    return encode_line(fields | COMMON | {"ev": ev, "seq": seq, "wall_ns": wall_ns, "mono_ns": mono_ns})


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    records=st.lists(RECORDS, max_size=6),
    seq=st.integers(0, 10**9),
    wall_ns=st.integers(0, 2**63),
)
def test_the_fast_encoder_gives_the_canonical_bytes(
    records: list[tuple[str, dict[str, Any]]], seq: int, wall_ns: int
) -> None:
    encoder = LineEncoder(COMMON)
    for ev, fields in records * 2:  # the second time, each kind's format is known
        expected = canonical(ev, fields, seq, wall_ns, 5)
        assert encoder.encode(ev, dict(fields), seq=seq, wall_ns=wall_ns, mono_ns=5) == expected


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9) | st.booleans()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    ev=st.sampled_from(["step", "%d", "é"]),
    fields=st.dictionaries(NAMES, INTEGERS, max_size=6),
    host=st.text(max_size=30),
    seq=st.integers(0, 10**9),
    wall_ns=st.integers(0, 2**63 - 1),
)
def test_the_native_form_of_whole_numbers_gives_the_canonical_bytes(
    ev: str, fields: dict[str, Any], host: str, seq: int, wall_ns: int
) -> None:
    common = COMMON | {"host": host}
    form = LineEncoder(common).number_format(ev, fields)
    if form is None:  # a field that another one would win over
        assert fields.keys() & {*common, "ev", "seq", "wall_ns", "mono_ns"} or NATIVE is None
        return
    expected = encode_line(fields | common | {"ev": ev, "seq": seq, "wall_ns": wall_ns, "mono_ns": 5})
    assert form.line(fields, seq, wall_ns, 5) == expected


@pytest.mark.skipif(NATIVE is None, reason="the extension is not built")
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1.0, "1", None, [1]])
def test_what_is_no_number_of_64_bits_is_left_to_python(value: object) -> None:
    form = LineEncoder(COMMON).number_format("step", {"step": 1})
    assert form.line({"step": value}, 1, 2, 3) == b""
    assert form.line({}, 1, 2, 3) == b""


@pytest.mark.skipif(NATIVE is None, reason="the extension is not built")
def test_a_record_that_may_be_too_long_is_left_to_python() -> None:
    form = LineEncoder(COMMON | {"note": "x" * 3900}).number_format("step", {"step": 1})
    assert form.line({"step": 1}, 1, 2, 3) == b""


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.text(min_size=3900, max_size=4200))
def test_a_long_record_is_cut_as_the_canonical_encoder_cuts_it(text: str) -> None:
    line = LineEncoder(COMMON).encode("note", {"text": text}, seq=1, wall_ns=2, mono_ns=3)
    assert line == canonical("note", {"text": text}, 1, 2, 3)
    assert len(line) <= MAX_LINE_BYTES


def test_kinds_without_end_keep_no_more_formats_than_the_limit() -> None:
    encoder = LineEncoder(COMMON)
    for number in range(MAX_FORMATS + 50):
        fields = {f"name{number}": number}
        line = encoder.encode("note", dict(fields), seq=1, wall_ns=2, mono_ns=3)
        assert line == canonical("note", fields, 1, 2, 3)
    assert len(encoder._formats) == MAX_FORMATS
