"""Embeddings of plain torch as tables: what a save writes of them, and that a restore misses nothing."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import Meeting, RecordingRun, ThreadRanks, raise_first, run_ranks
from test_failed_save import break_store, mend_store
from torch import nn, optim
from torch_world import NUM_ROWS, Job, Make, Model, Values, batch, rows_written

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.tensor_bytes import tensor_bytes
from ett.checkpoint.verify import verify_commit
from ett.errors import ConfigError, EttError, RestoreFailed

FAMILIES: dict[str, tuple[Make, bool]] = {
    "SGD": (lambda p: optim.SGD(p, lr=0.1), False),
    "SGD sparse": (lambda p: optim.SGD(p, lr=0.1), True),
    "momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), False),
    "nesterov": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), False),
    "Adagrad": (lambda p: optim.Adagrad(p, lr=0.1), False),
    "Adagrad sparse": (lambda p: optim.Adagrad(p, lr=0.1), True),
    "Adagrad fused": (lambda p: optim.Adagrad(p, lr=0.1, fused=True), False),
    "SparseAdam": (optim.SparseAdam, True),
    "Adam": (lambda p: optim.Adam(p, amsgrad=True), False),
    "Adam fused": (lambda p: optim.Adam(p, fused=True), False),
    "AdamW": (optim.AdamW, False),
    "Adamax": (optim.Adamax, False),
    "NAdam": (optim.NAdam, False),
    "RAdam": (optim.RAdam, False),
    "RMSprop": (lambda p: optim.RMSprop(p, momentum=0.9, centered=True), False),
    "Rprop": (optim.Rprop, False),
    "ASGD": (lambda p: optim.ASGD(p, lr=0.1), False),
    "Adadelta": (optim.Adadelta, False),
    "Adafactor": (optim.Adafactor, False),
    "LBFGS": (lambda p: optim.LBFGS(p, max_iter=2, history_size=2), False),
    "Muon": (optim.Muon, False),
}
ROW_WISE = {"SGD", "SGD sparse", "Adagrad", "Adagrad sparse", "Adagrad fused", "SparseAdam"}


def sgd(parameters: list[nn.Parameter]) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1)


def touched_rows(first: int, end: int) -> int:
    return len({int(row) for step in range(first, end) for row in batch(step)})


def opened(folder: Path, family: str, **config: Any) -> Job:
    make, is_sparse = FAMILIES[family]
    return Job(folder, make, model=Model(is_sparse=is_sparse), **config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "policy"),
    [
        *((family, "incremental") for family in FAMILIES),
        *(("SparseAdam", policy) for policy in ("adaptive", "differential", "check_n_run")),
    ],
)
def test_an_interrupted_job_ends_as_one_that_was_not(tmp_path: Path, family: str, policy: str) -> None:
    expected = opened(tmp_path / "never saved", family).train(9).values()
    first = opened(tmp_path / "job", family, policy=policy).restore()
    for _ in range(3):
        commit = first.train(2).save()
    if policy == "incremental":
        assert (sum(rows_written(commit, "items").values()) < NUM_ROWS) == (family in ROW_WISE)
    first.train(2)  # lost
    second = opened(tmp_path / "job", family, policy=policy).restore()
    assert second.next_step == 6
    assert second.train(1).save().type == "delta"
    third = opened(tmp_path / "job", family, policy=policy).restore()
    assert third.train(2).values() == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["SGD", "Adagrad", "Adam", "SparseAdam"])
def test_state_that_comes_with_the_first_step_is_saved_with_all_rows(tmp_path: Path, family: str) -> None:
    expected = opened(tmp_path / "never saved", family).train(3).values()
    first = opened(tmp_path / "job", family).restore()
    first.save()
    second = opened(tmp_path / "job", family).restore()
    before = second.save()
    assert rows_written(before, "items") == {}
    after = second.train(1).save()
    has_new_state = family in ("Adam", "SparseAdam")
    assert rows_written(after, "items") == ({"base": NUM_ROWS} if has_new_state else {"cold": touched_rows(0, 1)})
    second.train(1).save()
    third = opened(tmp_path / "job", family).restore()
    assert third.train(1).values() == expected


def test_a_save_writes_the_rows_that_a_step_changed(tmp_path: Path) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    assert rows_written(job.save(), "items") == {"base": NUM_ROWS}
    assert rows_written(job.train(2).save(), "items") == {"cold": touched_rows(1, 3)}
    assert rows_written(job.save(), "items") == {}
    for commit in CommitLog(LocalStore(tmp_path)).read_all()[0].values():
        verify_commit(LocalStore(tmp_path), commit, "load")


@pytest.mark.slow
def test_an_optimizer_of_whole_tables_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ett"):
        job = Job(tmp_path, optim.Adam).restore().train(1)
        job.save()
        for _ in range(2):
            assert rows_written(job.train(1).save(), "items") == {"cold": NUM_ROWS}
    (said,) = [record.getMessage() for record in caplog.records if "items" in record.getMessage()]
    assert "Adam" in said and "each save writes all of it" in said


@pytest.mark.slow
def test_a_write_without_a_step_saves_all_rows_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    job.save()
    weight = job.items.weight
    for value in (1.0, 2.0):
        with torch.no_grad():
            weight[5] = value
        assert rows_written(job.train(1).save(), "items") == {"cold": NUM_ROWS}
    assert sum("something else than a step" in record.getMessage() for record in caplog.records) == 1
    assert rows_written(job.train(1).save(), "items") == {"cold": touched_rows(3, 4)}
    assert Job(tmp_path, sgd).restore().values() == job.values()


def test_what_a_hook_writes_after_a_step_is_seen(tmp_path: Path) -> None:
    job = Job(tmp_path, sgd).restore()
    job.save()

    def clamp(*_: Any) -> None:
        with torch.no_grad():
            job.items.weight.clamp_(-0.5, 0.5)

    job.optimizer.register_step_post_hook(clamp)
    job.train(1).save()
    assert Job(tmp_path, sgd).restore().values() == job.values()


def test_rows_that_nobody_can_see_are_saved_when_they_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    job.save()
    job.items.weight.data[[3, 9]] = 7.0
    assert rows_written(job.save(), "items") == {}, "nobody can see this"
    job.checkpointer.touched("items", np.array([9, 3, 3, -1, NUM_ROWS]))
    assert rows_written(job.save(), "items") == {"cold": 2}
    job.items.weight.data[:NUM_ROWS:2] = 8.0
    job.checkpointer.touched("items", None)
    assert rows_written(job.save(), "items") == {"cold": NUM_ROWS}
    assert Job(tmp_path, sgd).restore().values() == job.values()
    job.checkpointer.touched("small", None)  # dense, so that it is saved in any case
    with pytest.raises(ConfigError, match="items, small"):
        job.checkpointer.touched("itmes", None)


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_model_is_saved_whole(tmp_path: Path, assign: bool) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    job.save()
    job.model.load_state_dict(Model(seed=5).state_dict(), assign=assign)
    assert rows_written(job.save(), "items") == {"cold": NUM_ROWS}
    if not assign:  # the optimizer has parameters of no model now
        assert Job(tmp_path, sgd).restore().values() == job.values()


@pytest.mark.slow
def test_a_loaded_optimizer_state_is_saved_whole(tmp_path: Path) -> None:
    make, is_sparse = FAMILIES["SparseAdam"]
    other = Job(tmp_path / "other", make, model=Model(is_sparse=is_sparse)).train(3)
    job = Job(tmp_path / "job", make, model=Model(is_sparse=is_sparse)).restore().train(1)
    job.save()
    job.optimizer.load_state_dict(other.optimizer.state_dict())
    job.save()
    assert Job(tmp_path / "job", make, model=Model(is_sparse=is_sparse)).restore().values() == job.values()


def test_a_weight_of_more_rows_is_saved_whole(tmp_path: Path) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    job.save()
    larger = Model(num_rows=NUM_ROWS + 100)
    job.items.weight = job.optimizer.param_groups[0]["params"][0] = larger.items.weight
    assert rows_written(job.save(), "items") == {"base": NUM_ROWS + 100}
    assert Job(tmp_path, sgd, model=Model(seed=2, num_rows=NUM_ROWS + 100)).restore().values() == job.values()


def test_a_failed_save_gives_rows_back(tmp_path: Path) -> None:
    job = Job(tmp_path, sgd).restore().train(1)
    job.save()
    job.train(1)
    break_store(job, errno.EIO)  # type: ignore[arg-type]
    with pytest.raises(EttError):
        job.save()
    mend_store(job)  # type: ignore[arg-type]
    assert rows_written(job.train(1).save(), "items") == {"cold": touched_rows(1, 3)}
    assert Job(tmp_path, sgd).restore().values() == job.values()


def test_two_checkpointers_are_both_told(tmp_path: Path) -> None:
    one = Job(tmp_path / "one", sgd).restore()
    two = Job(tmp_path / "two", lambda _: one.optimizer, model=one.model).restore()
    one.save(), two.save()
    one.train(2)
    two.next_step = one.next_step
    assert rows_written(one.save(), "items") == rows_written(two.save(), "items") == {"cold": touched_rows(0, 2)}


class Both:
    """Several optimizers in one, as programs write it; a checkpoint cannot look into it."""

    def __init__(self, *optimizers: optim.Optimizer) -> None:
        self.optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        return {f"part {n}": one.state_dict() for n, one in enumerate(self.optimizers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for n, one in enumerate(self.optimizers):
            one.load_state_dict(state[f"part {n}"])


class Deep(nn.Module):
    """A table with sparse gradients, and layers with dense ones: no optimizer of torch takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.items = Model(is_sparse=True).items
        self.top = nn.Linear(32, 1)
        with torch.no_grad():
            self.top.weight.copy_(torch.linspace(-1, 1, 32))

    def train_steps(self, optimizers: list[optim.Optimizer], steps: range) -> None:
        for step in steps:
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.top(self.items(batch(step))).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()


