"""Which tables and dense tensors of a commit become which of another model: a plan, or a refusal; needs no torch.

Nothing is taken, left or changed that neither fits as it is nor is named in [checkpoint.migrate].
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.table_segments import TableSpec
from ett.errors import ConfigError
from ett.section import nearest

_SHOWN = 6
Change = Literal["same", "renamed", "resized", "renamed and resized"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTable:
    """A table of a commit. max_id: no row or tombstone has a higher one; -1 where it has none."""

    spec: TableSpec
    num_rows: int
    max_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTable:
    """A table of the model that goes on. bound: ids are below it; 0: any. is_fixed: it always has so many rows."""

    spec: TableSpec
    bound: int = 0
    is_fixed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TableMove:
    saved: TableSpec
    target: TableSpec
    num_rows: int
    change: Change
    bound: int  # rows of ids from here on are left behind; 0: none


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseMove:
    """Dense tensors by name: those that are taken over, and those of the model that begin anew."""

    taken: tuple[str, ...]
    anew: tuple[str, ...]
    left: tuple[str, ...]  # of the commit alone


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationPlan:
    moves: tuple[TableMove, ...]
    added: tuple[str, ...]
    dropped: tuple[SavedTable, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Return label and text of each line that a person is shown; what is the same is counted."""
        same = [move for move in self.moves if move.change == "same"]
        lines = [("takes", f"{len(same)} tables as they are, {sum(move.num_rows for move in same):,} rows")]
        for move in self.moves:
            if move.change != "same":
                lines.append((move.change, _moved(move)))
        lines += [("adds", f"{name}, from its initial values") for name in self.added]
        return lines + [("drops", f"{table.spec.name}, {table.num_rows:,} rows") for table in self.dropped]

    def as_json(self) -> dict[str, object]:
        tables = [
            {"from": move.saved.name, "to": move.target.name, "rows": move.num_rows, "change": move.change}
            for move in self.moves
        ]
        return {"tables": tables, "add": list(self.added), "drop": [table.spec.name for table in self.dropped]}


def plan_tables(saved: Sequence[SavedTable], model: Sequence[ModelTable], config: MigrateConfig) -> MigrationPlan:
    """Return what becomes of every table.

    Raises: ConfigError (F008): a table has nowhere to go, comes from nowhere or does not fit, and is not named; or what
        is named is not there. The next move is in it, as lines of a recipe.
    """
    theirs, ours = {table.spec.name: table for table in saved}, {table.spec.name: table for table in model}
    _check_names(theirs, ours, config)
    refused: list[_Refusal] = []
    moves: list[TableMove] = []
    origin = {new: old for old, new in config.rename.items()}
    for name, table in theirs.items():
        target = ours.get(config.rename.get(name, name))
        if name in config.drop:
            continue
        if target is None or (target.spec.name in config.add):
            refused.append(_Refusal("drop", name, f"table {name} is in the commit alone"))
        elif origin.get(target.spec.name, name) != name:
            fact = f"table {name} is in the commit, and so is table {origin[name]}, which becomes it"
            refused.append(_Refusal("drop", name, fact))
        else:
            moves.append(_move(table, target, config, refused))
    filled = {move.target.name for move in moves}
    for name in ours:
        if name not in filled and name not in config.add:
            refused.append(_Refusal("add", name, f"table {name} is in the model alone"))
    _refuse(refused)
    return MigrationPlan(
        moves=tuple(moves),
        added=tuple(name for name in ours if name not in filled),
        dropped=tuple(table for name, table in theirs.items() if name in config.drop),
    )


