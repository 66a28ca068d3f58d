"""Embeddings of a DistributedDataParallel program as tables, over real ranks: one saves them, all restore them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gloo_ranks import run_ranks_well

pytestmark = [pytest.mark.process, pytest.mark.slow]


def run_world(folder: Path, world_size: int, last: int, kind: str) -> list[str]:
    """Run a world from its newest checkpoint to a step; return what each rank printed."""
    store = folder.parent / f"store-{folder.name}-{last}"
    return run_ranks_well("replicated_tables.py", world_size, store, folder, last, kind)


@pytest.mark.parametrize("kind", ["SparseAdam", "Adagrad"])
def test_an_interrupted_program_ends_as_one_that_was_not(tmp_path: Path, kind: str) -> None:
    whole = run_world(tmp_path / "whole", 2, 7, kind)
    run_world(tmp_path / "parts", 2, 5, kind)  # the fifth step is lost
    parts = run_world(tmp_path / "parts", 2, 7, kind)
    assert whole[0].startswith("0 ") and parts[0].startswith("4 ")
    assert [line.split()[-1] for line in whole] == [line.split()[-1] for line in parts]
    assert parts[0] == parts[1]
    assert "{0}" in parts[0], "another rank than the first has written rows"
    assert "{'cold': 8192}" not in parts[0], "all rows were written"