class DeepJob:
    def __init__(self, folder: Path, *, as_one: bool = False) -> None:
        self.model = Deep()
        self.optimizers = [
            optim.SparseAdam(self.model.items.parameters(), lr=0.1),
            optim.Adam(self.model.top.parameters(), lr=0.1),
        ]
        optimizer = Both(*self.optimizers) if as_one else self.optimizers
        config = CheckpointConfig(uri=str(folder), policy="incremental")
        ranks = ThreadRanks(0, 1, Meeting(1))
        self.checkpointer = Checkpointer(config, model=self.model, optimizer=optimizer, run=RecordingRun(), ranks=ranks)

    def values(self) -> list[bytes]:
        found = list(self.model.state_dict().values())
        for optimizer in self.optimizers:
            for _, entry in sorted(optimizer.state_dict()["state"].items()):
                found += [torch.as_tensor(entry[name]) for name in sorted(entry)]
        return [tensor_bytes(value).tobytes() for value in found]


@pytest.mark.slow
@pytest.mark.parametrize("as_one", [False, True])
def test_several_optimizers_come_back(tmp_path: Path, as_one: bool) -> None:
    job = DeepJob(tmp_path, as_one=as_one)
    job.checkpointer.restore()
    for first in (0, 2):
        job.model.train_steps(job.optimizers, range(first, first + 2))
        commit = job.checkpointer.save(first + 2, 0)
    if as_one:
        assert not commit.tables
    else:
        assert rows_written(commit, "items") == {"cold": touched_rows(2, 4)}
        assert [group.name for group in commit.tables[0].spec.groups] == ["weight", "state:exp_avg", "state:exp_avg_sq"]
    again = DeepJob(tmp_path, as_one=as_one)
    again.checkpointer.restore()
    assert again.values() == job.values()
    for one in (job, again):
        one.model.train_steps(one.optimizers, range(4, 6))
    assert again.values() == job.values()