def plan_dense(saved: Mapping[str, str], model: Mapping[str, str], config: MigrateConfig) -> DenseMove:
    """Return which dense tensors are taken over. Args: saved, model: dtype and shape of each, by its name.

    Raises: ConfigError (F008): one is on one side alone or of another shape, and not named; or a pattern names none.
    """
    names = sorted({*saved, *model})
    is_reset = {name: any(fnmatchcase(name, pattern) for pattern in config.reset) for name in names}
    for pattern in config.reset:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"checkpoint.migrate.reset names {pattern!r}, and no dense tensor is named so",
                expected=nearest(pattern, names),
                code="F008",
            )
    refused = []
    for name in names:
        if saved.get(name) != model.get(name) and not is_reset[name]:
            where = f"{saved.get(name, 'not')} in the commit, {model.get(name, 'not')} in the model"
            refused.append(_Refusal("reset", name, f"dense tensor {name} is {where}"))
    _refuse(refused)
    return DenseMove(
        taken=tuple(name for name in names if not is_reset[name]),
        anew=tuple(name for name in names if is_reset[name] and name in model),
        left=tuple(name for name in names if is_reset[name] and name not in model),
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    key: str  # of [checkpoint.migrate], that would allow it
    name: str
    fact: str


def _move(table: SavedTable, target: ModelTable, config: MigrateConfig, refused: list[_Refusal]) -> TableMove:
    saved, own = table.spec, target.spec
    theirs, ours = _columns(saved), _columns(own)
    is_cut = bool(target.bound) and table.max_id >= target.bound
    is_other = target.is_fixed and table.num_rows != target.bound
    is_unlike = [name for name, *_ in theirs] != [name for name, *_ in ours] or _dtypes(saved) != _dtypes(own)
    if is_unlike or (target.is_fixed and saved.dim != own.dim):
        fact = f"table {own.name} has {_layout(own)}, in the commit {saved.name} has {_layout(saved)}"
        # What is dropped of a model of plain torch is dense then, and named in reset.
        refused += [_Refusal("drop", saved.name, fact), *([] if target.is_fixed else [_Refusal("add", own.name, "")])]
    elif own.name not in config.resize:
        if theirs != ours:
            refused.append(
                _Refusal("resize", own.name, f"table {own.name} has {_layout(own)}, in the commit {_layout(saved)}")
            )
        elif is_cut or is_other:
            fact = (
                f"table {own.name} takes ids below {target.bound}, the commit has {table.num_rows} up to {table.max_id}"
            )
            refused.append(_Refusal("resize", own.name, fact))
    is_renamed, is_resized = saved.name != own.name, theirs != ours or is_cut or is_other
    change: Change = "renamed" if is_renamed else "same"
    if is_resized:
        change = "renamed and resized" if is_renamed else "resized"
    return TableMove(
        saved=saved,
        target=own,
        num_rows=table.num_rows,
        change=change,
        bound=target.bound if is_cut else 0,
    )


def _check_names(theirs: Iterable[str], ours: Iterable[str], config: MigrateConfig) -> None:
    places = (
        ("add", config.add, ours, "the model"),
        ("resize", config.resize, ours, "the model"),
        ("rename", config.rename.values(), ours, "the model"),
        ("drop", config.drop, theirs, "the commit"),
        ("rename", config.rename, theirs, "the commit"),
    )
    for key, names, known, where in places:
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"checkpoint.migrate.{key} names table {name!r}, which {where} does not have",
                    expected=nearest(name, known),
                    do="correct it, or take it out",
                    code="F008",
                )


def _refuse(refused: Sequence[_Refusal]) -> None:
    if not refused:
        return
    facts = [each.fact for each in refused if each.fact]
    more = f"; and {len(facts) - _SHOWN} more" if len(facts) > _SHOWN else ""
    named: dict[str, list[str]] = {}
    for each in refused:
        named.setdefault(each.key, []).append(each.name)
    lines = ", ".join(f"{key} = {json.dumps(names)}" for key, names in named.items())
    moved = "" if not {"drop", "add"} <= named.keys() else '; of one that has another name: rename = {"old" = "new"}'
    raise ConfigError(
        f"the commit does not fit this model: {'; '.join(facts[:_SHOWN])}{more}",
        expected="what changes to be named in [checkpoint.migrate]",
        do=f"in the recipe: [checkpoint.migrate] {lines}{moved}",
        code="F008",
    )


def _columns(spec: TableSpec) -> list[tuple[str, str, int]]:
    return [(group.name, group.dtype, group.width) for group in spec.groups]


def _dtypes(spec: TableSpec) -> list[str]:
    return [group.dtype for group in spec.groups]


def _layout(spec: TableSpec) -> str:
    return ", ".join(f"{group.name} {group.dtype} x {group.width}" for group in spec.groups)


def _moved(move: TableMove) -> str:
    name = move.target.name if move.saved.name == move.target.name else f"{move.saved.name} -> {move.target.name}"
    widths = (
        f", rows of {move.saved.dim} elements become {move.target.dim}" if move.saved.dim != move.target.dim else ""
    )
    cut = f", without ids from {move.bound:,} on" if move.bound else ""
    return f"{name}, {move.num_rows:,} rows{widths}{cut}"
