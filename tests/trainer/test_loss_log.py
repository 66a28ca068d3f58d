from __future__ import annotations

import json
from pathlib import Path

from ett.trainer.evaluation import HeldOutScore
from ett.trainer.loss_log import LossLog, read_losses


def write(path: Path, restored_step: int, steps: range, loss: float) -> None:
    log = LossLog(path, restored_step=restored_step)
    for step in steps:
        log.append(step, loss / 3, 1.0)
    log.close()


def test_losses_are_read_back_to_the_bit(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", 0, range(1, 4), 1.0)
    assert read_losses(tmp_path / "metrics.jsonl") == dict.fromkeys((1, 2, 3), 1.0 / 3)


def test_steps_after_the_restored_one_are_replaced(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", 0, range(1, 6), 1.0)
    write(tmp_path / "metrics.jsonl", 3, range(4, 5), 2.0)
    assert read_losses(tmp_path / "metrics.jsonl") == {1: 1.0 / 3, 2: 1.0 / 3, 3: 1.0 / 3, 4: 2.0 / 3}


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, range(1, 3), 1.0)
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    write(path, 2, range(3, 4), 3.0)
    assert read_losses(path) == {1: 1.0 / 3, 2: 1.0 / 3, 3: 1.0}


def test_a_fresh_start_begins_an_empty_log(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", 0, range(1, 6), 1.0)
    write(tmp_path / "metrics.jsonl", 0, range(1, 2), 1.0)
    assert list(read_losses(tmp_path / "metrics.jsonl")) == [1]


def test_scores_stand_between_the_losses_and_are_cut_with_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = LossLog(path, restored_step=0)
    for step in (1, 2):
        log.append(step, 0.5, 1.0)
        log.append_score(step, HeldOutScore(auc=0.7, normalized_entropy=0.9, num_rows=5))
    log.append_score(3, HeldOutScore(auc=float("nan"), normalized_entropy=float("nan"), num_rows=0))
    log.close()
    assert json.loads(path.read_text().splitlines()[-1])["auc"] is None
    LossLog(path, restored_step=1).close()
    assert read_losses(path) == {1: 0.5}
    assert [json.loads(line).get("auc") for line in path.read_text().splitlines()] == [None, 0.7]
