"""The dense part by torch.compile: what it computes is the model, for any number of examples, in one graph."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch._dynamo
from torch import Tensor

from ett.event_reader import read_folder
from ett.hooks import recompiles
from ett.hooks.recompiles import RecompileWatch
from ett.tracker import Run, RunIdentity
from ett.trainer.comm.collectives import LocalCollectives
from ett.trainer.config import ModelConfig, SparseConfig
from ett.trainer.dense import compiled_logits
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_config import EmbeddingBagConfig
from ett.trainer.embedding.table_outputs import SparseInputs

MOST, DENSE, TABLES, DIM = 12, 3, 4, 6


def make_model(dropout: float = 0.0) -> Dlrm:
    tables = [EmbeddingBagConfig(0, name=f"t{i}", embedding_dim=DIM) for i in range(TABLES)]
    embeddings = JobTables(tables, SparseConfig(), LocalCollectives(), seed=1)
    config = ModelConfig(embedding_dim=DIM, bottom_mlp=(8,), top_mlp=(9, 5), dropout=dropout)
    return Dlrm(config, embeddings, num_dense=DENSE, seed=1)


def one_pass(model: Dlrm, num_examples: int) -> list[Tensor]:
    """Return logits and all gradients of one pass in training."""
    generator = torch.Generator().manual_seed(num_examples)
    dense = torch.randn(num_examples, DENSE, generator=generator)
    pooled = torch.randn(num_examples, TABLES, DIM, generator=generator).requires_grad_()
    model.dropout.seed_step(1, 2, 0)
    model.zero_grad()
    logits = model(dense, SparseInputs([pooled], {}))
    logits.square().sum().backward()
    return [logits.detach(), cast(Tensor, pooled.grad), *(cast(Tensor, p.grad) for p in model.parameters())]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Compile with a backend that keeps the graphs and runs them as they are."""
    seen: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        seen.append(graph)
        return graph.forward

    compiled = torch.compile(Dlrm.logits, backend=keep, dynamic=False, fullgraph=True)
    monkeypatch.setattr(compiled_logits, "_compiled", lambda logits: compiled)
    yield seen
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_any_number_of_examples_is_one_graph_and_the_model(graphs: list[Any], dropout: float) -> None:
    plain, model = make_model(dropout), make_model(dropout)
    model.compile_for(MOST)
    for num_examples in (MOST, 7, 1, 0, MOST):
        for found, expected in zip(one_pass(model, num_examples), one_pass(plain, num_examples), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(graphs) == 1


@pytest.mark.slow
def test_what_a_stand_in_has_compiled_the_model_finds(graphs: list[Any]) -> None:
    stand_in, model = make_model(), make_model()
    for each in (stand_in, model):
        each.compile_for(MOST)
        one_pass(each, MOST)
    assert len(graphs) == 1


def test_scoring_compiles_nothing(graphs: list[Any]) -> None:
    model, plain = make_model(0.3).eval(), make_model(0.3).eval()
    model.compile_for(MOST)
    with torch.no_grad():
        dense, pooled = torch.randn(5, DENSE), torch.randn(5, TABLES, DIM)
        assert torch.equal(model(dense, SparseInputs([pooled], {})), plain(dense, SparseInputs([pooled], {})))
    assert not graphs


def test_batches_of_any_length_compile_nothing_again_after_the_first_step(
    graphs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = torch._dynamo.utils
    monkeypatch.setattr(utils, recompiles.REPORTER, utils.record_compilation_metrics)
    monkeypatch.setattr(utils, "_metrics_context_tls", threading.local())  # whose contexts take the reporter anew
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path))
    RecompileWatch(run).install(torch._dynamo)
    model = make_model(0.3)
    model.compile_for(MOST)
    for num_examples in (MOST, 7, 1, 0, 11, MOST):
        one_pass(model, num_examples)
        with run.step():
            pass
    assert [record for record in read_folder(tmp_path).records if record.ev == "recompile"] == []
    model.compile_for(MOST + 1)  # as a batch of another size would without filling up
    one_pass(model, MOST + 1)
    (record,) = [record for record in read_folder(tmp_path).records if record.ev == "recompile"]
    assert "size mismatch" in record.data["guard"]
    assert "logits" in record.data["code"]
