"""Score the held-out rows, at the end or every so many steps; the ranks share the work."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import torch
from torch import Tensor

from ett.trainer.auc import auc
from ett.trainer.comm.collectives import Collectives
from ett.trainer.config import EvalConfig
from ett.trainer.data.recipe_reader import RecipeReader
from ett.trainer.dense.device import moved
from ett.trainer.dense.owned_tensor import owned_tensor
from ett.trainer.dense.recipe_model import RecipeModel
from ett.trainer.normalized_entropy import normalized_entropy
from ett.trainer.sparse.exchange import STOP


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutScore:
    """NaN where the rows are of one class, or none at all."""

    auc: float
    normalized_entropy: float
    num_rows: int

    def as_json(self) -> dict[str, float | int | None]:
        """JSON has no NaN: what is none is null."""
        has_score = not math.isnan(self.auc)
        return {
            "auc": self.auc if has_score else None,
            "normalized_entropy": self.normalized_entropy if has_score else None,
            "held_out_rows": self.num_rows,
        }


def held_out_score(
    config: EvalConfig,
    model: RecipeModel,
    reader: RecipeReader,
    collectives: Collectives,
    stop_requested: Callable[[], bool],
) -> HeldOutScore | None:
    """Return the score over the held-out rows, the first config.max_rows of them or all: the same on every rank.

    None where a rank was asked to stop meanwhile, which all ranks learn with the same batch. Training is not touched:
    the reader's cursor, the rows and the dropout masks of later steps are what they would have been.
    """
    model.eval()
    try:
        parts = _scored_batches(config, model, reader, stop_requested)
    finally:
        model.train()
    if parts is None:
        return None
    all_scores, all_labels = (torch.cat(collectives.gather(part)).numpy() for part in parts)
    return HeldOutScore(
        auc=auc(all_scores, all_labels),
        normalized_entropy=normalized_entropy(all_scores, all_labels),
        num_rows=len(all_labels),
    )


def _scored_batches(
    config: EvalConfig, model: RecipeModel, reader: RecipeReader, stop_requested: Callable[[], bool]
) -> tuple[Tensor, Tensor] | None:
    """Return this rank's logits and labels; None where all ranks agreed to stop."""
    device = next(model.parameters()).device
    scores, labels = [torch.empty(0)], [torch.empty(0)]
    num_rows = 0
    with torch.no_grad(), closing(reader.heldout_batches(config.batch_size)) as batches:
        for batch in batches:
            looked_up = model.ebc.look_up(batch.features, STOP if stop_requested() else 0)
            if looked_up.control & STOP:
                return None
            sparse = looked_up.inputs.leaves(slice(0, len(batch.labels)), device)
            scores.append(model(moved(owned_tensor(batch.dense), device), sparse).cpu())
            labels.append(owned_tensor(batch.labels))
            num_rows += batch.global_size
            if config.max_rows and num_rows >= config.max_rows:
                break
    return torch.cat(scores), torch.cat(labels)
