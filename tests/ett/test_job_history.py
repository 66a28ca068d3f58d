from __future__ import annotations

from pathlib import Path

import pytest

from ett.event_log import EventWriter
from ett.job_history import SavedSteps, read_history, saved_steps


def supervisor(events: Path) -> EventWriter:
    return EventWriter(events / "0", "sup", {"job": "j"}, wait_s=None)


def commit(events: Path, attempt: int, cursor: int) -> None:
    writer = EventWriter(events / str(attempt), "r0", {"job": "j", "att": attempt, "rank": 0})
    writer.emit("step", samples=1, step=1, b_mono=0, e_mono=1)
    writer.emit("ckpt_commit", cursor=cursor, step=1, id="c")


def test_no_log_is_an_empty_history(tmp_path: Path) -> None:
    history = read_history(tmp_path)
    assert (history.is_submitted, history.last_attempt, history.ended, history.status) == (False, 0, (), "")


def test_an_attempt_without_an_end_is_open(tmp_path: Path) -> None:
    writer = supervisor(tmp_path)
    writer.emit("job_submitted", att=0)
    writer.emit("attempt_started", att=1)
    writer.emit("attempt_ended", att=1, reason="failed", **{"class": "infra"}, signature="s")
    writer.emit("attempt_started", att=2)
    history = read_history(tmp_path)
    assert (history.is_submitted, history.last_attempt, history.open_attempts) == (True, 2, (2,))
    assert [(facts.attempt, facts.failure_class, facts.signature) for facts in history.ended] == [(1, "infra", "s")]


def test_an_attempt_that_was_only_allocated_is_open(tmp_path: Path) -> None:
    writer = supervisor(tmp_path)
    writer.emit("job_submitted", att=0)
    writer.emit("allocated", att=1)
    history = read_history(tmp_path)
    assert (history.last_attempt, history.open_attempts) == (1, (1,))


def test_a_job_that_started_again_has_no_final_status(tmp_path: Path) -> None:
    writer = supervisor(tmp_path)
    writer.emit("attempt_started", att=1)
    writer.emit("job_ended", att=0, status="failed")
    assert read_history(tmp_path).status == "failed"
    supervisor(tmp_path).emit("attempt_started", att=2)
    assert read_history(tmp_path).status == ""


def test_a_job_whose_last_attempt_completed_is_complete(tmp_path: Path) -> None:
    writer = supervisor(tmp_path)
    writer.emit("attempt_started", att=1)
    writer.emit("attempt_ended", att=1, reason="completed")
    history = read_history(tmp_path)
    assert (history.is_complete, history.status) == (True, "")
    writer.emit("attempt_started", att=2)
    assert not read_history(tmp_path).is_complete


def test_a_torn_commit_is_no_commit(tmp_path: Path) -> None:
    commit(tmp_path, 1, 100)
    commit(tmp_path, 2, 200)
    (path,) = (tmp_path / "2").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "r0-h-1-b.jsonl").write_bytes(b"")
    assert read_history(tmp_path).committed_attempts == {1}


def test_only_a_commit_beyond_all_earlier_ones_is_new(tmp_path: Path) -> None:
    writer = supervisor(tmp_path)
    for attempt, cursor in ((1, 100), (2, 100), (3, 140), (4, None)):
        writer.emit("attempt_started", att=attempt)
        writer.emit("attempt_ended", att=attempt, reason="failed")
        if cursor is not None:
            commit(tmp_path, attempt, cursor)
    history = read_history(tmp_path)
    assert [facts.has_new_commit for facts in history.ended] == [True, False, True, False]
    assert history.committed_attempts == {1, 2, 3}
    assert [facts.attempt for facts in history.since(3)] == [3, 4]


def test_a_generation_that_another_followed_is_an_ended_life_of_its_own(tmp_path: Path) -> None:
    first = supervisor(tmp_path)
    first.emit("attempt_started", att=1)
    commit(tmp_path, 1, 100)
    first.emit("fault", att=1, rank=0, signature="s", **{"class": "user"})
    first.emit("restart_decision", att=1, restart=True, scope="inprocess")
    second = EventWriter(tmp_path / "0", "sup", {"job": "j", "gen": 1}, wait_s=None)
    second.emit("fault", att=1, rank=1, **{"class": "infra"})  # nobody was started anew after this one
    second.emit("attempt_ended", att=1, reason="failed", **{"class": "infra"})
    ended = read_history(tmp_path).ended
    assert [(f.attempt, f.gen, f.failure_class, f.has_new_commit) for f in ended] == [
        (1, 0, "user", True),
        (1, 1, "infra", False),
    ]


def test_an_attempt_that_a_lost_ranks_process_ended_after_all_is_no_second_failure(tmp_path: Path) -> None:
    first = supervisor(tmp_path)
    first.emit("attempt_started", att=1)
    first.emit("fault", att=1, rank=1, worker_pid=7, signature="s", **{"class": "user"})
    first.emit("restart_decision", att=1, restart=True, scope="inprocess")
    second = EventWriter(tmp_path / "0", "sup", {"job": "j", "gen": 1}, wait_s=None)
    second.emit("attempt_ended", att=1, reason="failed", worker_pid=7, unkillable=[0], **{"class": "user"})
    (life,) = read_history(tmp_path).ended
    assert (life.gen, life.pid, life.signature, life.is_unkillable) == (0, 7, "s", True)


def lived(events: Path, gen: int, *records: tuple[str, int]) -> None:
    """What rank 0 wrote down in one generation: kinds and steps."""
    writer = EventWriter(events / "1", "r0", {"job": "j", "att": 1, "rank": 0, "gen": gen})
    for ev, step in records:
        fields = {"b_mono": 0, "e_mono": 1} if ev == "step" else {"cursor": 10 * step, "id": "c"}
        writer.emit(ev, step=step, samples=1, **fields)
    writer.close()


@pytest.mark.parametrize(
    ("lives", "saved"),
    [
        ([[("step", 1)]], None),
        ([[("restore", 8), ("step", 9)]], SavedSteps(8, 1)),  # nothing was committed since it came back
        ([[("restore", 8), ("step", 9), ("ckpt_commit", 9)]], SavedSteps(9, 0)),
        # What a lost generation had trained beyond its commit is lost with it, not by the stop.
        ([[("ckpt_commit", 4), ("step", 7)], [("restore", 4), ("step", 5)]], SavedSteps(4, 1)),
        ([[("ckpt_commit", 4), ("step", 7)], [("restore", 4)]], SavedSteps(4, 0)),
        ([[("ckpt_commit", 4), ("step", 7)], [("restore", 2), ("ckpt_commit", 3), ("step", 3)]], SavedSteps(3, 0)),
    ],
)
def test_what_is_saved_is_that_of_the_newest_generation(
    lives: list[list[tuple[str, int]]], saved: SavedSteps | None, tmp_path: Path
) -> None:
    for gen, records in enumerate(lives):
        lived(tmp_path, gen, *records)
    assert saved_steps(tmp_path, 1) == saved
