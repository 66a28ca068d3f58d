"""The signing key: given, or made once and for its owner alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ett.compile_cache.signing_key import FILE, VARIABLE, signing_key
from ett.errors import AccessDenied, ConfigError, NotFound


def test_a_key_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    home = {"ETT_HOME": str(tmp_path)}
    assert len(signing_key("", home)) == 64
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_processes_that_make_one_together_get_the_same(tmp_path: Path) -> None:
    ready, keys = threading.Barrier(8), list[bytes]()

    def ask() -> None:
        ready.wait()
        keys.append(signing_key("", {"ETT_HOME": str(tmp_path)}))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(keys), len(set(keys))) == (8, 1)


def test_the_variable_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key of a file\n")
    (tmp_path / "key").chmod(0o600)
    assert signing_key(str(tmp_path / "key"), {}) == b"the key of a file"
    assert signing_key(str(tmp_path / "key"), {VARIABLE: "the key of a variable"}) == b"the key of a variable"


def test_a_key_is_the_same_from_a_variable_as_from_a_file(tmp_path: Path) -> None:
    """A secret of an orchestrator may end in a newline."""
    assert signing_key("", {VARIABLE: "the key of all hosts\n"}) == b"the key of all hosts"


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("the key of a file\n")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(AccessDenied, match="mode 640"):
        signing_key(str(tmp_path / "key"), {})


def test_a_short_key_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="has 6 bytes") as refused:
        signing_key("", {VARIABLE: "secret"})
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing"):
        signing_key(str(tmp_path / "nothing"), {})
