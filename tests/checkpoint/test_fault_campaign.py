"""The fault campaign sees what it should: no silent loss in the product, and each that a fault in the product makes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ett.checkpoint import collection, dense_files
from ett.checkpoint.bench.faults import save_faults
from ett.checkpoint.bench.faults.campaign import Campaign, CellTally, scratch_folder
from ett.checkpoint.bench.faults.family import Cell
from ett.checkpoint.bench.faults.fault_table import FaultTable
from ett.checkpoint.bench.faults.kill_faults import KIND
from ett.checkpoint.bench.faults.killed_process import ANY_INSTANT
from ett.checkpoint.bench.faults.protocol_points import Amount, protocol_point
from ett.checkpoint.bench.faults.surroundings import surroundings
from ett.checkpoint.bench.faults.tally_groups import groups_of, least_json, rows_json, say_least, table_of
from ett.checkpoint.bench.faults.unverified import unverified
from ett.checkpoint.bench.faults.verdict import OUTCOMES
from ett.checkpoint.bench.seaweed import find_weed
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.policy.table_tracker import TableTracker
from ett.checkpoint.tracked_table import TrackedTable

ONCE = Amount(per_point=1)  # in each cell


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with scratch_folder() as scratch:  # in memory: a disk would take a second for each fault's syncs
        yield Campaign(7, scratch)


def wrong(tallies: list[CellTally]) -> list[str]:
    return [line for tally in tallies for line in tally.wrong]


def lost(campaign: Campaign, family: str, cell: Cell, times: int) -> int:
    """Return how many of the faults of a cell are silent losses."""
    verdicts = [campaign.inject(campaign.families[family], cell, number) for number in range(times)]
    return sum(verdict.outcome == "silent" for verdict in verdicts)


@pytest.mark.slow
def test_faults_at_every_sixth_point_are_never_silent(campaign: Campaign) -> None:
    tallies = campaign.run(campaign.work(ONCE)[2::6])
    assert wrong(tallies) == []
    assert len(tallies) > 50


@pytest.mark.slow
@pytest.mark.process
def test_faults_of_processes_and_of_a_real_server_are_never_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_weed() is None:
        pytest.skip("there is no SeaweedFS here: make peers")
    monkeypatch.chdir(tmp_path)
    with scratch_folder() as scratch, surroundings(scratch) as around:
        campaign = Campaign(7, scratch / "campaign", around)
        tallies = campaign.run(campaign.work(ONCE, ("process", "s3"))[1::12])
    assert wrong(tallies) == []
    assert {tally.family for tally in tallies} == {"process", "s3"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_faults_here_and_there_are_never_silent(campaign: Campaign) -> None:
    tallies = campaign.run(campaign.work(ONCE)[5::47])
    assert wrong(tallies) == []
    assert sum(tally.count for tally in tallies) >= 8


@pytest.mark.slow
def test_a_fault_is_the_same_when_it_is_injected_again(campaign: Campaign) -> None:
    with scratch_folder() as scratch:
        other = Campaign(7, scratch)
        for family in ("damage", "save"):
            cell = campaign.families[family].cells()[0]
            first, second = (c.inject(c.families[family], cell, 3) for c in (campaign, other))
            assert first.outcome == second.outcome


@pytest.mark.slow
def test_without_verification_damage_is_silent(campaign: Campaign) -> None:
    cell = Cell("flip", "base segment")
    assert lost(campaign, "damage", cell, 10) == 0
    with unverified():
        assert lost(campaign, "damage", cell, 10) > 0


@pytest.mark.slow
def test_a_file_whose_hash_is_not_checked_is_seen(campaign: Campaign) -> None:
    cell = Cell("zeros", "dense")
    assert lost(campaign, "damage", cell, 20) == 0
    with patch.object(dense_files, "_check_hash", lambda *args: None):
        assert lost(campaign, "damage", cell, 60) > 0


@pytest.mark.slow
def test_a_commit_whose_name_is_not_synced_is_seen(campaign: Campaign) -> None:
    """The save has returned, and after a loss of power its commit is not there."""
    cell = Cell("power", "6 save returned")
    assert lost(campaign, "save", cell, 8) == 0
    with patch.object(LocalStore, "sync", lambda self, names: None):
        assert lost(campaign, "save", cell, 8) > 0


@pytest.mark.slow
def test_changes_that_a_failed_save_takes_with_it_are_seen(campaign: Campaign) -> None:
    """The next save of the process writes what changed since the failed one, and not what that one was to write."""

    def forget(self: TableTracker) -> None:
        self._in_flight = None

    cell = Cell("ENOSPC", "4 fragment write")
    with patch.object(save_faults, "GOES_ON", 1.0):
        assert lost(campaign, "save", cell, 16) == 0
        with patch.object(TableTracker, "give_back", forget):
            assert lost(campaign, "save", cell, 16) > 0


@pytest.mark.slow
def test_files_of_a_save_that_a_collector_takes_are_seen(campaign: Campaign) -> None:
    cell = Cell("collector years ahead", "5 record create")
    assert lost(campaign, "clock", cell, 3) == 0
    with patch.object(collection, "_is_orphan", lambda *args: True):
        assert lost(campaign, "clock", cell, 3) > 0


def test_a_tally_is_plain_data(campaign: Campaign) -> None:
    (done,) = campaign.run(campaign.work(ONCE)[:1])
    assert json.loads(json.dumps(done.as_json()))["count"] == 1


def tally(family: str, point: str, count: int, silent: int = 0) -> dict[str, Any]:
    outcomes = {**dict.fromkeys(OUTCOMES, 0), "last": count - silent, "silent": silent}
    return {"family": family, "kind": "k", "point": point, "count": count, **outcomes}


TALLIES = [
    tally("save", "2 dense create", 30),
    {**tally("save", "2 dense write", 70, silent=1), "wrong": ["do it again"]},
    tally("start", "0 record link", 101),
    tally("process", "any instant", 102),
]


def test_the_figure_says_how_many_faults_each_point_has_and_what_could_not_be_run() -> None:
    assert say_least(groups_of(TALLIES), Amount(per_point=100)) == (
        "3 groups of a kind of fault at a point of the protocol, 100 or more each (SIGKILL: 102 or more in 1);"
        " 4 cells, 30 or more each; no S3 server here: make peers"
    )


def test_a_point_with_too_few_faults_is_named() -> None:
    groups = groups_of(TALLIES)
    assert "; 2 of them have fewer than 102;" in say_least(groups, Amount(per_point=102))
    assert least_json(groups, Amount(per_point=102))["too_few"] == [
        "save k, 2 dense written: 100",
        "start k, 0 record named: 101",
    ]


def test_the_operations_of_a_point_are_one_line() -> None:
    groups = groups_of(TALLIES)
    assert rows_json(groups)["save"] == {"k": {"2 dense written": "2 30 100 99 0 0 1 0"}}
    assert [line.split()[:7] for line in table_of(groups)][1:] == [
        ["process", "k", "1", "102", "1", "102", "102"],
        ["save", "k", "1", "100", "2", "30", "100"],
        ["start", "k", "1", "101", "1", "101", "101"],
        ["do", "it", "again"],
    ]


@pytest.mark.parametrize(
    ("operation", "point"),
    [
        ("2 segment fsync", "2 segment written"),
        ("0 folder folder sync", "0 folder named"),
        ("5 record unlink", "5 record named"),
        ("6 leases list", "6 leases read"),
        ("4 fragment put", "4 fragment put"),
        ("6 save returned", "6 save returned"),
        ("dense, before 4 fragment create", "dense, before 4 fragment create"),
        ("base segment", "base segment"),
        ("any instant of a save to S3", "any instant of a save to S3"),
    ],
)
def test_an_operation_belongs_to_a_point_of_the_protocol(operation: str, point: str) -> None:
    assert protocol_point(operation) == point


def test_the_cells_of_a_point_share_its_faults() -> None:
    cells = [Cell("kill", f"2 segment {verb}") for verb in ("create", "write", "fsync", "link")]
    amounts = Amount(per_point=100, least=20).of_cells([*cells, Cell("EIO", "2 segment write")])
    assert list(amounts.values()) == [34, 34, 34, 100, 100]
    assert set(Amount(per_point=10, least=20).of_cells(cells).values()) == {20}


def test_every_fault_has_a_hundred_at_each_point(campaign: Campaign) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for work in campaign.work(Amount(per_point=100, least=20)):
        assert work.count >= 20
        counts[work.family.name, work.cell.kind, protocol_point(work.cell.point)] += work.count
    assert min(counts.values()) >= 100
    assert sum(counts.values()) >= 10_000


@pytest.mark.slow
@pytest.mark.process
def test_kills_at_any_instant_come_before_and_after_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that still had to import what a save needs was always killed before it wrote anything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ett.checkpoint.bench.faults.surroundings.find_weed", lambda: None)
    with scratch_folder() as scratch, surroundings(scratch) as around:
        campaign = Campaign(7, scratch / "campaign", around)
        killed = campaign.families["process"]
        outcomes = {campaign.inject(killed, Cell(KIND, ANY_INSTANT), number).outcome for number in range(40)}
    assert outcomes == {"last", "previous"}


def test_the_tracked_table_is_one_to_the_product() -> None:
    """A table that no policy recognises is written whole, and the campaign would have no chain of a policy."""
    assert isinstance(FaultTable("users", 4), TrackedTable)
