"""What becomes of tables and dense tensors under [checkpoint.migrate]: all of it is in the plan, or it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ett.checkpoint.digest import ColumnGroup
from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.migration import ModelTable, SavedTable, plan_dense, plan_tables
from ett.checkpoint.table_segments import TableSpec
from ett.errors import ConfigError

NAMES = ("a", "b", "c", "d", "e")


def spec(name: str, dim: int = 4, state: str = "sum", dtype: str = "float32") -> TableSpec:
    groups = (ColumnGroup("weight", dtype, dim), ColumnGroup(f"state:{state}", "float32", 1))
    return TableSpec(table_id="t0000", name=name, dim=dim, groups=groups)


def saved(name: str, max_id: int = 9, **more: int) -> SavedTable:
    return SavedTable(spec=spec(name, **more), num_rows=10, max_id=max_id)


def own(name: str, bound: int = 0, *, is_fixed: bool = False, **more: int) -> ModelTable:
    return ModelTable(spec=spec(name, **more), bound=bound, is_fixed=is_fixed)


tables = st.sets(st.sampled_from(NAMES))


@given(theirs=tables, ours=tables, data=st.data())
def test_every_table_of_both_sides_is_in_the_plan_once(theirs: set[str], ours: set[str], data: st.DataObject) -> None:
    gone, new = sorted(theirs - ours), sorted(ours - theirs)
    num_renamed = data.draw(st.integers(0, min(len(gone), len(new))))
    config = MigrateConfig(
        rename=dict(zip(gone[:num_renamed], new[:num_renamed], strict=True)),
        drop=tuple(gone[num_renamed:]),
        add=tuple(new[num_renamed:]),
    )
    plan = plan_tables([saved(name) for name in sorted(theirs)], [own(name) for name in sorted(ours)], config)
    assert sorted([m.saved.name for m in plan.moves] + [t.spec.name for t in plan.dropped]) == sorted(theirs)
    assert sorted([m.target.name for m in plan.moves] + list(plan.added)) == sorted(ours)
    assert [m.change for m in plan.moves if m.saved.name != m.target.name] == ["renamed"] * num_renamed


@pytest.mark.slow
@given(theirs=tables, ours=tables)
def test_what_is_not_named_is_refused_and_the_answer_names_it(theirs: set[str], ours: set[str]) -> None:
    try:
        plan_tables([saved(name) for name in theirs], [own(name) for name in ours], MigrateConfig())
    except ConfigError as err:
        assert err.code == "F008"
        assert all(f'"{name}"' in err.do and f"table {name} is in" in err.fact for name in theirs ^ ours)
    else:
        assert theirs == ours


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_tables_of_the_commit_never_become_one(order: tuple[str, str]) -> None:
    theirs = [saved(name) for name in order]
    with pytest.raises(ConfigError, match="table b is in the commit, and so is table a, which becomes it") as raised:
        plan_tables(theirs, [own("b")], MigrateConfig(rename={"a": "b"}))
    assert (raised.value.code, 'drop = ["b"]' in raised.value.do) == ("F008", True)
    (move,) = plan_tables(theirs, [own("b")], MigrateConfig(rename={"a": "b"}, drop=("b",))).moves
    assert (move.saved.name, move.target.name) == ("a", "b")
    swapped = plan_tables(theirs, [own("a"), own("b")], MigrateConfig(rename={"a": "b", "b": "a"}))
    assert {(move.saved.name, move.target.name) for move in swapped.moves} == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    ("theirs", "ours", "key", "fact"),
    [
        (saved("a"), own("a", dim=8), "resize", "weight float32 x 8"),
        (saved("a"), own("a", bound=5), "resize", "takes ids below 5"),
        (saved("a"), own("a", bound=20, is_fixed=True), "resize", "the commit has 10"),
        (saved("a"), own("a", state="exp_avg"), "drop", "state:exp_avg"),  # type: ignore[arg-type]
        (saved("a"), own("a", dtype="bfloat16"), "drop", "bfloat16"),  # type: ignore[arg-type]
    ],
)
def test_a_table_that_does_not_fit_is_refused_until_it_is_named(
    theirs: SavedTable, ours: ModelTable, key: str, fact: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_tables([theirs], [ours], MigrateConfig())
    assert fact in raised.value.fact
    assert f'{key} = ["a"]' in raised.value.do
    config = MigrateConfig(resize=("a",)) if key == "resize" else MigrateConfig(drop=("a",), add=("a",))
    plan = plan_tables([theirs], [ours], config)
    assert [move.change for move in plan.moves] == (["resized"] if key == "resize" else [])
    assert plan.added == (() if key == "resize" else ("a",))


def test_a_larger_bound_needs_no_name() -> None:
    (move,) = plan_tables([saved("a")], [own("a", bound=11)], MigrateConfig()).moves
    assert (move.change, move.bound) == ("same", 0)


@pytest.mark.parametrize(
    "config",
    [
        MigrateConfig(add=("x",)),
        MigrateConfig(drop=("x",)),
        MigrateConfig(resize=("x",)),
        MigrateConfig(rename={"x": "a"}),
        MigrateConfig(rename={"a": "x"}),
    ],
)
def test_a_name_that_is_nowhere_is_refused(config: MigrateConfig) -> None:
    with pytest.raises(ConfigError, match="names table 'x'"):
        plan_tables([saved("a")], [own("a")], config)


def test_what_contradicts_itself_is_no_config() -> None:
    for wrong in ({"add": ("a", "a")}, {"rename": {"a": "c", "b": "c"}}, {"drop": ("a",), "rename": {"a": "b"}}):
        with pytest.raises(ConfigError):
            MigrateConfig(**wrong)  # type: ignore[arg-type]


def test_dense_tensors_that_are_the_same_are_taken_and_others_must_be_named() -> None:
    theirs = {"bottom.weight": "float32 [2, 3]", "top.weight": "float32 [4, 4]", "old": "float32 [1]"}
    ours = {"bottom.weight": "float32 [2, 3]", "top.weight": "float32 [5, 4]", "top.bias": "float32 [5]"}
    with pytest.raises(ConfigError) as raised:
        plan_dense(theirs, ours, MigrateConfig())
    assert "dense tensor old is float32 [1] in the commit, not in the model" in raised.value.fact
    assert 'reset = ["old", "top.bias", "top.weight"]' in raised.value.do
    move = plan_dense(theirs, ours, MigrateConfig(reset=("top.*", "old")))
    assert (move.taken, move.anew, move.left) == (("bottom.weight",), ("top.bias", "top.weight"), ("old",))
    with pytest.raises(ConfigError, match="no dense tensor is named so"):
        plan_dense(theirs, ours, MigrateConfig(reset=("*", "nothing.*")))
