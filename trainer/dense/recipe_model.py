"""The model that a recipe names."""

from __future__ import annotations

from ett.trainer.config import TrainerConfig
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.dense.sequence_model import SequenceModel
from ett.trainer.embedding.job_tables import JobTables

RecipeModel = Dlrm | SequenceModel


def recipe_model(config: TrainerConfig, embeddings: JobTables, *, num_dense: int) -> RecipeModel:
    """Return the model with its initial weights, the same ones on every rank.

    Raises: ConfigError: the tables do not give what it needs.
    """
    kind = SequenceModel if config.model.kind == "hstu" else Dlrm
    return kind(config.model, embeddings, num_dense=num_dense, seed=config.train.seed, precision=config.dense.precision)
