from __future__ import annotations

import random
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec

import numpy as np
import pytest
from criteo_cases import line_of, random_line
from hypothesis import given
from hypothesis import strategies as st

from ett.trainer.data import criteo_lines
from ett.trainer.data.criteo_lines import MISSING_COUNT, MISSING_ID, dense_features, describe_fault, parse_lines

NATIVE = "ett.trainer.data._criteo"
needs_native = pytest.mark.skipif(find_spec(NATIVE) is None, reason="the extension is not built")


def assert_parsers_agree(block: bytes, num_lines: int) -> None:
    native: criteo_lines.Parsed = import_module(NATIVE).parse(block, num_lines)
    for column, reference in zip(native, criteo_lines.parse_reference(block, num_lines), strict=True):
        got, expected = np.asarray(column), np.asarray(reference)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@needs_native
@pytest.mark.parametrize("seed", range(8))
def test_native_parser_agrees_with_the_reference_on_good_and_malformed_lines(seed: int) -> None:
    draw = random.Random(seed)
    lines = [random_line(draw) for _ in range(300)]
    assert_parsers_agree(b"\n".join(lines), len(lines))
    states = parse_lines(b"\n".join(lines), len(lines)).states
    assert 0.2 < np.mean(states == 0) < 0.95  # both kinds were compared


CHANGES = st.tuples(
    st.integers(0, 10**4), st.sampled_from(["set", "insert", "delete"]), st.sampled_from(b"\t\n\r\0-+09afAF/:@G`g\xff")
)


@pytest.mark.slow
@needs_native
@given(
    missing=st.sets(st.integers(1, 39)),
    end=st.sampled_from([b"", b"\n", b"\r\n", b"\r"]),
    changes=st.lists(CHANGES, max_size=4),
)
def test_native_parser_agrees_with_the_reference_next_to_well_formed_lines(
    missing: set[int], end: bytes, changes: list[tuple[int, str, int]]
) -> None:
    fields = [b"" if n in missing else field for n, field in enumerate(line_of(7).split(b"\t"))]
    block = bytearray(b"\t".join(fields) + b"\n" + line_of(8) + end)
    for place, change, byte in changes:
        at = place % len(block)
        block[at : at + (change != "insert")] = b"" if change == "delete" else bytes([byte])
    assert_parsers_agree(bytes(block), bytes(block).count(b"\n") + 1)


@needs_native
@pytest.mark.parametrize("field", [b"\t" * 100_000, b"0" * 1_000_000, b"g" * 1_000_000, b"-" * 1_000_000])
@pytest.mark.parametrize("place", [0, 1, 13, 14, 39])
def test_native_parser_agrees_with_the_reference_on_huge_fields(field: bytes, place: int) -> None:
    fields = line_of(7).split(b"\t")
    fields[place] = field
    assert_parsers_agree(b"\t".join(fields), 1)


@needs_native
@given(block=st.binary(max_size=400), num_lines=st.integers(0, 3))
def test_native_parser_agrees_with_the_reference_on_any_bytes(block: bytes, num_lines: int) -> None:
    if block.count(b"\n") + 1 >= num_lines:
        assert_parsers_agree(block, num_lines)
    else:
        with pytest.raises(ValueError, match="fewer lines"):
            import_module(NATIVE).parse(block, num_lines)


@pytest.mark.slow
@needs_native
@given(block=st.text("ab\n\r\t0", max_size=200).map(str.encode), wanted=st.lists(st.integers(-1, 12), max_size=20))
def test_native_lines_by_number_agree_with_the_reference(block: bytes, wanted: list[int]) -> None:
    native = import_module(NATIVE)
    feeds = native.line_feeds(block)
    assert feeds.dtype == np.int64
    np.testing.assert_array_equal(feeds, criteo_lines.line_feeds_reference(block))
    starts, numbers = criteo_lines.line_starts(block, block.count(b"\n") + 1), np.array(wanted, np.int64)
    if any(not 0 <= number < len(starts) for number in wanted):
        for parse in (native.parse_rows, criteo_lines.parse_rows_reference):
            with pytest.raises(ValueError, match="wanted line"):
                parse(block, starts, numbers)
        return
    expected = criteo_lines.parse_rows_reference(block, starts, numbers)
    for column, reference in zip(native.parse_rows(block, starts, numbers), expected, strict=True):
        np.testing.assert_array_equal(column, reference)


@pytest.mark.slow
@needs_native
@given(rows=st.lists(st.integers(0, 19), max_size=40))
def test_lines_by_number_are_those_of_the_whole_block(rows: list[int]) -> None:
    block = b"\n".join([line_of(row) if row % 7 else b"x" for row in range(20)])
    whole, index = parse_lines(block, 20), np.array(rows, np.int64)
    some = criteo_lines.parse_rows(block, criteo_lines.line_starts(block, 20), index)
    for name in ("labels", "counts", "ids", "states"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[index])


def test_a_machine_without_the_extension_uses_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, NATIVE, None)  # importing it raises ImportError
    spec = find_spec(criteo_lines.__name__)
    assert spec is not None and spec.loader is not None
    without = module_from_spec(spec)
    spec.loader.exec_module(without)
    assert (without._parse, without._parse_rows) == (without.parse_reference, without.parse_rows_reference)


def test_columns_hold_what_the_fields_say() -> None:
    counts = [b"-2", b"", b"0", *[b"7"] * 10]
    categories = [b"", b"0", b"FFFFFFFF", b"05db9164", *[b"1"] * 22]
    lines = parse_lines(line_of(0, label=b"1", counts=counts, categories=categories), 1)
    assert lines.states.tolist() == [0]
    assert lines.labels.tolist() == [1.0]
    assert lines.counts[0, :4].tolist() == [-2, MISSING_COUNT, 0, 7]
    assert lines.ids[0, :5].tolist() == [MISSING_ID, 0, 0xFFFFFFFF, 0x05DB9164, 1]


def test_a_missing_category_has_an_id_of_its_own() -> None:
    assert MISSING_ID > 0xFFFFFFFF


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"])
def test_every_line_ending_gives_the_same_columns(end: bytes) -> None:
    plain, ended = parse_lines(line_of(3), 1), parse_lines(line_of(3) + end, 1)
    assert ended.states.tolist() == [0]
    np.testing.assert_array_equal(plain.ids, ended.ids)


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (b"\t".join([b"0"] * 38), "38 fields"),
        (b"", "1 fields"),
        (line_of(1) + b"\t", "41 fields"),
        (line_of(1, label=b"2"), "field 1 is '2'"),
        (line_of(1, label=b""), "field 1 is ''"),
        (line_of(1, counts=[*[b"1"] * 4, b"1.5", *[b"1"] * 8]), "field 6 is '1.5'"),
        (line_of(1, counts=[*[b"1"] * 12, b"9" * 19]), "field 14 is '9999999999999999999'"),
        (line_of(1, categories=[b"xyz", *[b"1"] * 25]), "field 15 is 'xyz'"),
        (line_of(1, categories=[*[b"1"] * 25, b"123456789"]), "field 40 is '123456789'"),
        (line_of(1, categories=[*[b"1"] * 25, b"1\r"]) + b"\r", "field 40 is '1\\r'"),
        (line_of(1, categories=[b"\xff", *[b"1"] * 25]), "field 15 is '\\\\xff'"),
    ],
)
def test_a_malformed_line_is_described_by_field_with_its_value(line: bytes, fact: str) -> None:
    state = int(parse_lines(line, 1).states[0])
    assert state != 0
    assert describe_fault(state, line)[0] == fact


def test_dense_features_are_logarithms_that_keep_the_sign() -> None:
    features = dense_features(np.array([[0, 1, -1, MISSING_COUNT, 10**17]]))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, [[0, np.log(2), -np.log(2), 0, np.log1p(1e17)]], rtol=1e-6)
