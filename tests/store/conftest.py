"""Stores for tests: SQLite in a file, and a PostgreSQL server of Debian that the tests start for themselves."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ett.event_line import encode_line
from ett.store import Store, open_store

ETT_TESTS = Path(__file__).parents[1] / "ett"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server of our own: on a socket in a folder of its own, run by a user without rights."""
    initdb = shutil.which("initdb") or max(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)
    if initdb is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    bin_folder = Path(initdb).parent
    user: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="ett-pg-", dir="/tmp"))  # a socket's path has at most 107 bytes
    try:
        if os.geteuid() == 0:  # the server refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        data = folder / "data"
        init = [initdb, "-D", str(data), "-U", "ett", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, **user)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=50"
        control = [str(bin_folder / "pg_ctl"), "-D", str(data), "-w", "-t", "60"]
        start = [*control, "-l", str(folder / "log"), "-o", options, "start"]
        started = subprocess.run(start, check=False, capture_output=True, text=True, cwd=folder, **user)
        assert started.returncode == 0, started.stdout + started.stderr
        try:
            yield f"postgresql://ett@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, capture_output=True, cwd=folder, **user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An address where no store is yet; every test that takes it runs on both databases."""
    if request.param == "sqlite":
        (tmp_path / "home").mkdir()
        yield str(tmp_path / "home" / "ett.db")
        return
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'ett[postgres]'")
    server: str = request.getfixturevalue("postgres")
    name = f"t{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    yield server.replace("/postgres?", f"/{name}?")


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def case_log() -> Callable[[Any], Any]:
    """The maker of event logs of tests/ett/cases, which stands beside them."""
    spec = importlib.util.spec_from_file_location("ett_cases", ETT_TESTS / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    maker: Callable[[Any], Any] = module.CaseLog
    return maker


@pytest.fixture(scope="session")
def step_line() -> Callable[..., bytes]:
    """A step of rank 0 that takes a second, as its writer writes it; fields may be given."""

    def line(seq: int, /, **fields: Any) -> bytes:
        record = {
            "v": 1, "job": "j", "att": 1, "gen": 0, "src": "r0", "rank": 0, "host": "h", "boot": "b", "pid": 7,
            "seq": seq, "wall_ns": 10**18 + seq * 10**9, "mono_ns": seq * 10**9, "ev": "step", "step": seq,
            "b_mono": seq * 10**9, "e_mono": (seq + 1) * 10**9, "c0": seq, "c1": seq + 1, "world": 1,
        }  # fmt: skip
        return encode_line(record | fields)

    return line
