"""Score the held-out rows at the end; the ranks share the work."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import torch

from ett.trainer.auc import auc
from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import EvalConfig
from ett.trainer.data.criteo import CriteoReader
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.loop import owned_tensor
from ett.trainer.normalized_entropy import normalized_entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutScore:
    """NaN where the rows are of one class, or none at all."""

    auc: float
    normalized_entropy: float
    num_rows: int


def held_out_score(config: EvalConfig, model: Dlrm, reader: CriteoReader, collectives: Collectives) -> HeldOutScore:
    """Return the score over the held-out rows, the first config.max_rows of them or all: the same on every rank."""
    model.eval()
    scores, labels = [torch.empty(0)], [torch.empty(0)]
    num_rows = 0
    with torch.no_grad(), closing(reader.heldout_batches(config.batch_size)) as batches:
        for batch in batches:
            pooled_BFD = model.ebc.pooled(model.ebc.look_up(batch.ids))
            scores.append(model(owned_tensor(batch.dense), pooled_BFD))
            labels.append(owned_tensor(batch.labels))
            num_rows += batch.global_size
            if config.max_rows and num_rows >= config.max_rows:
                break
    model.train()
    all_scores = torch.cat(collectives.gather(torch.cat(scores))).numpy()
    all_labels = torch.cat(collectives.gather(torch.cat(labels))).numpy()
    return HeldOutScore(
        auc=auc(all_scores, all_labels),
        normalized_entropy=normalized_entropy(all_scores, all_labels),
        num_rows=len(all_labels),
    )
