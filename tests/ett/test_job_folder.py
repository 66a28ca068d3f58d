from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ett.errors import AccessDenied, Conflict, NotFound, UsageError
from ett.job_folder import JobFolder, Lease, checked_name, ett_home, find_job, fresh_job, read_json, slug, write_json
from ett.process_identity import ProcessIdentity


def made(home: Path, name: str) -> JobFolder:
    folder = JobFolder(home / "jobs" / name)
    folder.create()
    return folder


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0b", "-rf", ".hidden", "a b", "ä", "a\n", "x" * 64])
def test_a_name_that_is_no_safe_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        checked_name(name)


@pytest.mark.parametrize("name", ["a", "Ads_ctr.main-7f3a", "x" * 63])
def test_an_ordinary_name_is_taken(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    ("text", "expected"), [("My Model.v2", "my-model-v2"), ("", "job"), ("../..", "job"), ("é", "job")]
)
def test_any_text_becomes_a_slug(text: str, expected: str) -> None:
    assert slug(text) == expected


def test_a_fresh_job_id_is_the_slug_and_four_base32_digits(tmp_path: Path) -> None:
    assert re.fullmatch(r"ctr-main-[a-z2-7]{4}", fresh_job(tmp_path, "CTR main").name)


def test_the_home_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert ett_home({}) == tmp_path / ".ett"
    assert ett_home({"ETT_HOME": "/srv/ett"}) == Path("/srv/ett")


def test_an_unknown_job_says_how_many_there_are_beside_the_named(tmp_path: Path) -> None:
    for number in range(11):
        made(tmp_path, f"j{number:02}")
    with pytest.raises(NotFound) as unknown:
        find_job(tmp_path, "k")
    assert unknown.value.expected == "known jobs: j03, j04, j05, j06, j07, j08, j09, j10, and 3 more"
    with pytest.raises(NotFound, match="ambiguous") as ambiguous:
        find_job(tmp_path, "j")
    assert ambiguous.value.expected.endswith("j10, and 3 more")


def test_a_deleted_folder_is_the_deleters_error(tmp_path: Path) -> None:
    folder = made(tmp_path, "j")
    number = folder.take_attempt()
    folder.attempt(number).rmdir()
    with pytest.raises(NotFound, match="folder of job j is gone"), folder.expected():
        folder.write_workers(number, {})
    with pytest.raises(FileNotFoundError), folder.expected():
        (tmp_path / "elsewhere").read_text()


def test_attempt_numbers_are_never_given_twice(tmp_path: Path) -> None:
    folder = made(tmp_path, "j")
    assert [folder.take_attempt(), folder.take_attempt(), JobFolder(folder.path).take_attempt()] == [1, 2, 3]
    assert folder.attempts() == [1, 2, 3]


def test_attempt_numbers_follow_the_log_where_that_is_ahead(tmp_path: Path) -> None:
    assert made(tmp_path, "j").take_attempt(at_least=7) == 7


def test_two_launches_cannot_make_the_same_job(tmp_path: Path) -> None:
    folder = made(tmp_path, "j")
    with pytest.raises(Conflict):
        folder.create()


def test_a_home_that_cannot_be_made_names_itself(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(AccessDenied, match="home/jobs"):
        made(tmp_path / "home", "j")


def test_a_held_lease_names_its_holder(tmp_path: Path) -> None:
    folder = made(tmp_path, "j")
    lease = Lease(folder)
    with pytest.raises(Conflict, match=f"process {os.getpid()} on ") as caught:
        Lease(folder)
    assert caught.value.exit_code == 7
    lease.release()
    Lease(folder).release()


def test_a_job_is_found_by_name_before_prefix(tmp_path: Path) -> None:
    for name in ("ads", "ads-7f3a", "feed-abcd"):
        made(tmp_path, name)
    assert find_job(tmp_path, "ads").name == "ads"
    assert find_job(tmp_path, "feed").name == "feed-abcd"


def test_an_ambiguous_prefix_lists_the_candidates(tmp_path: Path) -> None:
    for name in ("ads-7f3a", "ads-abcd"):
        made(tmp_path, name)
    with pytest.raises(NotFound, match="ambiguous") as caught:
        find_job(tmp_path, "ads")
    assert caught.value.expected == "one of ads-7f3a, ads-abcd"


def test_a_missing_job_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no job 'x'"):
        find_job(tmp_path, "x")


def test_workers_are_read_back(tmp_path: Path) -> None:
    folder = made(tmp_path, "j")
    number = folder.take_attempt()
    assert folder.read_workers(number) == {}
    workers = {0: ProcessIdentity.of(os.getpid()), 1: ProcessIdentity.of(os.getppid())}
    folder.write_workers(number, workers)
    assert folder.read_workers(number) == workers


def test_a_half_written_file_reads_as_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1}, mode=0o600)
    assert (read_json(tmp_path / "a.json"), (tmp_path / "a.json").stat().st_mode & 0o777) == ({"x": 1}, 0o600)
    (tmp_path / "a.json").write_text('{"x"')
    assert read_json(tmp_path / "a.json") == {}


def test_a_process_of_another_start_or_boot_is_not_alive() -> None:
    own = ProcessIdentity.of(os.getpid())
    assert own.is_alive
    for field in ({"start_ticks": own.start_ticks + 1}, {"boot": "0" * 32}, {"pid": 2**22 + 1}):
        assert not ProcessIdentity(**own.plain() | field).is_alive
