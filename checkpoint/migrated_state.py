"""A training state that takes over the commit of another model, as [checkpoint.migrate] says."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit, TableEntry, commit_name, parse_commit
from ett.checkpoint.dense_reader import Like
from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.migration import MigrationPlan, SavedTable, TableMove, plan_dense, plan_tables
from ett.checkpoint.ranks import gather_or_raise, on_rank_zero
from ett.checkpoint.restore import load_commit
from ett.checkpoint.save import SavePlace
from ett.checkpoint.source import Source
from ett.checkpoint.state_tree import decode_state
from ett.checkpoint.table import TableShard, is_copy
from ett.checkpoint.table_segments import Bytes, Rows, TableSpec
from ett.checkpoint.training_state import TrainingState
from ett.errors import ConfigError, RestoreFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What a job began with, and where it stands then."""

    commit: Commit
    step: int
    cursor: int


def take_over(place: SavePlace, state: TrainingState, source: Source, config: MigrateConfig) -> Taken:
    """Load the commit that another job has made; collective.

    Raises, on every rank alike:
        ConfigError: it does not fit, and what differs is not named (F008); its data is not this job's.
        NotFound: it is gone. RestoreFailed: it does not verify.
    """
    store = source.open()
    reading = replace(place, store=store)
    text = on_rank_zero(place.ranks, lambda: source.read(store).to_bytes().decode())
    commit = parse_commit(text.encode(), commit_name(source.seq))
    migrated = MigratedState(state, config, is_first=place.ranks.rank == 0)
    with ExitStack() as held:

        def hold() -> Json:
            held.enter_context(source.held(store, commit, place.run.job or ""))
            return None

        on_rank_zero(place.ranks, hold)
        kept: list[Commit] = []
        gather_or_raise(place.ranks, lambda: kept.append(migrated.adapted(commit)))
        loaded = load_commit(reading, migrated, kept[0])
    if isinstance(loaded, str):
        raise RestoreFailed(
            f"{source.where} does not verify: {loaded}",
            expected="a commit whose files are whole",
            do="`ett checkpoint verify` shows the damage; begin with another step: --from JOB@STEP",
        )
    log.info("began with commit %d, %s", commit.seq, source.where)
    is_continued = config.position == "continue"
    return Taken(commit=commit, step=commit.step if is_continued else 0, cursor=commit.cursor if is_continued else 0)


def saved_tables(tables: Sequence[TableEntry]) -> list[SavedTable]:
    return [
        SavedTable(spec=t.spec, num_rows=t.num_rows, max_id=max((file.max_id for file in t.files), default=-1))
        for t in tables
    ]


