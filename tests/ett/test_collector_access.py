"""Nobody reaches the collector by accident: loopback or a token, and only under its own names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett.collector.access import access_policy, host_of, read_token
from ett.errors import ConfigError, NotFound, UsageError

TOKEN = "4f1c0d6e-ett-test-token"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "ett.example"])
def test_a_server_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError):
        access_policy(host, None, ())
    assert access_policy(host, TOKEN, ()).accepts_token(f"Bearer {TOKEN}")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_a_loopback_server_needs_none(host: str) -> None:
    assert access_policy(host, None, ()).accepts_token("")


@pytest.mark.parametrize("header", ["", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", f"Bearer {TOKEN[:-1]}"])
def test_only_the_token_itself_opens(header: str) -> None:
    assert not access_policy("127.0.0.1", TOKEN, ()).accepts_token(header)


@pytest.mark.parametrize(
    ("header", "is_own"),
    [
        ("127.0.0.1:9480", True),
        ("LOCALHOST:80", True),
        ("[::1]:9480", True),
        ("collector.example", True),
        ("evil.example:9480", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_only_its_own_names_are_accepted_in_host(header: str, is_own: bool) -> None:
    assert access_policy("127.0.0.1", None, ("collector.example",)).accepts_host(header) is is_own


def test_the_port_is_no_part_of_the_name() -> None:
    assert [host_of(h) for h in ("a:1", "[::1]:1", "::1", "a")] == ["a", "::1", "::1", "a"]


def test_a_token_comes_from_the_flag_then_the_file_variable_then_the_variable(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("token-number-one-1111\n")
    two.write_text("token-number-two-2222\n")
    environ = {"ETT_TOKEN_FILE": str(two), "ETT_TOKEN": "token-number-three-3"}
    assert read_token(one, environ) == "token-number-one-1111"
    assert read_token(None, environ) == "token-number-two-2222"
    assert read_token(None, {"ETT_TOKEN": "token-number-three-3"}) == "token-number-three-3"
    assert read_token(None, {}) is None


@pytest.mark.parametrize("text", ["", "short", "two words that are long enough", "token-ü-1234567890"])
def test_a_file_without_a_usable_token_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_token(path, {})
    assert not text or text not in caught.value.render()


def test_a_missing_token_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="token file"):
        read_token(tmp_path / "none", {})
