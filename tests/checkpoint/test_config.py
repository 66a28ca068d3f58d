"""A wrong [checkpoint] section says what is wrong when it is built; every field has an effect."""

from __future__ import annotations

import pytest

from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.interval import parse_interval
from ett.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "steps", "seconds"),
    [
        ("auto", "auto", 0, 0.0),
        ("500 steps", "steps", 500, 0.0),
        ("1 step", "steps", 1, 0.0),
        ("90s", "time", 0, 90.0),
        ("6m", "time", 0, 360.0),
        ("1.5 h", "time", 0, 5400.0),
    ],
)
def test_intervals_are_read(text: str, kind: str, steps: int, seconds: float) -> None:
    interval = parse_interval(text)
    assert (interval.kind, interval.steps, interval.seconds) == (kind, steps, seconds)


@pytest.mark.parametrize("text", ["0", "0 steps", "-5 steps", "0s", "-1m", "", "often", "500", "5 weeks", "1e3s"])
def test_other_intervals_are_refused_with_field_value_and_expectation(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CheckpointConfig(uri="x", interval=text)
    assert "checkpoint.interval" in raised.value.fact
    assert repr(text) in raised.value.fact
    assert raised.value.expected
    assert raised.value.code.startswith("F")


@pytest.mark.parametrize("uri", ["s4://host/x", "s3+unknown://b", "file://otherhost/x"])
def test_a_uri_without_a_store_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.uri"):
        CheckpointConfig(uri=uri)


@pytest.mark.parametrize("field", [{"keep_last": 0}, {"stall_budget_s": 0.0}, {"stall_budget_s": float("nan")}])
def test_impossible_numbers_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        CheckpointConfig(uri="x", **field)  # type: ignore[arg-type]
