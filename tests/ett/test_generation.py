from __future__ import annotations

from pathlib import Path

import pytest

import ett
from ett.errors import LostPeer
from ett.event_reader import read_folder
from ett.generation import Generation, GenerationFolder
from ett.survivor import is_lost_peer
from ett.tracker import Run, RunIdentity


def test_the_newest_generation_is_what_was_announced_last(tmp_path: Path) -> None:
    folder = GenerationFolder(tmp_path)
    assert folder.newest == Generation()
    for number in (1, 2):
        folder.announce(Generation(number=number, environ={"MASTER_PORT": str(number)}))
    assert (folder.newest.number, folder.newest.environ) == (2, {"MASTER_PORT": "2"})


def test_a_torn_announcement_is_none(tmp_path: Path) -> None:
    (tmp_path / "generation.json").write_text('{"number": 3, "envi')
    assert GenerationFolder(tmp_path).newest.number == 0


def test_ranks_join_one_generation_at_a_time(tmp_path: Path) -> None:
    folder = GenerationFolder(tmp_path)
    folder.join(1, 0)
    assert [folder.has_joined(number, 0) for number in (0, 1, 2)] == [False, True, False]
    assert not folder.has_joined(1, 1)


@pytest.mark.parametrize(
    "err",
    [
        LostPeer("gone"),
        ConnectionResetError(),
        RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        RuntimeError("NCCL communicator was aborted on rank 1"),
        type("DistBackendError", (RuntimeError,), {})("any"),
    ],
)
def test_what_the_loss_of_a_peer_looks_like(err: Exception) -> None:
    assert is_lost_peer(err)


@pytest.mark.parametrize("err", [ValueError("gloo"), RuntimeError("shapes do not match"), KeyError("NCCL")])
def test_a_programs_own_error_is_no_lost_peer(err: Exception) -> None:
    assert not is_lost_peer(err)


def test_a_restartable_function_outside_a_launch_is_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ETT_GENERATIONS", raising=False)

    @ett.restartable
    def double(value: int, *, plus: int = 0) -> int:
        """Documented."""
        return 2 * value + plus

    assert (double(4, plus=1), double.__name__, double.__doc__) == (9, "double", "Documented.")


def test_records_of_a_new_generation_say_so_and_count_from_nothing(tmp_path: Path) -> None:
    run = Run(RunIdentity(job="j", attempt=1, job_dir=tmp_path))
    with run.step(global_samples=4):
        pass
    run.train_end()
    run.begin_generation(1, {})
    with run.step(global_samples=4):
        pass
    run.close()
    log = sorted(read_folder(tmp_path).records, key=lambda record: (record.mono_ns, record.seq))
    assert [(r.gen, r.data["step"], r.data["c0"]) for r in log if r.ev == "step"] == [(0, 1, 0), (1, 1, 0)]
    assert len({r.file for r in log}) == 2
