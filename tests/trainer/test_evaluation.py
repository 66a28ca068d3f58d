from __future__ import annotations

from pathlib import Path

import pytest

from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import EvalConfig, TrainerConfig
from ett.trainer.data.config import DataConfig
from ett.trainer.data.criteo import CriteoReader
from ett.trainer.data.generated_file import write_criteo
from ett.trainer.evaluation import held_out_score
from ett.trainer.rank_start import build_model


@pytest.mark.slow
@pytest.mark.parametrize(("max_rows", "scored"), [(0, None), (1, 64), (100, 128), (10**6, None)])
def test_scoring_stops_with_the_batch_that_reaches_the_limit(tmp_path: Path, max_rows: int, scored: int | None) -> None:
    write_criteo(tmp_path / "a.tsv", 1000, 1)
    reader = CriteoReader(DataConfig(heldout_share=0.4), str(tmp_path / "a.tsv"), batch_size=64, seed=1)
    everything = sum(batch.global_size for batch in reader.heldout_batches(64))
    config, ranks = EvalConfig(batch_size=64, max_rows=max_rows), LocalCollectives()
    score = held_out_score(config, build_model(TrainerConfig(), ranks), reader, ranks, lambda: False)
    assert score is not None
    assert score.num_rows == (everything if scored is None else scored)
