"""What of a uri is shown."""

from __future__ import annotations

import pytest

from ett.store_uri import shown_uri


@pytest.mark.parametrize(
    "uri, shown",
    [
        ("ftp://user:p@ss@host/x", "ftp://host/x"),
        ("https://token@host/x@y", "https://host/x@y"),
        ("abfs://box@account.dfs.core.windows.net/x@y", "abfs://box@account.dfs.core.windows.net/x@y"),
        ("AZ://box@account", "AZ://box@account"),
        ("abfs://user:secret@account/x", "abfs://account/x"),
        ("abfs://user@b:secret@account/x", "abfs://account/x"),
        ("s3://bucket/x@y", "s3://bucket/x@y"),
        ("folder@host/x", "folder@host/x"),
    ],
)
def test_a_uri_is_shown_without_what_may_be_a_password(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown
