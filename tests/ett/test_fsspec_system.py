"""What fsspec's file systems say, each in its own words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ett.errors import AccessDenied, ConfigError, Unreachable
from ett.fsspec_system import open_system, store_failure, written_unix_s

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("facts", [{"LastModified": WHEN}, {"mtime": WHEN.timestamp()}, {"name": "a", "created": WHEN}])
def test_when_a_file_was_written_has_several_names(facts: dict[str, object]) -> None:
    assert written_unix_s(facts) == WHEN.timestamp()


def test_a_store_may_not_say_when_a_file_was_written() -> None:
    assert written_unix_s({"name": "a", "updated": None}) is None


def test_a_store_that_replaces_what_is_taken_is_refused_by_its_settings_name() -> None:
    with pytest.raises(ConfigError, match=r"set compile\.uri") as refused:
        open_system("ftp://host/folder", "compile.uri")
    assert refused.value.code == "F007"


@pytest.mark.parametrize("err, kind", [(PermissionError("403"), AccessDenied), (TimeoutError("60 s"), Unreachable)])
def test_a_failed_request_is_a_typed_error_of_its_place(err: OSError, kind: type[Exception]) -> None:
    failure = store_failure(err, "s3://bucket/a")
    assert isinstance(failure, kind)
    assert "s3://bucket/a" in failure.fact
