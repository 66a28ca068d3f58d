"""Score the held-out rows at the end; the ranks share the work."""

from __future__ import annotations

import torch

from ett.trainer.auc import auc
from ett.trainer.comm.collectives import Collectives
from ett.trainer.data.criteo import CriteoReader
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.loop import owned_tensor


def held_out_auc(model: Dlrm, reader: CriteoReader, collectives: Collectives, batch_size: int) -> tuple[float, int]:
    """Return the AUC over all held-out rows, the same on every rank, and their number.

    Args:
        batch_size: samples of all ranks scored at once.
    """
    model.eval()
    scores, labels = [torch.empty(0)], [torch.empty(0)]
    with torch.no_grad():
        for batch in reader.heldout_batches(batch_size):
            pooled_BFD = model.ebc.pooled(model.ebc.look_up(batch.ids))
            scores.append(model(owned_tensor(batch.dense), pooled_BFD))
            labels.append(owned_tensor(batch.labels))
    model.train()
    all_scores = torch.cat(collectives.gather(torch.cat(scores))).numpy()
    all_labels = torch.cat(collectives.gather(torch.cat(labels))).numpy()
    return auc(all_scores, all_labels), len(all_labels)
