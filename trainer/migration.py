"""What a recipe's model would take over of another job's commit, found without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ett.checkpoint.config import CheckpointConfig
from ett.checkpoint.dense_document import parse_document
from ett.checkpoint.dense_entry import DOCUMENT_NAME, DenseEntry
from ett.checkpoint.migrated_state import described, saved_tables
from ett.checkpoint.migration import DenseMove, plan_dense, plan_tables
from ett.checkpoint.restore_checks import read_whole
from ett.checkpoint.source import Source
from ett.checkpoint.store import Store
from ett.checkpoint.training_state import TrainingState
from ett.section import build_section
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.job_recipe import build_recipe
from ett.trainer.rank_start import build_model


def plan_migration(sections: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan as JSON, with the lines for a person under "lines".

    Args: sections: a resolved recipe. source: as `ett.recovery.lineage.find_source` returns it.
    Raises: ConfigError (F008): the commit does not fit the model, and what differs is not named.
    """
    recipe, found = build_recipe(sections), Source(**source)
    config = build_section(CheckpointConfig, sections.get("checkpoint", {}), "checkpoint").migrate
    store = found.open()
    commit = found.read(store)
    state = TrainingState(build_model(recipe.trainer, LocalCollectives(), data=recipe.data))
    tables = plan_tables(saved_tables(commit.tables), state.model_tables(), config)
    lines = [("begins with", f"commit {commit.seq}, {found.where}"), *tables.rows()]
    plan: dict[str, Any] = {"position": config.position, **tables.as_json()}
    dense = None if commit.dense is None else _dense_tensors(store, commit.dense)
    if dense is not None:
        move = plan_dense(dense, described(state.decoded()["model"]), config)
        plan["dense"] = {"take": list(move.taken), "reset": list(move.anew), "drop": list(move.left)}
        lines.append(("dense", _dense_line(move)))
    is_continued = config.position == "continue"
    where = f"step {commit.step}, sample {commit.cursor:,}" if is_continued else "step 0, sample 0 of its own data"
    lines.append(("position", where))
    return plan | {"lines": lines}


def _dense_tensors(store: Store, dense: DenseEntry) -> dict[str, str] | None:
    """Return dtype and shape of each dense tensor of the model; None of a form that older commits have."""
    if dense.dcp_version is None:
        return None
    stored = dense.named(DOCUMENT_NAME)
    tensors, _ = parse_document(read_whole(store, stored), dense.identity, stored.path)
    named = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in tensors}
    return {name.removeprefix("model."): text for name, text in named.items() if name.startswith("model.")}


def _dense_line(move: DenseMove) -> str:
    taken = f"{len(move.taken)} tensors as they are"
    anew = f"; anew: {', '.join(move.anew)}" if move.anew else ""
    left = f"; left behind: {', '.join(move.left)}" if move.left else ""
    return taken + anew + left
