"""What is looked at before a restart, and what is said of it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from ett.errors import ConfigError, EttError, Unreachable
from ett.host_health import AttemptNeeds, Finding, unwell
from ett.recovery import host_checks
from ett.recovery.config import RecoveryConfig
from ett.recovery.health_limits import HealthLimits
from ett.recovery.host_checks import check_folder, check_host, check_memory, check_store, checks_of, look

S3 = {"checkpoint": {"uri": "s3://bucket/job", "buffer_dir": ""}, "dense": {"device": "cuda"}}
NO_LIMITS = HealthLimits(min_disk_bytes=0, min_memory_bytes=0)


@pytest.mark.parametrize(
    ("sections", "is_thorough", "names"),
    [
        ({}, True, {"job_folder", "memory", "loopback"}),
        ({"checkpoint": {"uri": "/c"}}, True, {"job_folder", "checkpoints", "memory", "loopback"}),
        (S3, False, {"job_folder", "buffer", "memory", "loopback"}),
        (S3, True, {"job_folder", "buffer", "memory", "loopback", "store", "device"}),
    ],
)
def test_what_a_job_needs_is_looked_at(
    sections: dict[str, Any], is_thorough: bool, names: set[str], tmp_path: Path
) -> None:
    assert set(checks_of(tmp_path, AttemptNeeds(sections=sections, is_thorough=is_thorough), NO_LIMITS)) == names


def test_a_host_that_is_well_has_nothing_said_of_it_and_nothing_left_on_it(tmp_path: Path) -> None:
    found = check_host(tmp_path, AttemptNeeds(is_thorough=True), RecoveryConfig(health=NO_LIMITS), lambda: None)
    assert [one.fact for one in found] == ["", "", ""]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_looked_at_where_that_is_off(tmp_path: Path) -> None:
    config = RecoveryConfig(health=HealthLimits(enabled=False, min_disk_bytes=1 << 62))
    assert check_host(tmp_path, AttemptNeeds(is_thorough=True), config, lambda: None) == ()


def test_what_does_not_answer_in_time_is_not_well() -> None:
    never = threading.Event()
    found = look({"store": lambda: str(never.wait()), "memory": lambda: None}, 0.05)
    never.set()
    assert [(one.check, one.fact) for one in unwell(found)] == [("store", "no answer within 0.05 s")]


class Told(Exception):
    """Somebody told the job to stop."""


def test_a_check_that_hangs_holds_one_thread_and_no_stop() -> None:
    starts, answers = [], threading.Event()

    def hang() -> None:
        starts.append(1)
        answers.wait()

    def stop() -> None:
        raise Told

    with pytest.raises(Told):
        look({"hanging": hang}, 600.0, stop)
    assert [one.fact for one in look({"hanging": hang}, 0.05)] == ["no answer within 0.05 s"]
    answers.set()
    # A write behind gigabytes of others is slow, and answers to the next look.
    assert [one.fact for one in look({"hanging": hang}, 600.0)] == [""]
    assert len(starts) == 1
    look({"hanging": hang}, 600.0)
    assert len(starts) == 2


def test_an_error_is_said_with_what_to_do() -> None:
    def fail() -> None:
        raise Unreachable("no space left", do="free some")

    (found,) = look({"buffer": fail}, 60.0)
    assert found == Finding(check="buffer", took_s=found.took_s, fact="no space left", do="free some")


def test_a_bug_of_a_check_is_no_illness_of_the_host() -> None:
    (found,) = look({"memory": lambda: print(1 / 0)}, 60.0)
    assert (found.fact, found.note) == ("", "could not be looked at (ZeroDivisionError: division by zero)")


def test_a_disk_without_room_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"bytes free, fewer than the") as raised:
        check_folder(tmp_path / "not" / "yet", "checkpoint.uri", min_bytes=1 << 62)
    assert str(tmp_path) in raised.value.fact
    assert "checkpoint.uri" in raised.value.do


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("left", ["", "c", "c/commits"])
def test_a_folder_whose_commits_are_gone_is_not_well(left: str, has_committed: bool, tmp_path: Path) -> None:
    (tmp_path / left).mkdir(parents=True, exist_ok=True)
    sections = {"checkpoint": {"uri": f"file://{tmp_path}/c"}}
    checks = checks_of(tmp_path, AttemptNeeds(sections=sections, has_committed=has_committed), NO_LIMITS)
    (found,) = look({"checkpoints": checks["checkpoints"]}, 60.0)
    assert bool(found.fact) == (has_committed and left != "c/commits")
    if found.fact:
        assert found.fact == f"{tmp_path}/c has no commits any more"
        assert "mount" in found.do


@pytest.mark.parametrize("uri", ["file:///{}/c", "s3://bucket/job"])
def test_little_room_is_noted_and_waited_for_only_by_the_records(uri: str, tmp_path: Path) -> None:
    sections = {"checkpoint": {"uri": uri.format(tmp_path), "buffer_dir": str(tmp_path)}}
    checks = checks_of(tmp_path, AttemptNeeds(sections=sections), HealthLimits(min_disk_bytes=1 << 62))
    folders = {name: check for name, check in checks.items() if name not in ("memory", "loopback")}
    assert len(folders) == 2
    for found in look(folders, 60.0):
        assert (found.fact, found.note.endswith("of recovery.health.min_disk_bytes")) == ("", True)


@pytest.mark.parametrize(("code", "said"), [(errno.ENOSPC, "no space left"), (errno.EROFS, "no permission")])
def test_a_disk_that_takes_no_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(EttError, match=said):
        check_folder(tmp_path, "checkpoint.uri")


def test_memory_is_that_of_the_host_and_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4000 kB\nMemAvailable:   1000 kB\n")
    monkeypatch.setattr(host_checks, "memory_left", lambda: None)
    check_memory(1_024_000, meminfo)
    with pytest.raises(Unreachable, match="this host has 1,024,000 bytes"):
        check_memory(1_024_001, meminfo)
    monkeypatch.setattr(host_checks, "memory_left", lambda: 300_000)
    check_memory(300_000, meminfo)
    with pytest.raises(Unreachable, match="this control group has 300,000 bytes"):
        check_memory(300_001, meminfo)


def test_a_loopback_that_is_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(Unreachable, match="Network is unreachable"):
        host_checks.check_loopback()


def test_a_store_that_answers_is_well(tmp_path: Path) -> None:
    check_store(str(tmp_path))


def test_an_error_of_a_stores_own_library_is_that_of_a_store_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(uri: str) -> None:
        raise RuntimeError("token expired")

    monkeypatch.setattr(host_checks, "open_store", refuse)
    with pytest.raises(Unreachable, match=r"gs://b/j cannot be listed \(RuntimeError: token expired\)"):
        check_store("gs://b/j")


@pytest.mark.parametrize("wrong", [{"wait": "soon"}, {"deadline": "0"}, {"min_disk_bytes": -1}])
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"recovery\.health"):
        HealthLimits(**wrong)
