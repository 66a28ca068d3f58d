"""The dense state: what torch.distributed.checkpoint writes is counted, what is read is verified, nothing aliases."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_world import FaultFile, Loader, RecordingRun
from plain_reader import read_dense
from torch import Tensor, nn

from ett.checkpoint import CheckpointConfig, Checkpointer, dense_digest, dense_writer, retention_thread
from ett.checkpoint.buffer_pool import BufferPool
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog
from ett.checkpoint.dense_digest import box_sum, digest_of_whole
from ett.checkpoint.dense_files import PIECE_BYTES, read_runs
from ett.checkpoint.dense_writer import write_parts
from ett.checkpoint.file_hash import stored_bytes
from ett.checkpoint.local_store import LocalStore
from ett.checkpoint.ranks import SoloRanks
from ett.checkpoint.sharded_tensor import Box
from ett.checkpoint.staging_area import StagingArea
from ett.checkpoint.verify import damage
from ett.checkpoint.worker_threads import BrokenOffError
from ett.errors import ConfigError, CorruptState, RestoreFailed, Unreachable

OLD = Path(__file__).parent / "data" / "dense_segment_1_1"


class Job:
    """A process with a dense model alone."""

    def __init__(self, folder: Path, model: nn.Module | None = None, *, stepped: bool = True, **config: Any) -> None:
        torch.manual_seed(5)
        self.model = model or nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.25)
        self.loader = Loader()
        if stepped:
            self.step()
        self.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(folder), **config),
            model=self.model,
            optimizer=self.optimizer,
            loader=self.loader,
            run=RecordingRun(),
            ranks=SoloRanks(),
        )

    def step(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()

    def image(self) -> dict[str, bytes]:
        named = {id(parameter): name for name, parameter in self.model.named_parameters()}
        states = {f"{named[id(p)]} {k}": v for p, state in self.optimizer.state.items() for k, v in state.items()}
        return {name: value.numpy().tobytes() for name, value in {**self.model.state_dict(), **states}.items()}


def newest(folder: Path) -> Commit:
    log = CommitLog(LocalStore(folder))
    return log.read(max(log.seqs()))


class FullDisk(LocalStore):
    """No space is left for one of the files of the dense state, when a part of it has been written."""

    def __init__(self, root: Path, file: str, *, num_meeting: int = 0) -> None:
        """Args: num_meeting: writers that begin together: else one thread might be done before another one begins."""
        super().__init__(root)
        self.num_meeting = num_meeting
        self.file, self.error = file, OSError(errno.ENOSPC, "injected")
        self.writers: set[threading.Thread] = set()
        self._numbers, self._meeting = itertools.count(), threading.Barrier(max(1, num_meeting), timeout=300)

    @contextmanager
    def create_stream(self, name: str) -> Iterator[Any]:
        if name.endswith(".distcp") and next(self._numbers) < self.num_meeting:
            self._meeting.wait()
        with super().create_stream(name) as file:
            self.writers.add(threading.current_thread())
            yield FaultFile(file, self) if name.endswith(self.file) else file  # type: ignore[arg-type]

    def operate(self) -> None:
        raise self.error


def parts_of(tensors: dict[str, Tensor]) -> Any:
    return StagingArea().stage(tensors)


@pytest.mark.slow
def test_no_space_in_one_writer_thread_of_several_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch loses the exception of a writer thread and commits what the others wrote (pytorch #191391)."""
    monkeypatch.setattr(dense_writer, "FILE_BYTES", 4096)
    parts = parts_of({f"t{number}": torch.randn(1024) for number in range(4)})
    for file in ("__0_0.distcp", "__0_1.distcp", "__0_2.distcp", ".metadata"):
        store = FullDisk(tmp_path / file.strip("."), file, num_meeting=2)
        names: list[str] = []
        with pytest.raises(Unreachable, match="no space left") as raised:
            write_parts(store, "dense/a", parts, None, names)
        assert raised.value.code == "S002"
        assert len(store.writers) > 1
        assert not any(name.endswith(file) for name in store.list("dense")), "half a file is shown"
        assert set(store.list("dense")) <= set(names)
        assert file == ".metadata" or not any(name.endswith(".metadata") for name in store.list("dense"))
    assert "Exception in thread" not in capfd.readouterr().err


