"""Score the held-out rows at the end; the ranks share the work."""

from __future__ import annotations

from contextlib import closing

import torch

from ett.trainer.auc import auc
from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import EvalConfig
from ett.trainer.data.criteo import CriteoReader
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.loop import owned_tensor


def held_out_auc(config: EvalConfig, model: Dlrm, reader: CriteoReader, collectives: Collectives) -> tuple[float, int]:
    """Return the AUC over the held-out rows, the first config.max_rows of them or all, and their number.

    Both are the same on every rank.
    """
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
    return auc(all_scores, all_labels), len(all_labels)
