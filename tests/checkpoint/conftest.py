"""Makes `checkpoint_world` importable for the tests beside it: pytest's importlib mode adds no folder to the path."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from buffered_world import Remote
from checkpoint_world import saved_world
from s3_servers import S3Server, moto_server

from ett.checkpoint import uploader
from ett.checkpoint.bench.faults.fault_proxy import FaultProxy


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two commits of two ranks, for all tests of a file."""
    folder = tmp_path_factory.mktemp("saved")
    saved_world(folder, 2, [1, 2])
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of `saved` to be changed."""
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.make_bucket()
        yield server


@pytest.fixture(scope="session")
def open_proxy(moto: S3Server) -> Iterator[FaultProxy]:
    opened = FaultProxy(moto.port)
    yield opened
    opened.close()


@pytest.fixture
def proxy(open_proxy: FaultProxy) -> FaultProxy:
    open_proxy.forget()
    return open_proxy


@pytest.fixture
def quick_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have uploads be tried again at once."""
    monkeypatch.setattr(uploader, "LONGEST_WAIT_S", 0.001)
    monkeypatch.setattr(uploader, "POLL_S", 0.001)


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")