def test_as_many_parts_are_written_as_were_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: Any, planner: Any, file_queue: Any) -> Any:
        file_queue.get_nowait()
        return real(self, planner, file_queue)

    monkeypatch.setattr(dense_writer, "FILE_BYTES", 4096)
    real = dense_writer._Writer._write_data
    monkeypatch.setattr(dense_writer._Writer, "_write_data", lose)
    parts = parts_of({f"t{number}": torch.randn(1024) for number in range(4)})
    with pytest.raises(Unreachable, match="3 of 4 planned parts of dense/a were written"):
        write_parts(LocalStore(tmp_path), "dense/a", parts, None, [])


def test_a_failed_save_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.checkpointer.restore()
    place = job.checkpointer._place
    before = set(place.store.list(""))
    object.__setattr__(place, "store", FullDisk(tmp_path, "__0_0.distcp"))
    with pytest.raises(Unreachable, match="no space left"):
        job.checkpointer.save(1, 10)
    assert set(LocalStore(tmp_path).list("")) == before
    object.__setattr__(place, "store", LocalStore(tmp_path))
    assert job.checkpointer.save(2, 20).step == 2
    assert damage(LocalStore(tmp_path), newest(tmp_path), "load") is None


@pytest.mark.slow
def test_what_is_saved_is_the_state_of_the_trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live tensors change while the writing thread has only begun; five saves in a row, in the same staging memory."""
    job = Job(tmp_path, keep_last=9)
    images: dict[int, dict[str, bytes]] = {}
    real = dense_writer.write_parts

    def after_a_change(*args: Any) -> Any:
        job.step()
        return real(*args)

    monkeypatch.setattr(dense_writer, "write_parts", after_a_change)
    for number in range(1, 6):
        images[number] = job.image()
        job.checkpointer.save(number, number)
        assert job.image() != images[number]
    for number, image in images.items():
        later = Job(tmp_path, stepped=False, keep_last=9)
        assert later.checkpointer.restore(str(number)) is not None
        assert later.image() == image


@pytest.mark.slow
def test_saves_leave_no_thread_and_no_descriptor_behind(tmp_path: Path) -> None:
    job = Job(tmp_path, keep_last=1)
    job.checkpointer.save(1, 1)

    def held() -> tuple[set[int | None], int]:
        return {thread.ident for thread in threading.enumerate()}, len(list(Path("/proc/self/fd").iterdir()))

    threads, descriptors = held()
    for number in range(2, 12):
        job.checkpointer.save(number, number)
    for thread in threading.enumerate():
        if thread.name == retention_thread.NAME:
            thread.join()  # it ends by itself when old commits are gone
    assert held()[0] <= threads
    assert held()[1] <= descriptors


def test_staging_memory_is_used_again_and_shared_with_nobody() -> None:
    area, live = StagingArea(), {"a": torch.arange(6.0).reshape(2, 3).t(), "b": torch.tensor(7)}
    first = area.stage(live)
    assert all(first[name].values.is_contiguous() for name in live)
    assert first["a"].box == Box((3, 2), (0, 0), (3, 2))
    live["a"] += 1
    assert torch.equal(first["a"].values, live["a"] - 1)
    again = area.stage(live)
    assert [again[name].values.data_ptr() for name in live] == [first[name].values.data_ptr() for name in live]
    assert torch.equal(again["a"].values, live["a"])
    other = area.stage({"a": torch.zeros(4)})
    assert other["a"].values.shape == (4,)


def test_tied_weights_and_views_of_large_memory_are_stored_as_they_are(tmp_path: Path) -> None:
    large = torch.arange(1000.0)
    tensors = {"one": large[:10], "tied": large[:10], "strided": large.reshape(10, 100)[:, 3], "empty": large[:0]}
    written, files = write_parts(LocalStore(tmp_path), "dense/a", parts_of(tensors), None, [])
    assert {part.name for part in written} == set(tensors)
    assert sum(file.bytes for file in files) < 12_000
    for part in written:
        data = (tmp_path / "dense/a" / part.chunk.file).read_bytes()
        raw = data[part.chunk.at : part.chunk.at + part.chunk.num_bytes]
        assert raw == tensors[part.name].contiguous().numpy().tobytes()


def test_torch_loads_the_folder_as_it_is(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    job = Job(tmp_path)
    job.checkpointer.save(3, 30)
    expected = {f"model.{name}": value for name, value in job.model.state_dict().items()}
    found = {name: torch.zeros_like(value) for name, value in expected.items()}
    (folder,) = (tmp_path / "dense").iterdir()
    dcp.load(found, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_a_restore_opens_no_pickle_and_imports_no_torch_checkpoints_which_the_first_step_does(tmp_path: Path) -> None:
    Job(tmp_path).checkpointer.save(3, 30)
    program = (
        "import pickle, sys, threading, torch\n"
        "from torch import nn\n"
        "from ett.checkpoint import CheckpointConfig, Checkpointer\n"
        "def refuse(*args, **kwargs): raise AssertionError('a pickle is opened')\n"
        "model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "class L:\n"
        "    def state_dict(self): return {}\n"
        "    def load_state_dict(self, state): pass\n"
        "checkpointer = Checkpointer(CheckpointConfig(uri=sys.argv[1]), model=model, optimizer=optimizer, loader=L())\n"
        "pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse\n"
        "assert checkpointer.restore().step == 3\n"
        "print('torch.distributed.checkpoint' in sys.modules)\n"
        "checkpointer.step(4, 40)\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'ckpt-import']\n"
        "print('torch.distributed.checkpoint' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False\nTrue\n", 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", "state.json"])
@pytest.mark.parametrize("is_foreign", [False, True])
def test_an_altered_or_foreign_file_is_stepped_over(tmp_path: Path, file: str, is_foreign: bool) -> None:
    job = Job(tmp_path)
    job.checkpointer.save(1, 10)
    job.step()
    job.checkpointer.save(2, 20)
    commits = {commit.step: commit for commit in CommitLog(LocalStore(tmp_path)).read_all()[0].values()}
    path, other = (tmp_path / commits[step].dense.named(file).path for step in (2, 1))  # type: ignore[union-attr]
    data = bytearray((other if is_foreign else path).read_bytes())
    data[len(data) // 2] ^= 0 if is_foreign else 1
    path.write_bytes(data)
    found = damage(LocalStore(tmp_path), commits[2], "hash")
    assert isinstance(found, CorruptState)
    assert file in found.fact
    later = Job(tmp_path, stepped=False)
    position = later.checkpointer.restore()
    assert position is not None
    assert (position.step, position.fallback_from) == (1, commits[2].seq)


def test_a_dense_segment_of_an_older_ett_is_restored_and_saved_anew(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    old = newest(folder)
    assert old.dense is not None
    assert "dense.dcp.v1" not in old.features
    assert damage(LocalStore(folder), old, "load") is None
    job = Job(folder, stepped=False)
    position = job.checkpointer.restore()
    assert position is not None
    assert (position.step, job.loader.state) == (7, {"cursor": 70})
    tensors = read_dense(OLD, json.loads((OLD / "commits/0000000000000002.json").read_bytes()))
    assert tensors["model.0.weight"][2] == job.model[0].weight.detach().numpy().tobytes()  # type: ignore[index]
    assert job.optimizer.param_groups[0]["lr"] == 0.25
    reopened = newest(folder)
    assert (reopened.type, reopened.dense) == ("epoch_open", old.dense)
    job.checkpointer.save(8, 80)
    assert "dense.dcp.v1" in newest(folder).features
    again = Job(folder, stepped=False)
    again.checkpointer.restore()
    assert again.image() == job.image()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (nn.Sequential(nn.Linear(4, 3).double(), nn.BatchNorm1d(3)), "float32"),
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), "not in the checkpoint"),
        (nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), r"\[3, 4\]"),
    ],
)
def test_other_dtypes_names_and_shapes_are_refused_never_cast(tmp_path: Path, changed: nn.Module, said: str) -> None:
    """Torch casts silently (pytorch #187138), and once loaded other shapes (#126604) or nothing (#118081)."""
    Job(tmp_path).checkpointer.save(1, 10)
    before = {name: value.clone() for name, value in changed.state_dict().items()}
    with pytest.raises(RestoreFailed, match=said):
        Job(tmp_path, changed, stepped=False).checkpointer.restore()
    assert all(torch.equal(before[name], value) for name, value in changed.state_dict().items())


def test_a_tensor_that_cannot_be_stored_is_named_before_anything_is_written(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.model.register_buffer("quantized", torch.zeros(2, dtype=torch.uint16))
    with pytest.raises(ConfigError, match=r"model\.quantized"):
        job.checkpointer.save(1, 10)
    assert not (tmp_path / "dense").exists()


@pytest.mark.slow
@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex128])
def test_the_digest_is_the_sum_of_any_tiling(
    dtype: torch.dtype, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(dense_digest, "NATIVE", None)
    assert (dense_digest.NATIVE is not None) == is_native
    whole = torch.randn(40, 7, 30, generator=torch.Generator().manual_seed(1)).to(dtype)
    shape = tuple(whole.shape)

    def sum_of(*cuts: slice) -> int:
        box = whole[cuts].contiguous()
        starts = tuple(cut.indices(length)[0] for cut, length in zip(cuts, shape, strict=True))
        data = np.frombuffer(box.view(torch.uint8).numpy().tobytes(), np.uint8)
        return box_sum(data, shape, starts, tuple(box.shape))

    every = slice(None)
    expected = sum_of(every, every, every)
    rows = [slice(0, 13), slice(13, 14), slice(14, 40)]
    columns = [slice(0, 4), slice(4, 30)]
    mask = (1 << 64) - 1
    assert sum(sum_of(cut, every, every) for cut in rows) & mask == expected
    assert sum(sum_of(every, every, cut) for cut in columns) & mask == expected
    assert sum(sum_of(cut, slice(n, n + 1), other) for cut in rows for n in range(7) for other in columns) & mask == (
        expected
    )


def test_native_and_numpy_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(1).integers(0, 256, 80_000, np.uint8)
    for width in (1, 2, 4, 8, 16):
        shape = (100, 80_000 // width // 100)
        box = data[: 60 * 800], shape, (7, 0), (60, shape[1])
        native = box_sum(*box)
        with monkeypatch.context() as patch:
            patch.setattr(dense_digest, "NATIVE", None)
            assert box_sum(*box) == native


def test_any_change_of_the_state_changes_its_digest() -> None:
    tensors = {"model.a": torch.arange(3000.0), "model.b": torch.zeros(()), "loader.ahead": torch.zeros(1)}
    tree = {"model": {"a": {"$tensor": "model.a"}}, "optimizer": {"lr": 0.5}, "loader": {"at": 1}}
    digest = digest_of_whole(tensors, tree)
    swapped = tensors["model.a"].clone()
    swapped[[5, 2000]] = swapped[[2000, 5]]
    others = [
        ({**tensors, "model.a": swapped}, tree),
        ({**tensors, "model.a": tensors["model.a"].reshape(2, 1500)}, tree),
        ({**tensors, "model.b": torch.tensor(-0.0)}, tree),
        (tensors, {**tree, "optimizer": {"lr": 0.25}}),
    ]
    assert len({digest, *(digest_of_whole(*other) for other in others)}) == 5
    assert digest_of_whole({**tensors, "loader.ahead": torch.ones(1)}, {**tree, "loader": {"at": 2}}) == digest


def test_optimizer_states_follow_the_names_of_parameters_not_their_positions(tmp_path: Path) -> None:
    """A list of parameters changes its order with the code, and names of states with the sharding (torchrec #2394)."""

    def job(*, is_reversed: bool) -> Job:
        made = Job(tmp_path, stepped=False)
        parameters = list(made.model.parameters())
        made.optimizer = torch.optim.Adam(parameters[::-1] if is_reversed else parameters, lr=0.25)
        made.checkpointer = Checkpointer(
            CheckpointConfig(uri=str(tmp_path)),
            model=made.model,
            optimizer=made.optimizer,
            loader=made.loader,
            run=RecordingRun(),
            ranks=SoloRanks(),
        )
        return made

    saved = job(is_reversed=False)
    saved.step()
    saved.checkpointer.save(1, 1)
    restored = job(is_reversed=True)
    restored.checkpointer.restore()
    assert restored.image() == saved.image()


def test_a_file_that_is_not_wanted_any_more_is_not_read_to_its_end(tmp_path: Path) -> None:
    data = bytes(3 * PIECE_BYTES)
    (tmp_path / "file").write_bytes(data)
    left = [False, True]
    with pytest.raises(BrokenOffError):
        read_runs(LocalStore(tmp_path), stored_bytes("file", data), [], BufferPool(), lambda: left.pop(0))
    assert not left
