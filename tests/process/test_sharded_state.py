"""Dense state of which each rank has a part (FSDP2, DTensor), over real ranks: written where it lies, read anywhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from gloo_ranks import RANKS, run_ranks, run_ranks_well

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.dense_reader import read_dense
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.verify import damage

pytestmark = pytest.mark.process
PROGRAM = "sharded_state.py"


def run_world(folder: Path, world_size: int, last: int) -> tuple[int, str]:
    """Run a world from its newest checkpoint to a step; return where it began, and the digest of what it saved."""
    store = folder.parent / f"store-{folder.name}-{world_size}-{last}"
    began, digest = run_ranks_well(PROGRAM, world_size, store, folder, last)[0].split()
    return int(began), digest


def image(folder: Path, world_size: int, last: int) -> dict[str, bytes]:
    found = np.load(folder.parent / f"of-{world_size}-{last}.npz")
    return {name: found[name].tobytes() for name in found}


def newest(folder: Path) -> Commit:
    log = CommitLog(LocalStore(folder))
    return log.read(max(log.seqs()))


def trained_alone(last: int) -> dict[str, bytes]:
    """Return the state that a process has that was never sharded and never saved."""
    spec = importlib.util.spec_from_file_location("sharded_state", RANKS / PROGRAM)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    model, optimizer = program.build(1)
    for step in range(1, last + 1):
        program.train(model, optimizer, step)
    return {name: value.tobytes() for name, value in program.image(model, optimizer).items()}


def test_sharded_state_goes_to_any_number_of_ranks_bit_for_bit(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    began, of_two = run_world(folder, 2, 2)
    assert began == 0
    assert {file.writer for file in newest(folder).dense.files} == {0, 1}  # type: ignore[union-attr]
    assert run_world(folder, 1, 2) == (2, of_two), "the digest depends on the number of ranks"
    began, of_four = run_world(folder, 4, 4)
    assert (began, of_four == of_two) == (2, False)
    assert {file.writer for file in newest(folder).dense.files} == {0, 1, 2, 3}  # type: ignore[union-attr]
    assert damage(LocalStore(folder), newest(folder), "load") is None
    assert image(folder, 4, 4) == trained_alone(4)
    saved, _ = read_dense(LocalStore(folder), newest(folder).dense)  # type: ignore[arg-type]
    of_model = {name: value.numpy().tobytes() for name, value in saved.items() if name.startswith("model.")}
    assert of_model.items() <= image(folder, 4, 4).items()


def test_a_rank_that_dies_while_parts_are_written_is_a_lost_peer_to_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    ended = run_ranks(PROGRAM, 2, tmp_path / "store", folder, 2, "lose-a-peer")
    assert [rank.code for rank in ended] == [7, 9], ended
    assert "another rank ended" in ended[0].out
    assert newest(folder).is_fresh
