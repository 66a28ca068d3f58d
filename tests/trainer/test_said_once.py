"""An error that all ranks meet is printed once; one that rank 0 did not meet is printed by whoever met it."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from ett.errors import DataError, LostPeer
from ett.trainer.comm.said_once import say_once

BAD_LINE = DataError("a.tsv:3: 38 fields")


@pytest.mark.slow
def test_the_error_of_rank_0_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    store = HashStore()
    say_once(BAD_LINE, 0, store)
    say_once(DataError("a.tsv:3: 38 fields"), 1, store)
    assert capsys.readouterr().err.count("a.tsv:3: 38 fields") == 1


@pytest.mark.parametrize("error", [DataError("b.tsv:9: other"), LostPeer("a rank is gone")])
def test_another_error_is_said_by_its_rank(error: DataError, capsys: pytest.CaptureFixture[str]) -> None:
    store = HashStore()
    say_once(BAD_LINE, 0, store)
    say_once(error, 1, store, wait_s=0.1)
    assert error.fact in capsys.readouterr().err


def test_an_error_that_rank_0_did_not_meet_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say_once(BAD_LINE, 1, HashStore(), wait_s=0.1)
    say_once(BAD_LINE, 0, None)
    assert capsys.readouterr().err.count("38 fields") == 2