class MigratedState:
    """What `load_commit` loads into, by the commit's names: `adapted` first."""

    def __init__(self, state: TrainingState, config: MigrateConfig, *, is_first: bool) -> None:
        """Args: is_first: of the ranks, of which one reads what is left behind of a table."""
        self._state, self._config, self._is_first = state, config, is_first
        self._moves: dict[str, TableMove] = {}
        self._plan: MigrationPlan | None = None
        self.shards: dict[str, TableShard] = {}

    def adapted(self, commit: Commit) -> Commit:
        """Return the commit without the tables that are left behind. Raises: ConfigError: see `plan_tables`."""
        state, config = self._state, self._config
        specs = {table.spec.name: table.spec for table in commit.tables if table.spec.name not in config.drop}
        state.follow({config.rename.get(name, name): spec for name, spec in specs.items()}, is_whole=False)
        self._plan = plan_tables(saved_tables(commit.tables), state.model_tables(), config)
        self._moves = {move.saved.name: move for move in self._plan.moves}
        self.shards = {name: state.shards[move.target.name] for name, move in self._moves.items()}
        return replace(commit, tables=tuple(table for table in commit.tables if table.spec.name in self._moves))

    def expect_tables(self, saved: dict[TableSpec, int]) -> None:
        """Nothing is left to be refused: `adapted` was asked."""

    def sharded_like(self) -> Like:
        return self._state.sharded_like()

    def owned(self, spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        move = self._moves[spec.name]
        mask = self._state.owned(move.target, ids)
        if move.bound:  # what is left behind is read and verified as well: by one rank, and by those that have copies
            mask[ids >= move.bound] = self._is_first or is_copy(self.shards[spec.name])
        return mask

    def import_rows(self, spec: TableSpec, rows: Rows) -> None:
        move = self._moves[spec.name]
        if move.bound:
            kept = rows.ids < move.bound
            rows = Rows(rows.ids[kept], tuple(column[kept] for column in rows.columns))
        if move.saved.groups != move.target.groups:
            groups = zip(rows.columns, move.target.groups, strict=True)
            rows = Rows(rows.ids, tuple(_resized(column, group.row_bytes) for column, group in groups))
        if len(rows.ids):
            self._state.import_rows(move.target, rows)

    def load_dense(self, tensors: dict[str, Tensor], tree: dict[str, Any]) -> None:
        """Raises: ConfigError: see `plan_dense`; or the reader's, where the data is not that of the commit."""
        saved, current = decode_state(tree, tensors), self._state.decoded()
        move = plan_dense(described(saved["model"]), described(current["model"]), self._config)
        if saved["optimizer"] is not None and current["optimizer"] is not None:
            left = saved["model"].keys() - set(move.taken)
            saved["optimizer"] = self._optimizer(saved["optimizer"], current["optimizer"], left, set(move.anew))
        saved["model"] = {name: saved["model"][name] for name in move.taken}
        if self._config.position == "restart":
            saved["loader"] = current["loader"]
        try:
            self._state.load_decoded(saved, anew=set(move.anew))
        except ConfigError as err:
            if err.code != "F004":
                raise
            do = 'begin with the first sample of the new data: checkpoint.migrate.position = "restart"'
            raise ConfigError(err.fact, expected=err.expected, do=do, code=err.code) from err

    def _optimizer(self, saved: Any, current: Any, left: Set[str], anew: Set[str]) -> Any:
        """Args: left, anew: the dense tensors of the commit, and of this model, whose state is not taken over."""
        assert self._plan is not None
        return merged(
            saved,
            current,
            left=left | {f"{table.spec.name}.weight" for table in self._plan.dropped},
            anew=anew | {f"{name}.weight" for name in self._plan.added},
            renamed={f"{move.saved.name}.weight": f"{move.target.name}.weight" for move in self._plan.moves},
        )


def merged(saved: Any, current: Any, *, left: Set[str], anew: Set[str], renamed: Mapping[str, str]) -> Any:
    """Return an optimizer's saved state with the live one's for what begins anew, by the names of parameters.

    Args: left, renamed: of the saved state. anew: of the live one; a name may be another parameter's there.
    """
    inner = partial(merged, left=left, anew=anew, renamed=renamed)
    if isinstance(saved, dict) and isinstance(current, dict):
        kept = {renamed.get(name, name): value for name, value in saved.items() if name not in left}
        found = {name: inner(value, current.get(name)) for name, value in kept.items()}
        found |= {name: value for name, value in current.items() if name in anew}
        if "params" in found and "params" in current:  # of a group: which parameters it has
            found["params"] = current["params"]
        return found
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        return [inner(*pair) for pair in zip(saved, current, strict=True)]
    return saved


def described(named: dict[str, Any]) -> dict[str, str]:
    """Return dtype and shape of each tensor, and the type of what is none."""
    return {
        name: f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
        for name, value in named.items()
    }


def _resized(column: Bytes, row_bytes: int) -> Bytes:
    """Return rows of other widths: their first bytes, then zeros."""
    resized = np.zeros((len(column), row_bytes), np.uint8)
    width = min(row_bytes, column.shape[1])
    resized[:, :width] = column[:, :width]
    return resized
