"""What may befall a save that is written beside training: its commit is the state of its boundary, or there is none."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks
from test_background_saves import PacedStore, alone, commits_of
from test_policy_saves import check_all
from torch_world import Job

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.background_save import BackgroundSave
from ett.errors import CorruptState

# It ends, without `close`, while the thread that saves is in native code, or waits for a store that does not answer.
PROGRAM = """
import sys
import threading
from pathlib import Path
import torch
from ett.checkpoint import CheckpointConfig, Checkpointer, save_under_way as module
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.policy.row_map import RowMap

module.EXIT_S, module.STOP_S = float(sys.argv[3]), 0.1
has_begun, is_syncing = threading.Event(), threading.Event()

class BusyStore(LocalStore):
    def sync(self, names):
        if not has_begun.is_set():
            return super().sync(names)
        is_syncing.set()
        if sys.argv[2] == "hangs":
            threading.Event().wait()
        rows = RowMap(1 << 24)
        for _ in range(30):
            len(rows)

table = torch.nn.Embedding(20_000, 64)
optimizer = torch.optim.Adam(table.parameters())
config = CheckpointConfig(uri=sys.argv[1], background=True, interval="1 steps")
checkpointer = Checkpointer(config, model=table, optimizer=optimizer, store=BusyStore(Path(sys.argv[1])))
checkpointer.restore()
has_begun.set()
table(torch.arange(9)).sum().backward()
optimizer.step()
checkpointer.step(1, 9)
is_syncing.wait()
sys.exit(3)
"""


@pytest.mark.slow
def test_a_save_whose_wait_was_interrupted_is_still_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, checkpointer, store, _ = alone(tmp_path, interval="1 steps", policy="incremental")
    rng, expected = random.Random(1), {}
    tables.train(rng)
    expected[1] = tables.rows()
    store.hold()
    checkpointer.step(1, 1)
    tables.train(rng)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        for wait in ("wait", "result"):
            during.setattr(BackgroundSave, wait, interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.step(2, 2)
    expected[3] = tables.rows()
    store.go()
    assert checkpointer.save(3, 3).step == 3
    checkpointer.close()
    check_all(tmp_path, expected)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ckpt_before_write", "ckpt_after_shard_write", "ckpt_before_commit"])
def test_rows_are_kept_no_longer_when_a_save_ends_by_any_error(tmp_path: Path, point: str) -> None:
    """Training would wait for staging memory that nobody empties."""
    tables, checkpointer, _, run = alone(tmp_path, interval="1 steps", policy="incremental")
    rng, expected = random.Random(1), {}
    for step in range(1, 3):
        tables.train(rng)
        expected[step] = tables.rows()
        checkpointer.step(step, step)

    def fail(at: str, _: int) -> None:
        if at == point:
            raise RuntimeError("no error of ours")

    checkpointer.has_settled(60)
    run.hook = fail
    tables.train(rng)
    with pytest.raises(RuntimeError, match="no error of ours"):
        checkpointer.step(3, 3)
        checkpointer.has_settled(60)
        tables.train(rng)
        checkpointer.step(4, 4)
    run.hook = lambda at, step: None
    tables.train(rng)
    expected[5] = tables.rows()
    assert checkpointer.save(5, 5).step == 5
    checkpointer.close()
    check_all(tmp_path, expected)


@pytest.mark.slow
def test_a_restore_waits_for_the_save_that_is_under_way(tmp_path: Path) -> None:
    tables, checkpointer, store, _ = alone(tmp_path, interval="1 steps", policy="incremental")
    rng = random.Random(1)
    tables.train(rng)
    first = tables.rows()
    checkpointer.step(1, 1)
    checkpointer.has_settled(60)
    tables.train(rng)
    rows = tables.rows()
    store.hold()
    checkpointer.step(2, 2)
    tables.train(rng)
    restoring = threading.Thread(target=checkpointer.restore)
    restoring.start()
    restoring.join(0.5)
    assert tables.rows() != rows  # nothing was put into tables that are being read
    store.go()
    restoring.join()
    assert tables.rows() == rows
    checkpointer.close()
    check_all(tmp_path, {1: first, 2: rows})


@pytest.mark.slow
def test_two_checkpointers_of_one_model_save_its_state_beside_each_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    tables, first, store, run = alone(here, interval="1 steps", policy="incremental")
    config = CheckpointConfig(uri=str(there), interval="1 steps", policy="incremental", stall_budget_s=60.0)
    ranks, run_of_second = ThreadRanks(0, 1, Meeting(1)), RecordingRun()
    second = Checkpointer(config, model=tables, run=run_of_second, ranks=ranks)
    rng, expected = random.Random(1), {}
    for step in range(1, 7):
        tables.train(rng)
        expected[step] = tables.rows()
        store.hold()
        first.step(step, step)
        tables.train(rng)
        expected[100 + step] = tables.rows()
        opens = threading.Timer(0.2, store.go)
        opens.start()
        second.step(100 + step, step)
        opens.join()
        tables.train(rng)
    first.close()
    second.close()
    assert [commit.step for commit in commits_of(here)][-1] == 6
    assert [commit.step for commit in commits_of(there)][-1] == 106
    assert "ckpt_abandoned" not in run.kinds() + run_of_second.kinds()
    check_all(here, expected)
    check_all(there, expected)


def test_a_row_that_was_read_before_anybody_said_that_it_was_written_to_is_in_no_commit(tmp_path: Path) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps")
    tables.train(random.Random(1))
    store.hold()
    checkpointer.step(1, 1)
    tables.fixed.weight.data[7] = 3.0

    def tell(point: str, _: int) -> None:
        if point == "ckpt_after_shard_write":
            checkpointer.touched("fixed", np.array([7]))

    run.hook = tell
    store.go()
    checkpointer.has_settled(60)
    run.hook = lambda point, step: None
    checkpointer.close()
    assert commits_of(tmp_path) == []


@pytest.mark.slow
def test_a_table_that_loads_a_state_is_saved_as_it_was_before(tmp_path: Path) -> None:
    tables, checkpointer, store, _ = alone(tmp_path, interval="1 steps")
    tables.train(random.Random(1))
    rows = tables.rows()
    store.hold()
    checkpointer.step(1, 1)
    tables.load_state_dict({name: torch.full_like(value, 3.0) for name, value in tables.state_dict().items()})
    assert tables.rows() != rows
    store.go()
    checkpointer.close()
    check_all(tmp_path, {1: rows})


@contextmanager
def paced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PacedStore]]:
    stores: list[PacedStore] = []

    def opened(uri: str) -> PacedStore:
        stores.append(PacedStore(Path(uri)))
        return stores[-1]

    with monkeypatch.context() as during:
        during.setattr("ett.checkpoint.job_places.open_store", opened)
        yield stores


@pytest.mark.slow
@pytest.mark.parametrize("what", ["weight", "state", "no state"])
def test_an_embedding_that_is_written_to_untold_is_in_no_commit(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paced(monkeypatch) as stores:
        job = Job(tmp_path, lambda p: torch.optim.Adagrad(p, lr=0.1), background=True, interval="1 steps").train(3)
    stores[0].hold()
    job.checkpointer.step(3, 3)
    if what == "weight":
        with torch.no_grad():
            job.items.weight[5] = 7.0
    elif what == "state":
        job.optimizer.load_state_dict(job.optimizer.state_dict())
        job.optimizer.state[job.items.weight]["sum"] = job.optimizer.state[job.items.weight]["sum"] + 1
    else:
        job.optimizer.state.clear()
    stores[0].go()
    job.checkpointer.close()
    assert commits_of(tmp_path) == []
    assert [fields["code"] for kind, fields in job.run.said if kind == "ckpt_abandoned"] == [CorruptState("").code]


def ended(folder: Path, store: str, exit_s: float) -> tuple[int, str]:
    args = [sys.executable, "-c", PROGRAM, str(folder), store, str(exit_s)]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_process_that_ends_while_a_save_is_under_way_commits_it(tmp_path: Path) -> None:
    assert ended(tmp_path, "works", 600.0) == (3, "")
    assert [commit.step for commit in commits_of(tmp_path)] == [1]


@pytest.mark.slow
def test_a_process_that_ends_while_its_store_hangs_ends_all_the_same(tmp_path: Path) -> None:
    code, said = ended(tmp_path, "hangs", 0.1)
    assert (code, said) == (3, "the save at step 1 was not committed before the program ended\n")
    assert commits_of(tmp_path) == []


def test_what_training_waits_for_is_in_the_event_of_the_save(tmp_path: Path) -> None:
    tables, checkpointer, store, run = alone(tmp_path, interval="1 steps", stall_budget_s=0.1)
    tables.train(random.Random(1))
    store.hold()
    for step in (1, 2, 3):  # two are skipped, after a wait each
        checkpointer.step(step, step)
    store.go()
    checkpointer.close()
    (first,) = [fields for kind, fields in run.said if kind == "ckpt_detail"]
    assert first["stall_s"] >= 0.2 and first["over_budget"]
