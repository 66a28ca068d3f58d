"""A bucket as a store: names given once, files whole or absent, whatever the network does to requests and answers."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from s3_servers import QUICK, S3Server, options, s3_store

from ett.checkpoint import s3_client
from ett.checkpoint import s3_store as s3_store_module
from ett.checkpoint.bench.faults.fault_proxy import Fault, FaultProxy, Plan, Request
from ett.checkpoint.commit_log import prepare_folder
from ett.checkpoint.s3_client import S3Client, Transient
from ett.checkpoint.s3_store import S3Store
from ett.errors import AccessDenied, ConfigError, Unreachable

PART = 5 << 20  # the smallest part that S3 allows


@pytest.fixture
def store(proxy: FaultProxy) -> S3Store:
    return s3_store(proxy.url)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_store_module, "PART_BYTES", PART)


def file_of(path: Path, size: int, first: bytes = b"x") -> Path:
    path.write_bytes(first + os.urandom(size - 1))
    return path


def content(store: S3Store, name: str) -> bytes:
    with store.open(name) as reader:
        data = bytearray(reader.size)
        assert reader.read_into(0, memoryview(data)) == reader.size
    return bytes(data)


PARTS = {"small": "d/f", "complete": "uploadId="}


def once(fault: Fault, method: str, part: str = "") -> Plan:
    """Return a plan that does `fault` to the first request of `method` whose path holds `part`."""
    done: list[Request] = []

    def plan(request: Request) -> Fault | None:
        if not done and request.method == method and part in request.path:
            done.append(request)
            return fault
        return None

    return plan


@pytest.mark.slow
def test_a_name_is_given_once(store: S3Store) -> None:
    store.create("a/b.json", b"first")
    with pytest.raises(FileExistsError):
        store.create("a/b.json", b"second")
    store.create("a/b.json", b"first")  # it may be our own, whose answer was lost
    assert store.read("a/b.json") == b"first"


@pytest.mark.slow
def test_what_is_not_there_is_not_found(store: S3Store) -> None:
    for look in (store.read, store.size):
        with pytest.raises(FileNotFoundError):
            look("a/missing")
    for use in (lambda reader: reader.size, lambda reader: reader.read_into(0, memoryview(bytearray(8)))):
        with store.open("a/missing") as reader, pytest.raises(FileNotFoundError):
            use(reader)
    store.delete("a/missing")
    assert store.list("a") == []


@pytest.mark.slow
def test_lists_hold_the_names_below_a_folder_only(store: S3Store) -> None:
    for name in ("m/x/w0.json", "m/y/w0.json", "mm/z", "commits/1.json"):
        store.create(name, b"")
    assert store.list("m") == ["m/x/w0.json", "m/y/w0.json"]
    assert store.list("") == ["commits/1.json", "m/x/w0.json", "m/y/w0.json", "mm/z"]
    store.delete("m/x/w0.json")
    assert store.list("m") == ["m/y/w0.json"]


def test_a_list_goes_on_after_its_first_page(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    send = store.client.send

    async def short_pages(method: str, **arguments: object) -> object:
        return await send(method, **arguments, **({"MaxKeys": 2} if method == "list_objects_v2" else {}))

    monkeypatch.setattr(store.client, "send", short_pages)
    names = [f"d/{n}" for n in range(5)]
    for name in names:
        store.create(name, b"")
    assert store.list("d") == names


def test_ranges_are_read_into_a_buffer(store: S3Store) -> None:
    store.create("a", bytes(range(200)))
    with store.open("a") as reader:
        buffer = bytearray(100)
        assert reader.read_into(50, memoryview(buffer)) == 100
        assert buffer == bytes(range(50, 150))
        assert reader.read_into(190, memoryview(buffer)) == 10
        assert buffer[:10] == bytes(range(190, 200))
        assert reader.read_into(200, memoryview(buffer)) == 0


@pytest.mark.slow
def test_a_large_file_is_sent_and_read_in_parts(
    store: S3Store, proxy: FaultProxy, tmp_path: Path, small_parts: None
) -> None:
    path = file_of(tmp_path / "file", 2 * PART + 100)
    store.put_file("d/file.seg", path, "h")
    assert content(store, "d/file.seg") == path.read_bytes()
    assert sum("partNumber=" in request.path for request in proxy.seen) == 3
    assert store.unfinished() == {}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2 * PART])
def test_a_file_is_sent_again_without_harm_and_never_over_another(
    store: S3Store, tmp_path: Path, small_parts: None, size: int
) -> None:
    ours, other = file_of(tmp_path / "ours", size), file_of(tmp_path / "other", size, b"y")
    store.put_file("d/f", ours, "ours")
    store.put_file("d/f", ours, "ours")
    with pytest.raises(FileExistsError):
        store.put_file("d/f", other, "other")
    assert content(store, "d/f") == ours.read_bytes()
    assert store.unfinished() == {}


def test_a_stream_that_breaks_off_leaves_nothing(store: S3Store) -> None:
    with pytest.raises(RuntimeError), store.create_stream("d/half") as file:
        file.write(b"half")
        raise RuntimeError
    with store.create_stream("d/whole") as file:
        file.write(b"whole")
    assert store.list("") == ["d/whole"]
    assert store.read("d/whole") == b"whole"


FAULTS: list[Fault] = ["reset", "lost answer", "unavailable", "twice", "expired", "conflict", "conflict after acting"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_create_survives(store: S3Store, proxy: FaultProxy, fault: Fault) -> None:
    proxy.plan = once(fault, "PUT")
    store.create("a", b"data")
    assert store.read("a") == b"data"
    with pytest.raises(FileExistsError):
        store.create("a", b"other")


@pytest.mark.slow
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", ["small", "?uploads", "partNumber=2", "complete"])
def test_an_upload_survives(store: S3Store, proxy: FaultProxy, tmp_path: Path, fault: Fault, at: str) -> None:
    if at in ("?uploads", "partNumber=2") and fault.startswith("conflict"):
        pytest.skip("no condition is attached to this request")
    path = file_of(tmp_path / "file", 100 if at == "small" else 2 * PART)
    proxy.plan = once(fault, "POST" if at in ("?uploads", "complete") else "PUT", PARTS.get(at, at))
    store.put_file("d/f", path, "h")
    assert content(store, "d/f") == path.read_bytes()
    for name in store.unfinished():  # an upload whose number was never told can only be swept
        assert at == "?uploads"
        store.delete(name)
    assert store.unfinished() == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "lost answer", "torn answer", "unavailable", "expired"])
def test_a_read_survives(store: S3Store, proxy: FaultProxy, fault: Fault) -> None:
    data = os.urandom(5000)
    store.create("a", data)
    for method in ("GET", "HEAD"):
        proxy.plan = once(fault, method)
        assert content(store, "a") == data
    proxy.plan = once(fault, "GET")
    assert store.read("a") == data
    proxy.plan = once(fault, "GET")
    assert store.list("") == ["a"]


def test_a_lost_answer_is_no_licence_to_take_anothers_name(store: S3Store, proxy: FaultProxy, moto: S3Server) -> None:
    other = s3_store(moto.url, store.uri.rpartition("/")[2])

    def plan(request: Request) -> Fault | None:
        if request.method == "PUT" and not other.list(""):
            other.create("a", b"another's")
            return "reset"
        return None

    proxy.plan = plan
    with pytest.raises(FileExistsError):
        store.create("a", b"ours")
    assert store.read("a") == b"another's"


@pytest.mark.slow
def test_a_store_that_never_answers_is_unreachable(store: S3Store, proxy: FaultProxy) -> None:
    proxy.plan = lambda request: "unavailable"
    with pytest.raises(Unreachable, match="in 4 attempts") as raised:
        store.create("a", b"data")
    assert raised.value.exit_code == 6
    assert len(proxy.seen) == QUICK.attempts


@pytest.mark.slow
def test_a_failed_upload_is_aborted(store: S3Store, proxy: FaultProxy, tmp_path: Path, small_parts: None) -> None:
    proxy.plan = lambda request: "unavailable" if "partNumber=2" in request.path else None
    with pytest.raises(Unreachable):
        store.put_file("d/f", file_of(tmp_path / "file", 2 * PART), "h")
    assert store.unfinished() == {}
    assert store.list("") == []


def test_an_upload_left_behind_is_seen_and_removed(store: S3Store) -> None:
    store.client.run(lambda: store.client.request("create_multipart_upload", Key=store._key("d/x.seg")))
    store.client.run(lambda: store.client.request("create_multipart_upload", Key="another/d/x.seg"))
    ((name, meant),) = store.unfinished().items()
    assert meant == "d/x.seg"
    store.delete(name)
    assert store.unfinished() == {}


def test_refused_credentials_are_named(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    without = {**options("http://127.0.0.1:1"), "key": None, "secret": None}
    with pytest.raises(AccessDenied) as raised:
        S3Store("s3://bucket/x", policy=QUICK, options=without).read("a")
    assert raised.value.code == "P003"
    assert "no credentials for s3://bucket/x/a: Unable to locate" in raised.value.fact
    assert "AWS_ACCESS_KEY_ID" in raised.value.expected
    assert "rights" not in raised.value.do


@pytest.mark.slow
def test_keys_are_read_anew_for_a_file_once_a_session_is_old(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the store would still take the old ones: they may expire in the middle of a long upload."""
    store = s3_store(moto.url)
    (tmp_path / "file").write_bytes(b"1")
    sessions = []
    for number in range(3):
        monkeypatch.setattr(s3_client, "SESSION_S", -1.0 if number == 2 else 300.0)
        store.put_file(f"d/{number}", tmp_path / "file", "h")
        sessions.append(store.client._system)
    assert sessions[0] is sessions[1]
    assert sessions[2] is not sessions[1]


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_named(proxy: FaultProxy) -> None:
    with pytest.raises(ConfigError, match="no bucket nowhere") as raised:
        prepare_folder(S3Store("s3://nowhere/job", policy=QUICK, options=options(proxy.url)))
    assert raised.value.code == "F004"


