"""Ranks that lost another one and restore with the tables that they have: as in new processes, with less read."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_world import RecordingRun, ThreadRanks, raise_first, run_ranks
from test_failed_save import break_store, mend_store
from test_policy_saves import Rows, Tables, check_all

from ett.checkpoint import CheckpointConfig, Checkpointer, save
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.ranks import SoloRanks
from ett.errors import EttError, LostPeer

GIVES_WAY = "evicts: its rows give way to each other"
ANOTHER = "grows: what has changed in it is known since another commit"


def opened(folder: Path, tables: Tables, ranks: Any = None, **config: Any) -> tuple[Checkpointer, RecordingRun]:
    run = RecordingRun()
    settings = CheckpointConfig(uri=str(folder), stall_budget_s=60.0, **{"policy": "incremental", **config})
    return Checkpointer(settings, model=tables, run=run, ranks=ranks or SoloRanks()), run


def restored(run: RecordingRun) -> dict[str, Any]:
    return next(fields for name, fields in run.said if name == "restored")


def generation(tables: list[Tables], folder: Path, seed: int, step: int, config: dict[str, Any]) -> list[Any]:
    """Restore, train and save with the tables that ranks have; return what was restored, saved, and said of it."""

    def work(ranks: ThreadRanks) -> tuple[int, Rows, dict[int, Rows], dict[str, Any]]:
        mine, model = random.Random(seed), tables[ranks.rank]
        checkpointer, run = opened(folder, model, ranks, **config)
        start, saved = checkpointer.restore(), {}
        begun, at = (start.step if start else 0), step
        rows = model.rows()
        for number in range(mine.randint(1, 3)):
            for _ in range(mine.randint(0, 3)):
                model.train(mine)
            at += 1
            broken = mine.choice([None, None, 0, ranks.world_size - 1]) if number else None
            if broken == ranks.rank:
                break_store(SimpleNamespace(checkpointer=checkpointer), errno.EIO)  # type: ignore[arg-type]
            before = model.rows()
            try:
                if config.get("background"):
                    checkpointer.step(at, at)
                    model.train(mine)  # beside the save
                    assert checkpointer.has_settled(60)
                else:
                    checkpointer.save(at, at)
            except EttError:
                pass
            if broken is None:
                saved[at] = before
            mend_store(SimpleNamespace(checkpointer=checkpointer))  # type: ignore[arg-type]
        checkpointer.close()  # old commits go in a thread
        model.train(mine)  # and a rank is lost
        return begun, rows, saved, restored(run) if start else {}

    results = run_ranks(len(tables), work)
    raise_first(results)
    return results


@pytest.mark.parametrize(
    ("policy", "background"),
    [
        ("incremental", True),
        *(pytest.param(*some, marks=pytest.mark.slow) for some in (("adaptive", True), ("adaptive", False))),
        *(pytest.param(*some, marks=pytest.mark.slow) for some in (("differential", False), ("full", True))),
    ],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 9))])
def test_ranks_that_lived_on_have_what_was_committed(tmp_path: Path, policy: str, background: bool, seed: int) -> None:
    rng = random.Random(seed)
    config = {"policy": policy, "max_chain": 4, "keep_last": 3, "background": background, "interval": "1 steps"}
    world_size = rng.choice([2, 3])
    tables = [Tables(rank, world_size) for rank in range(world_size)]
    expected: dict[int, Rows] = {}
    told = []
    for number in range(3):
        results = generation(tables, tmp_path, rng.getrandbits(32), 10 * number, config)
        begun = {key: value for _, rows, _, _ in results for key, value in rows.items()}
        if number:
            assert begun == expected[results[0][0]]
            told.append(results[0][3])
        for _, _, saved, _ in results:
            for step, rows in saved.items():
                expected.setdefault(step, {}).update(rows)
        lost = rng.randrange(world_size)
        tables[lost] = Tables(lost, world_size)
    assert [one["scope"] for one in told] == ["partial"] * 2
    assert all(one["not_kept"] == [GIVES_WAY] and one["kept_bytes"] > 0 for one in told)
    check_all(tmp_path, expected)


def trained(folder: Path, **config: Any) -> tuple[Tables, Rows]:
    """Return tables that were committed at step 1 and trained on, and their rows then."""
    tables, rng = Tables(0, 1), random.Random(1)
    checkpointer, _ = opened(folder, tables, **config)
    checkpointer.restore()
    for _ in range(5):
        tables.train(rng)
    checkpointer.save(1, 1)
    rows = tables.rows()
    tables.train(rng)
    return tables, rows


def test_only_rows_that_have_changed_are_read(tmp_path: Path) -> None:
    tables, rows = trained(tmp_path)
    num_rows, changed = len(tables.grows), tables.grows.tracked_by.changed()  # type: ignore[attr-defined]
    read: list[int] = []
    import_rows = tables.grows.import_rows
    tables.grows.import_rows = lambda rows: (read.extend(rows.ids.tolist()), import_rows(rows))  # type: ignore
    ids = set(tables.grows.ids_of_slots(changed).tolist())
    checkpointer, run = opened(tmp_path, tables)
    checkpointer.restore()
    assert tables.rows() == rows
    assert 0 < len(read) < num_rows
    assert set(read) == {row_id for name, row_id in rows if name == "grows"} & ids
    assert restored(run)["scope"] == "partial"


def test_a_second_loss_before_a_save_reads_what_has_changed_since_the_restore(tmp_path: Path) -> None:
    tables, rows = trained(tmp_path)
    for _ in range(2):
        checkpointer, run = opened(tmp_path, tables)
        checkpointer.restore()
        assert tables.rows() == rows
        assert (restored(run)["scope"], restored(run)["kept_bytes"] > 0) == ("partial", True)
        tables.train(random.Random(2))


def test_another_commit_is_read_whole(tmp_path: Path) -> None:
    tables, rows = trained(tmp_path)
    checkpointer, _ = opened(tmp_path, tables)
    checkpointer.restore()
    tables.train(random.Random(3))
    newest = checkpointer.save(2, 2)
    (tmp_path / newest.tables[1].files[-1].stored.path).unlink()
    checkpointer, run = opened(tmp_path, tables)
    start = checkpointer.restore()
    assert start is not None and start.step == 1
    assert tables.rows() == rows
    assert (restored(run)["scope"], ANOTHER in restored(run)["not_kept"]) == ("full", True)


def test_a_commit_whose_answer_was_lost_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = trained(tmp_path)
    checkpointer, _ = opened(tmp_path, tables)
    checkpointer.restore()
    tables.train(random.Random(3))
    rows, append = tables.rows(), save._appended

    def lost(*parts: Any) -> Commit:
        append(*parts)
        raise LostPeer("injected")

    monkeypatch.setattr(save, "_appended", lost)
    with pytest.raises(LostPeer):
        checkpointer.save(2, 2)
    tables.train(random.Random(4))
    checkpointer, run = opened(tmp_path, tables)
    start = checkpointer.restore()
    assert start is not None and start.step == 2
    assert tables.rows() == rows
    assert ANOTHER in restored(run)["not_kept"]


def test_quantised_rows_are_read_whole(tmp_path: Path) -> None:
    tables, _ = trained(tmp_path, quantise=8)
    checkpointer, run = opened(tmp_path, tables, quantise=8)
    checkpointer.restore()
    fresh = Tables(0, 1)
    opened(tmp_path, fresh, quantise=8)[0].restore()
    assert tables.rows() == fresh.rows()
    assert "grows: the commit has its weights quantised" in restored(run)["not_kept"]


def test_a_table_that_nobody_tracks_is_read_whole(tmp_path: Path) -> None:
    tables, rows = trained(tmp_path, policy="full", background=False)
    checkpointer, run = opened(tmp_path, tables, policy="full", background=False)
    checkpointer.restore()
    assert tables.rows() == rows
    assert restored(run)["scope"] == "full"
    assert "grows: nobody knows what has changed in it since a commit" in restored(run)["not_kept"]


def test_rows_that_went_untold_are_noticed(tmp_path: Path) -> None:
    tables, rows = trained(tmp_path)
    changed = set(tables.grows.ids_of_slots(tables.grows.tracked_by.changed()).tolist())  # type: ignore[attr-defined]
    kept = next(row_id for name, row_id in rows if name == "grows" and row_id not in changed)
    tables.grows._storage.free(np.array([kept]))
    checkpointer, run = opened(tmp_path, tables)
    checkpointer.restore()
    assert tables.rows() == rows
    assert "grows: rows were missing among those that had stayed" in restored(run)["not_kept"]


def test_a_damaged_block_of_the_commit_is_noticed_in_what_is_read(tmp_path: Path) -> None:
    tables, _ = trained(tmp_path)
    newest = CommitLog(LocalStore(tmp_path)).read_all()[0]
    path = tmp_path / next(t for t in newest[max(newest)].tables if t.spec.name == "grows").files[0].stored.path
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(EttError, match="grows"):
        opened(tmp_path, tables)[0].restore()


@pytest.mark.parametrize("word", ["auto", "never"])
def test_a_second_checkpointer_with_nothing_to_restore_leaves_a_models_rows_alone(tmp_path: Path, word: str) -> None:
    tables, _ = trained(tmp_path / "first")
    before = tables.rows()
    checkpointer, _ = opened(tmp_path / "second", tables)
    assert checkpointer.restore(word) is None
    assert tables.rows() == before
    checkpointer.save(1, 1)
    check_all(tmp_path / "second", {1: before})
