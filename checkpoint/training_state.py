"""What of a training process goes into a checkpoint: sparse tables by id, and the replicated dense rest by name."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from ett.checkpoint.dense_reader import Like
from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.dtypes import ITEM_BYTES
from ett.checkpoint.migration import ModelTable
from ett.checkpoint.optimizer_state import load_optimizer_tree, optimizer_tree, optimizers_of
from ett.checkpoint.sharded_tensor import copy_whole, has_a_box, is_sharded, whole
from ett.checkpoint.state_tree import decode_state, encode_state
from ett.checkpoint.table import TableRows, TableShard
from ett.checkpoint.table_segments import Bytes, Rows, TableSpec
from ett.checkpoint.table_writer import Gather, RowsToWrite
from ett.checkpoint.tensor_bytes import bytes_tensor
from ett.checkpoint.torch_tables import TorchTables
from ett.errors import ConfigError, RestoreFailed

_STATE_OF = re.compile(r"optimizer(?:\.\d+)?\.state\.(.+)\.[^.]+")  # a parameter; one state of it
_EXTRA_STATE = "_extra_state"


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class TakesState(Protocol):
    """What a commit is loaded into, by the names that it has there."""

    shards: dict[str, TableShard]

    def expect_tables(self, saved: dict[TableSpec, int]) -> None: ...

    def sharded_like(self) -> Like: ...

    def owned(self, spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.bool_]: ...

    def import_rows(self, spec: TableSpec, rows: Rows) -> None: ...

    def load_dense(self, tensors: dict[str, Tensor], tree: dict[str, Any]) -> None: ...


class TrainingState:
    """The live objects of one rank; reads and writes them, owns none."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Stateful | Sequence[Optimizer] | None = None,
        loader: Stateful | None = None,
        extra: Stateful | None = None,
        *,
        is_tracked: bool = False,
        is_copy: bool = False,
    ) -> None:
        """Args: is_tracked: whether a part of a table may be saved, so that large embeddings of torch are better not
        dense. is_copy: whether another rank saves what is the same on every rank.
        """
        self._model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._optimizer, self._loader, self._extra = optimizer, loader, extra
        self._own_shards, self._shard_prefixes = _find_shards(self._model)
        self._torch_tables = TorchTables(
            self._model, optimizers_of(optimizer), taken=self._own_shards.keys(), is_tracked=is_tracked, is_copy=is_copy
        )
        self.settle()

    def settle(self) -> None:
        """Look, between two steps, at which tables there are to save, and what a row of each is."""
        self._torch_tables.settle()
        self._use_tables()

    def _use_tables(self) -> None:
        self.shards: dict[str, TableShard] = {**self._torch_tables.present, **self._own_shards}
        self.specs = tuple(
            _spec(f"t{number:04d}", self.shards[name]) for number, name in enumerate(sorted(self.shards))
        )

    def names_of_tables(self) -> set[str]:
        """Return the names of the tables, and of the embeddings that are dense and could be tables."""
        return {*self.shards, *self._torch_tables.num_rows()}

    def all_rows(self, spec: TableSpec) -> RowsToWrite:
        """Return this rank's rows of a table, to be gathered. Raises: ConfigError: ids are not as the protocol says."""
        shard = self.shards[spec.name]
        exported = shard.begin_export()
        if exported.dtype != torch.int64 or exported.dim() != 1:
            raise ConfigError(f"table {spec.name} exported ids of {exported.dtype}", expected="int64 [N]")
        ids = exported.cpu().numpy()
        if not (ids[1:] > ids[:-1]).all():
            raise ConfigError(f"table {spec.name} exported ids that do not ascend", expected="each id once, ascending")
        return RowsToWrite(spec=spec, kind="base", ids=ids, gather=self.gatherer(spec))

    def gatherer(self, spec: TableSpec) -> Gather:
        """Return what copies rows of this rank, by their ids, ascending."""
        shard = self.shards[spec.name]

        def gather(wanted: NDArray[np.int64], columns: tuple[Bytes, ...]) -> None:
            shard.gather(torch.from_numpy(wanted), _table_rows(spec, Rows(wanted, columns)))

        return gather

    def owned(self, spec: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which ids are this rank's."""
        mask: NDArray[np.bool_] = self.shards[spec.name].owned(torch.from_numpy(ids)).cpu().numpy()
        return mask

    def import_rows(self, spec: TableSpec, rows: Rows) -> None:
        """Add rows to this rank's shard."""
        self.shards[spec.name].import_rows(_table_rows(spec, rows))

    def follow(self, saved: dict[str, TableSpec], *, is_whole: bool = True) -> None:
        """Take what a commit has as tables for tables, where this model can.

        Args: saved: by this model's names. is_whole: whether it has every row of those that always have as many.
        """
        self._torch_tables.expect(saved, is_whole=is_whole)
        self._use_tables()

    def model_tables(self) -> list[ModelTable]:
        """Return the tables as they are taken now, each with the ids that it has room for."""
        fixed = self._torch_tables.num_rows()
        bounds = {
            spec.name: fixed.get(spec.name, getattr(self.shards[spec.name], "num_rows", 0)) for spec in self.specs
        }
        return [ModelTable(spec=s, bound=bounds[s.name], is_fixed=s.name in fixed) for s in self.specs]

    def expect_tables(self, saved: dict[TableSpec, int]) -> None:
        """Go on with the tables of a commit. Args: saved: each with its number of rows.

        Raises: RestoreFailed: with every difference between the saved tables and this model's.
        """
        rows = self._torch_tables.num_rows()
        theirs = {
            spec.name: _row_layout(spec, num_rows if spec.name in rows else None) for spec, num_rows in saved.items()
        }
        self.follow({spec.name: spec for spec in saved})
        ours = {spec.name: _row_layout(spec, rows.get(spec.name)) for spec in self.specs}
        _refuse(_differences("table", theirs, ours, str))

    @property
    def is_sharded(self) -> bool:
        """Return whether this rank has parts of parameters; every rank then calls `dense`."""
        return any(is_sharded(parameter) for parameter in self._model.parameters())

    def dense(self, *, keep_parts: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the dense state: named tensors, sharing the live memory, and the JSON tree that refers to them.

        Args: keep_parts: leave tensors sharded of which each rank has a box; others are brought together, by all ranks.
        """
        tensors, tree = self._dense()
        return {n: t if keep_parts and has_a_box(t) else whole(t) for n, t in tensors.items()}, tree

    def sharded_like(self) -> Like:
        """Return which live sharded tensor a saved one of a name and shape is for; None: it is wanted whole."""
        if not self.is_sharded:
            return lambda name, shape: None
        live, _ = self._dense()
        # The state of an optimizer that has not stepped is not there yet; it is laid out as its parameters are.
        parameters = dict(self._model.named_parameters())

        def like(name: str, shape: tuple[int, ...]) -> Tensor | None:
            of_state = _STATE_OF.fullmatch(name)
            found = live.get(name, parameters.get(of_state[1]) if of_state else None)
            return found if has_a_box(found) and found is not None and tuple(found.shape) == shape else None

        return like

    def _dense(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        tree = {"model": encode_state(self._model_state(), "model", tensors)}
        tree["optimizer"] = optimizer_tree(self._optimizer, self._model, tensors, self._torch_tables.without_rows)
        for part, owner in (("extra", self._extra), ("loader", self._loader)):
            tree[part] = None if owner is None else encode_state(owner.state_dict(), part, tensors)
        return tensors, tree

    def load_dense(self, tensors: dict[str, Tensor], tree: dict[str, Any]) -> None:
        """Set model, optimizer, extra and loader to a saved dense state, bit for bit.

        Raises: RestoreFailed: names, dtypes, shapes or parts differ; lists the differences, changes nothing.
        """
        self.load_decoded(decode_state(tree, tensors))

    def decoded(self) -> dict[str, Any]:
        """Return the live dense state in the form of a saved one that was decoded."""
        tensors, tree = self._dense()
        found: dict[str, Any] = decode_state(tree, tensors)
        return found

    def load_decoded(self, saved: dict[str, Any], *, anew: Set[str] = frozenset()) -> None:
        """As `load_dense`. Args: anew: names of the model's tensors that stay as they are."""
        current = {name: value for name, value in self._model_state().items() if name not in anew}
        _refuse(_differences("tensor", saved["model"], current, _describe))
        owners = {"optimizer": self._optimizer, "extra": self._extra, "loader": self._loader}
        _refuse(
            [
                f"{part}: saved without, asked for now" if saved[part] is None else f"{part}: saved, not asked for now"
                for part, owner in owners.items()
                if (saved[part] is None) != (owner is None)
            ]
        )
        if self._optimizer is not None:
            self._torch_tables.put_rows(optimizers_of(saved["optimizer"]))
            load_optimizer_tree(self._optimizer, self._model, saved["optimizer"])
        with torch.no_grad():
            for name, value in saved["model"].items():
                if name.endswith(_EXTRA_STATE):
                    self._model.get_submodule(name.removesuffix(_EXTRA_STATE).rstrip(".")).set_extra_state(value)
                else:
                    copy_whole(value, into=current[name])
        if self._extra is not None:
            self._extra.load_state_dict(saved["extra"])
        if self._loader is not None:
            self._loader.load_state_dict(saved["loader"])

    def _model_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._model.state_dict()
        weights = self._torch_tables.weight_names
        return {n: v for n, v in state.items() if not n.startswith(self._shard_prefixes) and n not in weights}


def _table_rows(spec: TableSpec, rows: Rows) -> TableRows:
    """Return rows as tensors over the same memory."""
    weights, *states = [
        bytes_tensor(column, group.dtype, (len(rows.ids), group.width))
        for group, column in zip(spec.groups, rows.columns, strict=True)
    ]
    named = {group.name.removeprefix("state:"): state for group, state in zip(spec.groups[1:], states, strict=True)}
    return TableRows(ids=torch.from_numpy(rows.ids), weights=weights, states=named)


def _find_shards(model: nn.Module) -> tuple[dict[str, TableShard], tuple[str, ...]]:
    shards: dict[str, TableShard] = {}
    prefixes = []
    for prefix, module in model.named_modules():
        if not isinstance(module, TableShard):
            continue
        if module.name in shards:
            raise ConfigError(f"two tables are named {module.name!r}", expected="one canonical name for each table")
        shards[module.name] = module
        prefixes.append(f"{prefix}." if prefix else "")
    return shards, tuple(prefixes)


def _spec(table_id: str, shard: TableShard) -> TableSpec:
    groups = [ColumnGroup("weight", shard.weight_dtype, shard.dim)]
    groups += [ColumnGroup(f"state:{state.name}", state.dtype, state.width) for state in shard.states]
    for group in groups:
        if group.dtype not in ITEM_BYTES or group.width < 1:
            raise ConfigError(
                f"table {shard.name}: {group.name} is {group.dtype} x {group.width}",
                expected="a dtype of " + ", ".join(ITEM_BYTES) + " and at least one element per row",
            )
    return TableSpec(table_id=table_id, name=shard.name, dim=shard.dim, groups=tuple(groups))


def _describe(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _row_layout(spec: TableSpec, num_rows: int | None) -> str:
    """Args: num_rows: of a table that never has more nor fewer."""
    layout = ", ".join(f"{group.name} {group.dtype} x {group.width}" for group in spec.groups)
    return layout if num_rows is None else f"{num_rows} rows of {layout}"


def _differences(what: str, saved: dict[str, Any], current: dict[str, Any], describe: Any) -> list[str]:
    found = [f"{what} {name}: only in the checkpoint" for name in sorted(saved.keys() - current.keys())]
    found += [f"{what} {name}: not in the checkpoint" for name in sorted(current.keys() - saved.keys())]
    changed: dict[tuple[str, str], list[str]] = {}
    for name in sorted(saved.keys() & current.keys()):
        was, now = describe(saved[name]), describe(current[name])
        if was != now:
            changed.setdefault((was, now), []).append(name)
    for (was, now), names in changed.items():
        which = f"{what} {names[0]}" if len(names) == 1 else f"{len(names)} {what}s ({names[0]}, …)"
        found.append(f"{which}: {was} in the checkpoint, {now} in the model")
    return found


def _refuse(differences: list[str]) -> None:
    if differences:
        shown = "; ".join(differences[:8]) + (f"; and {len(differences) - 8} more" if len(differences) > 8 else "")
        raise RestoreFailed(
            f"the checkpoint does not fit this model: {shown}",
            do="restore with the recipe that saved it, or start another job with --resume never",
        )