def test_a_bucket_that_enforces_create_only_is_taken(store: S3Store) -> None:
    prepare_folder(store)
    prepare_folder(store)
    assert store.list("") == ["FORMAT.json"]


def test_a_bucket_that_ignores_conditions_is_refused(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    send = store.client.send

    async def unconditional(method: str, **arguments: object) -> object:
        arguments.pop("IfNoneMatch", None)
        return await send(method, **arguments)

    monkeypatch.setattr(store.client, "send", unconditional)
    with pytest.raises(ConfigError, match="second writer") as raised:
        prepare_folder(store)
    assert raised.value.code == "F007"


_FORKS = """
import os, sys
from s3_servers import s3_store
store = s3_store(sys.argv[1])
store.create("a", b"before")
child = os.fork()
if child == 0:
    os._exit(0 if store.read("a") == b"before" else 1)
assert os.waitpid(child, 0)[1] == 0
store.create("b", b"after")
"""


@pytest.mark.slow
def test_a_store_that_was_used_works_in_a_fork_and_in_its_parent(moto: S3Server) -> None:
    """fsspec's loop is a thread, which a fork does not copy: a child that went on with it would wait for ever."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", _FORKS, moto.url]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, timeout=300, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_retry_leaves_the_generators_of_training_alone() -> None:
    """A checkpoint holds their state: a bucket that was slow once must not give another run."""
    client, answers = S3Client("bucket", QUICK), [Transient("slow down"), Transient("slow down")]

    async def send() -> str:
        if answers:
            raise answers.pop()
        return "done"

    before = random.getstate()
    assert asyncio.run(client.attempt(send, "a request")) == "done"
    assert random.getstate() == before
