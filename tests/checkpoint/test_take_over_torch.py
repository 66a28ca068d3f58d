"""A model of plain torch that begins with another's commit: its embeddings are tables, with their optimizer state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_world import RecordingRun
from torch import Tensor, nn

from ett.checkpoint import CheckpointConfig, Checkpointer
from ett.checkpoint.migrate_config import MigrateConfig
from ett.checkpoint.ranks import SoloRanks
from ett.checkpoint.source import VARIABLE
from ett.errors import ConfigError
from ett.recovery.lineage import find_source

ROWS, DIM = 70_000, 4  # above 1 MiB: a table where the policy writes parts of one


class Job:
    def __init__(
        self,
        uri: Path,
        name: str,
        rows: int,
        migrate: MigrateConfig | None = None,
        dim: int = DIM,
        *,
        idle: tuple[str, ...] = (),
    ) -> None:
        """Args: name: of the embedding that is trained; idle: of others like it."""
        torch.manual_seed(rows)
        self.model = nn.ModuleDict({name: nn.EmbeddingBag(rows, dim, mode="sum"), "top": nn.Linear(dim, 1)})
        self.model.update({other: nn.EmbeddingBag(rows, dim, mode="sum") for other in idle})
        self.table, self.top = self.model[name], self.model["top"]
        self.optimizer = torch.optim.Adagrad(self.model.parameters())
        config = CheckpointConfig(uri=str(uri), policy="incremental", migrate=migrate or MigrateConfig())
        self.checkpointer = Checkpointer(
            config, model=self.model, optimizer=self.optimizer, run=RecordingRun(), ranks=SoloRanks()
        )
        self.start = self.checkpointer.restore()

    def train(self, step: int) -> None:
        ids = torch.arange(step, step + 64).view(8, 8)
        loss = self.top(self.table(ids)).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.checkpointer.save(step, step * 8)

    def state(self) -> dict[str, Tensor]:
        weight = self.table.weight
        assert isinstance(weight, Tensor)
        states = {name: value.clone() for name, value in self.optimizer.state[weight].items()}
        return {"weight": weight.detach().clone(), "top": self.top.weight.detach().clone(), **states}  # type: ignore[operator,union-attr]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    job = Job(tmp_path / "old", "a", ROWS)
    for step in (1, 2):
        job.train(step)
    monkeypatch.setenv(VARIABLE, json.dumps(find_source(str(tmp_path / "old"), tmp_path)))
    return job.state()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [ROWS - 5000, ROWS, ROWS + 5000])
def test_an_embedding_is_renamed_and_resized_with_its_optimizer_state(
    rows: int, old: dict[str, Tensor], tmp_path: Path
) -> None:
    migrate = MigrateConfig(rename={"a": "b"}, resize=("b",))
    job = Job(tmp_path / "new", "b", rows, migrate)
    torch.manual_seed(rows)
    fresh = nn.EmbeddingBag(rows, DIM, mode="sum").weight.detach()
    found, shared = job.state(), min(rows, ROWS)
    assert torch.equal(found["weight"][:shared], old["weight"][:shared])
    assert torch.equal(found["weight"][shared:], fresh[shared:])
    assert torch.equal(found["sum"][:shared], old["sum"][:shared])
    assert not found["sum"][shared:].any()
    assert torch.equal(found["top"], old["top"])
    job.train(3)
    assert all(
        torch.equal(value, Job(tmp_path / "new", "b", rows, migrate).state()[name])
        for name, value in job.state().items()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("idle", "migrate"),
    [
        ((), MigrateConfig(rename={"a": "b"}, drop=("b",))),
        (("a",), MigrateConfig(rename={"a": "b"}, drop=("b",), reset=("a.weight",))),
        (("a",), MigrateConfig(rename={"a": "b", "b": "a"})),
    ],
)
def test_an_embedding_takes_its_optimizer_state_along_to_a_name_that_another_had(
    idle: tuple[str, ...], migrate: MigrateConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path / "old", "a", ROWS, idle=("b",))
    for step in (1, 2):
        job.train(step)
    monkeypatch.setenv(VARIABLE, json.dumps(find_source(str(tmp_path / "old"), tmp_path)))
    old, found = job.state(), Job(tmp_path / "new", "b", ROWS, migrate, idle=idle).state()
    assert old["step"] == 2
    assert old.keys() == found.keys()
    assert all(torch.equal(value, old[name]) for name, value in found.items())


def test_an_embedding_of_another_size_is_refused(old: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the commit has 70000"):
        Job(tmp_path / "new", "a", ROWS + 1)


@pytest.mark.slow
def test_an_embedding_of_another_width_begins_anew_as_what_it_is_then(old: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Job(tmp_path / "new", "a", ROWS, dim=8)
    assert 'drop = ["a"]' in raised.value.do
    reset = MigrateConfig(drop=("a",), reset=("a.weight", "top.*"))
    job = Job(tmp_path / "new", "a", ROWS, reset, dim=8)
    assert (job.start.step if job.start else None) == 2
    assert not job.state()["sum"].any()
    job.train(3)
    again = Job(tmp_path / "new", "a", ROWS, reset, dim=8).state()
    assert all(torch.equal(value, again[name]) for name, value in job.state().items())
