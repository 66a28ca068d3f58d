"""An export to safetensors, read with the format's own library, holds the state bit for bit, or does not appear."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import bits, oracle, saved_world
from rewrite_world import ids_of, saved_chain, state_of
from safetensors.torch import load_file

from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_facts import find_commit
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.safetensors_export import DENSE_NAME, INDEX_NAME, export_safetensors
from ett.checkpoint.safetensors_file import SafetensorsFile, TensorSpec
from ett.cli import run
from ett.errors import ConfigError, CorruptState


def exported(folder: Path, to: Path) -> dict[str, torch.Tensor]:
    """Export the newest commit; return all tensors, found by the index."""
    store = LocalStore(folder)
    export_safetensors(store, find_commit(store, None)[0], to)
    index = json.loads((to / INDEX_NAME).read_text())["weight_map"]
    files = {name: load_file(to / name) for name in set(index.values())}
    assert {name for file in files.values() for name in file} == set(index)
    return {name: files[file][name] for name, file in index.items()}


def rows_of(tensors: dict[str, torch.Tensor], table: str, states: list[str]) -> dict[tuple[str, int], bytes]:
    columns = [tensors[table], *(tensors[f"{table}.{state}"] for state in states)]
    ids = tensors[f"{table}.ids"].tolist()
    return {(table, row_id): b"".join(bits(column[n]) for column in columns) for n, row_id in enumerate(ids)}


@pytest.mark.slow
@pytest.mark.parametrize("deltas", [0, 3])
def test_the_formats_own_library_reads_every_bit(tmp_path: Path, deltas: int) -> None:
    saved_chain(tmp_path / "job", LocalStore(tmp_path / "job"), deltas=deltas)
    tensors = exported(tmp_path / "job", tmp_path / "out")
    rows = rows_of(tensors, "users", ["exp_avg", "step"]) | rows_of(tensors, "bags/items", ["sum"])
    _, state = state_of(tmp_path / "job")
    assert rows == {key: value for key, value in state.items() if isinstance(key, tuple)}
    for name, value in oracle(2).model.state_dict().items():
        found = tensors[f"model.{name}"]
        assert (found.dtype, found.shape, bits(found)) == (value.dtype, value.shape, bits(value))


def newest(folder: Path) -> Commit:
    return find_commit(LocalStore(folder), None)[0]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["byte", "digest", "rows"])
def test_what_is_not_as_committed_leaves_no_folder(tmp_path: Path, wrong: str) -> None:
    saved_world(tmp_path / "job", 1, [1])
    commit, store = newest(tmp_path / "job"), LocalStore(tmp_path / "job")
    table = commit.tables[1]
    if wrong == "byte":
        path = tmp_path / "job" / table.files[0].stored.path
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    if wrong == "digest":
        commit = replace(commit, tables=(commit.tables[0], replace(table, digest="0" * 16)))
    if wrong == "rows":
        commit = replace(commit, tables=(commit.tables[0], replace(table, num_rows=table.num_rows + 1)))
    with pytest.raises(CorruptState):
        export_safetensors(store, commit, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "out"]
    assert store.list("leases") == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    saved_world(tmp_path / "job", 1, [1])
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_safetensors(LocalStore(tmp_path / "job"), newest(tmp_path / "job"), tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_of_two_exports_to_a_folder_one_is_told_of_the_other(tmp_path: Path) -> None:
    saved_world(tmp_path / "job", 1, [1])
    commit, store, to = newest(tmp_path / "job"), LocalStore(tmp_path / "job"), tmp_path / "out"

    class MeetsAnother(LocalStore):
        def open(self, name: str) -> Any:
            if not (to / INDEX_NAME).exists():
                export_safetensors(store, commit, to)
            return super().open(name)

    with pytest.raises(ConfigError, match="not an empty folder"):
        export_safetensors(MeetsAnother(tmp_path / "job"), commit, to)
    assert (to / INDEX_NAME).exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "out"]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    saved_world(tmp_path / "job", 1, [1])
    commit = newest(tmp_path / "job")
    twice = replace(commit, tables=(commit.tables[0], commit.tables[0]))
    with pytest.raises(ConfigError, match="two tensors would be named"):
        export_safetensors(LocalStore(tmp_path / "job"), twice, tmp_path / "out")


def test_every_type_that_the_format_has_is_written_aligned(tmp_path: Path) -> None:
    names = ["int8", "float64", "bool", "bfloat16", "complex64", "float8_e5m2", "float8_e4m3fn", "int16", "float16"]
    specs = [TensorSpec(f"a {name}", name, (3, 1)) for name in names] + [TensorSpec("none", "int64", (0, 4))]
    file = SafetensorsFile(tmp_path / "x", specs, {"unicode": "Ω"})
    expected: dict[str, Any] = {}
    for spec in specs:
        data = np.arange(spec.num_bytes, dtype=np.uint8) % 2
        expected[spec.name] = data.tobytes()
        file.write(spec.name, 0, data)
    file.close()
    read = load_file(tmp_path / "x")
    assert {name: bits(value) for name, value in read.items()} == expected
    assert all(value.dtype == getattr(torch, spec.dtype) for spec in specs for value in [read[spec.name]])
    with pytest.raises(ConfigError, match="complex128"):
        SafetensorsFile(tmp_path / "y", [TensorSpec("wide", "complex128", (1,))], {})
    assert not (tmp_path / "y").exists()


def document(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["checkpoint", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["data"]


def test_export_is_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved_world(tmp_path / "job", 2, [1, 2])
    job, out = str(tmp_path / "job"), tmp_path / "out"
    facts = document(capsys, "export", job, "--to", str(out), "--step", "1")
    assert (facts["step"], facts["format"], facts["files"]) == (1, "safetensors", 4)
    assert (out / DENSE_NAME).is_file()
    assert len(ids_of(LocalStore(tmp_path / "job"), newest(tmp_path / "job").tables[0])) == 502
    assert len(load_file(out / "t0000.safetensors")["bags/items.ids"]) == 502
    assert run(["checkpoint", "export", job, "--to", str(tmp_path / "copy"), "--format", "checkpoint"]) == 0
    assert "every byte verified" in capsys.readouterr().out
    assert newest(tmp_path / "copy").step == 2
    assert run(["checkpoint", "export", job, "--to", str(out)]) == 3