def test_another_number_of_optimizers_is_refused(tmp_path: Path) -> None:
    DeepJob(tmp_path).checkpointer.save(1, 1)
    job = DeepJob(tmp_path, as_one=True)
    with pytest.raises(RestoreFailed, match="a list of 2 optimizers, the program one optimizer"):
        job.checkpointer.restore()


class Shares(Model):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(32, NUM_ROWS, bias=False)
        self.output.weight = self.items.weight


class Views(Model):
    """Another parameter has the same memory, which torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Parameter(self.items.weight.data)


class Bounded(Model):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ROWS, 32, max_norm=1.0)


class Frozen(Model):
    def __init__(self) -> None:
        super().__init__()
        self.items.weight.requires_grad_(False)


class Small(Model):
    def __init__(self) -> None:
        super().__init__(num_rows=NUM_ROWS - 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Shares, Views, Bounded, Frozen, Small])
def test_an_embedding_that_may_change_otherwise_is_dense(tmp_path: Path, kind: type[Model]) -> None:
    job = Job(tmp_path, sgd, model=kind()).restore()
    assert not job.save().tables
    assert not job.train(1).save().tables
    assert Job(tmp_path, sgd, model=kind()).restore().values() == job.values()


def test_an_embedding_that_no_optimizer_of_torch_trains_is_dense(tmp_path: Path) -> None:
    def of_small(parameters: list[nn.Parameter]) -> optim.Optimizer:
        return optim.SGD(parameters[1:], lr=0.1)

    assert not Job(tmp_path, of_small).restore().save().tables


@pytest.mark.slow
def test_a_job_may_change_its_policy(tmp_path: Path) -> None:
    expected = Job(tmp_path / "never saved", optim.Adagrad).train(9).values()
    for number, policy in enumerate(["full", "incremental", "full", "adaptive"]):
        job = Job(tmp_path / "job", optim.Adagrad, policy=policy, background=policy != "full").restore()
        assert job.next_step == 2 * number
        for _ in range(2):
            commit = job.train(1).save()
            assert bool(commit.tables) == (policy != "full")
    assert Job(tmp_path / "job", optim.Adagrad, policy="full").restore().train(1).values() == expected


def test_full_saves_beside_training_keep_what_changes_of_an_embedding(tmp_path: Path) -> None:
    """It is a table then, written whole: as a part of the dense state it would be copied at each boundary."""
    commit = Job(tmp_path, optim.Adagrad, policy="full").restore().train(1).save()
    assert [table.spec.name for table in commit.tables] == ["items"] and commit.type == "base"


def test_a_restored_table_goes_on_with_its_chain(tmp_path: Path) -> None:
    Job(tmp_path, sgd).restore().train(1).save()
    job = Job(tmp_path, sgd).restore().train(1)
    assert rows_written(job.save(), "items") == {"cold": touched_rows(1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Model(num_rows=NUM_ROWS + 1), "8192 rows of .* in the checkpoint, 8193 rows of"),
        (Model(num_rows=NUM_ROWS - 1), "8192 rows of .* in the checkpoint, 8191 rows of"),
        (Model().double(), "float32 .* in the checkpoint, .*float64"),
        (nn.Linear(2, 2), "table items: only in the checkpoint"),
    ],
)
def test_a_table_of_another_shape_is_refused_before_anything_changes(
    tmp_path: Path, model: nn.Module, match: str
) -> None:
    Job(tmp_path, sgd).restore().train(1).save()
    other = Job(tmp_path, sgd, model=model)
    before = other.values()
    with pytest.raises(RestoreFailed, match=match):
        other.restore()
    assert other.values() == before


@pytest.mark.slow
def test_a_refused_restore_leaves_the_table_that_a_fresh_start_saves(tmp_path: Path) -> None:
    Job(tmp_path, optim.Adam).restore().train(1).save()
    job = Job(tmp_path, optim.Adam, model=Model(num_rows=NUM_ROWS + 1))
    with pytest.raises(RestoreFailed):
        job.restore()
    job.restore("never")
    job.save()
    job.train(1).save()
    again = Job(tmp_path, optim.Adam, model=Model(num_rows=NUM_ROWS + 1))
    assert again.restore().values() == job.values()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["SGD", "SparseAdam", "Adam"])
def test_copies_on_several_ranks_are_saved_once(tmp_path: Path, family: str) -> None:
    def life(ranks: ThreadRanks) -> tuple[int, dict[str, int], Values]:
        make, is_sparse = FAMILIES[family]
        job = Job(tmp_path, make, ranks, model=Model(is_sparse=is_sparse)).restore()
        begun = job.next_step
        job.train(1).save()
        return begun, rows_written(job.train(1).save(), "items"), job.values()

    for number, world_size in enumerate([2, 1, 3]):
        results = run_ranks(world_size, life)
        raise_first(results)
        for begun, rows, values in results:  # type: ignore[misc]
            assert begun == 2 * number
            assert values == results[0][2]  # type: ignore[index]
            assert rows == {"cold": touched_rows(begun + 1, begun + 2) if family != "Adam" else NUM_ROWS}
    expected = opened(tmp_path / "never saved", family).train(6).values()
    assert results[0][2] == expected  # type: ignore[index]


@pytest.mark.slow
def test_a_half_precision_table_with_odd_columns_comes_back(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Embedding(250_000, 3, dtype=torch.bfloat16)

    def train(job: Job, *ids: int) -> None:
        job.optimizer.zero_grad()
        job.model.forward(torch.tensor(ids)).sum().backward()
        job.optimizer.step()

    job = Job(tmp_path, optim.Adagrad, model=model()).restore()
    train(job, 1, 2)
    job.save()
    train(job, 2, 249_999)
    assert rows_written(job.save(), "embedding") == {"cold": 2}
    assert Job(tmp_path, optim.Adagrad, model=model()).restore().values() == job.values()


def torchrec_model(kind: str) -> nn.Module:
    pytest.importorskip("torchrec", reason="torchrec is not installed")
    from torchrec.modules import embedding_configs, embedding_modules

    torch.manual_seed(1)
    if kind == "bags":
        bag = embedding_configs.EmbeddingBagConfig(
            num_embeddings=NUM_ROWS, embedding_dim=32, name="item", feature_names=["item", "history"]
        )
        made: nn.Module = embedding_modules.EmbeddingBagCollection(tables=[bag])
    else:
        rows = embedding_configs.EmbeddingConfig(
            num_embeddings=NUM_ROWS, embedding_dim=32, name="item", feature_names=["item"]
        )
        made = embedding_modules.EmbeddingCollection(tables=[rows])
    return made


def train_torchrec(job: Job, *ids: int) -> None:
    from torchrec import KeyedJaggedTensor

    keys = ["item", "history"] if "embedding_bags.item.weight" in job.model.state_dict() else ["item"]
    values = torch.tensor(ids * len(keys))
    job.optimizer.zero_grad()
    out = job.model.forward(KeyedJaggedTensor(keys, values, lengths=torch.ones_like(values)))
    sum(part.values().square().sum() for part in (out.values() if isinstance(out, dict) else [out])).backward()
    job.optimizer.step()


@pytest.mark.slow  # torchrec takes ten seconds to import
@pytest.mark.parametrize(("kind", "table"), [("bags", "embedding_bags.item"), ("rows", "embeddings.item")])
def test_torchrec_collections_are_tables(tmp_path: Path, kind: str, table: str) -> None:
    job = Job(tmp_path, optim.Adagrad, model=torchrec_model(kind)).restore()
    train_torchrec(job, 1, 2)
    job.save()
    train_torchrec(job, 2, 5, NUM_ROWS - 1)
    assert rows_written(job.save(), table) == {"cold": 3}
    other = Job(tmp_path, optim.Adagrad, model=torchrec_model(kind)).restore()
    assert other.values() == job.values()
    for one in (job, other):
        train_torchrec(one, 5, 6)
    assert other.values() == job.values()
