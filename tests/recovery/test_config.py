from __future__ import annotations

import pytest

from ett.errors import ConfigError
from ett.recovery.config import RecoveryConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_restarts", -1),
        ("grace_s", -1.0),
        ("backoff_s", -1.0),
        ("backoff_s", 99.0),
        ("max_attempts_without_commit", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"recovery.{field} is {value}"):
        RecoveryConfig(**{field: value})  # type: ignore[arg-type]
