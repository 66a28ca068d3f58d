"""Fetch and publish over real folders: what one process compiled is what the next begins with, or it compiles cold."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from ett.checkpoint.bench.folder_bucket import folder_bucket
from ett.compile_cache.cache import CompileCache
from ett.compile_cache.cache_folder import read_files, write_files
from ett.compile_cache.config import CompileConfig
from ett.compile_cache.key import KeyParts
from ett.compile_cache.pack_store import FolderPacks, RemotePacks
from ett.errors import AccessDenied, Unreachable

PARTS = KeyParts(software={"torch": "2"}, machine={}, code="c", model={}, options={}, shapes=[])
KEY = PARTS.key


def graph(letter: str, pickled: str = "0") -> dict[str, bytes]:
    """Return the files of one compiled graph; `pickled`: what differs between two processes that compile it."""
    return {
        f"fxgraph/p5/{letter * 52}/{pickled * 52}": letter.encode() * 100 + pickled.encode(),
        f"t3/{letter * 52}.so": letter.encode() * 1000,
    }


@dataclass
class Host:
    """One home folder; each process has a cache folder of its own."""

    home: Path
    config: CompileConfig = field(default_factory=CompileConfig)
    events: list[dict[str, object]] = field(default_factory=list)

    def process(self, compiled: dict[str, bytes] | None = None, parts: KeyParts = PARTS) -> CompileCache:
        folder = self.home / f"process-{uuid4().hex}"
        write_files(folder, compiled or {})
        return CompileCache(self.config, parts, folder, {**os.environ, "ETT_HOME": str(self.home)}, self._emit)

    def _emit(self, ev: str, **fields: object) -> None:
        self.events.append({"ev": ev, **fields})

    @property
    def packs(self) -> list[str]:
        return [stored.name for stored in FolderPacks(self.home / "compile-cache").stored()]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "home")


@pytest.fixture
def bucket() -> Iterator[str]:
    uri = f"memory://bucket-{uuid4().hex}"
    yield uri
    system, root = fsspec.core.url_to_fs(uri)
    if system.exists(root):
        system.rm(root, recursive=True)


def unpacked(cache: CompileCache) -> dict[str, bytes]:
    return read_files(cache.folder, (), 1 << 30) or {}


def compile_there(cache: CompileCache, files: dict[str, bytes]) -> None:
    write_files(cache.folder, files)


def test_the_first_start_misses(host: Host) -> None:
    assert host.process().fetch().result == "miss"


def test_the_next_start_begins_with_what_was_compiled(host: Host) -> None:
    assert host.process(graph("a")).publish() == "published"
    warm = host.process()
    fetched = warm.fetch()
    assert (fetched.result, fetched.source, fetched.num_packs) == ("hit", str(host.home / "compile-cache"), 1)
    assert unpacked(warm) == graph("a")


def test_another_key_has_nothing_of_it(host: Host) -> None:
    host.process(graph("a")).publish()
    other = host.process(parts=replace(PARTS, code="d"))
    assert other.fetch().result == "miss"
    assert unpacked(other) == {}


def test_a_warm_start_publishes_nothing(host: Host) -> None:
    host.process(graph("a")).publish()
    warm = host.process()
    warm.fetch()
    compile_there(warm, {f"t3/{'z' * 52}.py": b"a file without a graph"})
    assert warm.publish() == "nothing_new"
    assert host.packs == [f"{KEY}/0000.pack"]


def test_of_processes_that_race_one_publishes(host: Host) -> None:
    caches = [host.process(graph("a", pickled=str(number))) for number in range(8)]
    ready, results = threading.Barrier(len(caches)), list[str]()

    def publish(cache: CompileCache) -> None:
        ready.wait()
        results.append(cache.publish())

    threads = [threading.Thread(target=publish, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["published"] + ["taken"] * 7
    assert host.packs == [f"{KEY}/0000.pack"]


def test_new_graphs_are_added_to_what_was_published(host: Host) -> None:
    host.process(graph("a")).publish()
    second = host.process()
    second.fetch()
    compile_there(second, graph("b"))
    assert second.publish() == "published"
    third = host.process()
    assert third.fetch().num_packs == 2
    assert unpacked(third) == graph("a") | graph("b")


def test_whoever_comes_second_adds_only_what_the_first_lacks(host: Host) -> None:
    first, second = host.process(graph("a")), host.process(graph("a", pickled="1") | graph("b"))
    first.publish()
    assert second.publish() == "published"
    stored = {s.name: s.num_bytes for s in FolderPacks(host.home / "compile-cache").stored()}
    assert list(stored) == [f"{KEY}/0000.pack", f"{KEY}/0001.pack"]
    third = host.process()
    third.fetch()
    assert unpacked(third) == graph("a") | graph("b")


def damage(host: Host, how: str) -> None:
    path = host.home / "compile-cache" / KEY / "0000.pack"
    data = path.read_bytes()
    path.write_bytes(data[:-1] if how == "torn" else data[:50] + bytes([data[50] ^ 1]) + data[51:])


@pytest.mark.parametrize("how", ["torn", "flipped"])
def test_a_damaged_pack_is_refused(host: Host, how: str) -> None:
    host.process(graph("a")).publish()
    damage(host, how)
    cold = host.process()
    fetched = cold.fetch()
    assert (fetched.result, unpacked(cold)) == ("refused", {})
    assert "0000.pack" in fetched.why


def test_what_is_compiled_instead_of_a_damaged_pack_is_published_beside_it(host: Host) -> None:
    host.process(graph("a")).publish()
    damage(host, "torn")
    cold = host.process()
    cold.fetch()
    compile_there(cold, graph("a"))
    assert cold.publish() == "published"
    warm = host.process()
    assert warm.fetch().result == "hit"
    assert unpacked(warm) == graph("a")


def test_a_pack_that_could_not_be_copied_here_is_published_here_with_what_is_new(
    host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged pack has its name: what another start finds here must not be the new graphs alone."""
    monkeypatch.setenv("ETT_COMPILE_CACHE_KEY", "the key of all hosts")
    host.config = CompileConfig(uri=bucket)
    host.process(graph("a")).publish()
    damage(host, "torn")
    warm = host.process()
    assert warm.fetch().source == bucket
    compile_there(warm, graph("b"))
    warm.publish()
    host.config = CompileConfig()
    next_one = host.process()
    next_one.fetch()
    assert unpacked(next_one) == graph("a") | graph("b")


def test_a_bound_that_cannot_be_kept_costs_no_fetch(host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: FolderPacks, name: str) -> None:
        raise AccessDenied(f"no permission for {name}")

    monkeypatch.setenv("ETT_COMPILE_CACHE_KEY", "the key of all hosts")
    other = Host(host.home.with_name("other"), CompileConfig(uri=bucket))
    other.process(graph("a")).publish()
    host.process(graph("b"), replace(PARTS, code="d")).publish()
    host.config = CompileConfig(uri=bucket, max_bytes=1)
    monkeypatch.setattr(FolderPacks, "delete", refuses)
    assert host.process().fetch().result == "hit"


def test_a_pack_signed_elsewhere_is_refused(host: Host) -> None:
    host.process(graph("a")).publish()
    (host.home / "compile-cache.key").unlink()
    assert host.process().fetch().result == "refused"


def test_a_pack_of_another_key_under_this_name_is_refused(host: Host) -> None:
    other = replace(PARTS, code="d")
    host.process(graph("a"), other).publish()
    (host.home / "compile-cache" / other.key).rename(host.home / "compile-cache" / KEY)
    cold = host.process()
    assert cold.fetch().result == "refused"
    assert unpacked(cold) == {}


def test_other_hosts_begin_with_what_one_has_compiled(tmp_path: Path, bucket: str) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("the key of all hosts")
    key_file.chmod(0o600)
    config = CompileConfig(uri=bucket, key_file=str(key_file))
    first, second = Host(tmp_path / "first", config), Host(tmp_path / "second", config)
    assert first.process(graph("a")).publish() == "published"
    warm = second.process()
    assert warm.fetch().source == bucket
    assert unpacked(warm) == graph("a")
    assert second.packs == [f"{KEY}/0000.pack"]  # kept for the next start
    assert second.process().fetch().source == str(second.home / "compile-cache")


def test_packs_of_a_bucket_are_read_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_COMPILE_CACHE_KEY", "the key of all hosts")
    first = Host(tmp_path / "first")
    first.process(graph("a")).publish()
    with folder_bucket(first.home) as port:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        second = Host(tmp_path / "second", CompileConfig(uri="s3://bench/compile-cache"))
        warm = second.process()
        assert warm.fetch().source == "s3://bench/compile-cache"
        assert unpacked(warm) == graph("a")
        assert second.process(parts=replace(PARTS, code="d")).fetch().result == "miss"


def test_a_pack_that_goes_before_it_is_read_is_passed_over(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.process(graph("a")).publish()
    stored = FolderPacks(host.home / "compile-cache").stored()
    (host.home / "compile-cache" / stored[0].name).unlink()
    monkeypatch.setattr(FolderPacks, "stored", lambda self, prefix="": stored)
    assert host.process().fetch().result == "miss"


def test_a_store_that_is_down_leaves_what_lies_here(host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(self: RemotePacks, prefix: str = "") -> list[object]:
        raise Unreachable(f"{self.uri}: no route to host")

    monkeypatch.setattr(RemotePacks, "stored", down)
    host.config = CompileConfig(uri=bucket)
    fetched = host.process().fetch()
    assert (fetched.result, "no route to host" in fetched.why) == ("failed", True)


def stuck_buckets(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have buckets answer once the event is set."""
    answer = threading.Event()

    def stuck(self: RemotePacks, prefix: str = "") -> list[object]:
        answer.wait()
        return []

    monkeypatch.setattr(RemotePacks, "stored", stuck)
    return answer


def test_a_store_that_never_answers_is_given_up(host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stuck_buckets(monkeypatch)
    host.config = CompileConfig(uri=bucket, fetch_timeout_s=0.05)
    cache = host.process()
    assert cache.fetch().result == "late"
    assert cache.publish() == "nothing_new"  # nothing was compiled, so no store is asked
    compile_there(cache, graph("a"))
    assert cache.publish() == "failed"
    answer.set()


def test_a_cache_that_cannot_be_written_fails_no_training(host: Host) -> None:
    host.home.mkdir()
    (host.home / "compile-cache").write_text("a file, where the folder should be")
    assert host.process(graph("a")).publish() == "failed"


def test_a_host_whose_own_store_fails_publishes_for_the_others(
    host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_COMPILE_CACHE_KEY", "the key of all hosts")
    host.home.mkdir()
    (host.home / "compile-cache").write_text("a file, where the folder should be")
    host.config = CompileConfig(uri=bucket)
    assert host.process(graph("a")).publish() == "failed"
    assert [stored.name for stored in RemotePacks(bucket).stored()] == [f"{KEY}/0000.pack"]


def test_a_shared_store_that_has_nothing_gets_what_a_host_begins_with(host: Host, bucket: str) -> None:
    """It was down, or not yet configured, when this host compiled."""
    host.process(graph("a")).publish()
    host.process(graph("b")).publish()
    damage(host, "torn")
    host.config = CompileConfig(uri=bucket)
    warm = host.process()
    assert (warm.fetch().result, warm.publish()) == ("hit", "published")
    assert [stored.name for stored in RemotePacks(bucket).stored()] == [f"{KEY}/0001.pack"]
    again = host.process()
    assert (again.fetch().result, again.publish()) == ("hit", "nothing_new")


def test_what_went_meanwhile_is_not_said_to_be_published(host: Host, bucket: str) -> None:
    host.process(graph("a")).publish()
    host.config = CompileConfig(uri=bucket)
    warm = host.process()
    assert warm.fetch().result == "hit"
    shutil.rmtree(host.home / "compile-cache")
    assert warm.publish() == "nothing_new"


def test_a_rank_waits_until_another_has_published(host: Host) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            host.process(graph("a")).publish()

    waiting = host.process()
    assert waiting.wait(60.0, pause).result == "hit"
    assert len(pauses) == 3
    assert unpacked(waiting) == graph("a")


@pytest.mark.parametrize("wait_s, longest_s", [(0.0, 60.0), (60.0, 0.0)])
def test_a_rank_waits_no_longer_than_it_may(wait_s: float, longest_s: float, host: Host) -> None:
    host.config = CompileConfig(wait_s=wait_s)
    assert host.process().wait(longest_s, pauses_once([])).result == "miss"


def pauses_once(then: list[Callable[[], object]]) -> Callable[[float], None]:
    """Return a pause during which `then` happens; a second one would be for nothing."""
    paused: list[float] = []

    def pause(seconds: float) -> None:
        assert not paused
        paused.append(seconds)
        for happens in then:
            happens()

    return pause


def test_a_rank_waits_for_no_pack_that_it_refuses(host: Host) -> None:
    def publish_torn() -> None:
        host.process(graph("a")).publish()
        damage(host, "torn")

    assert host.process().wait(60.0, pauses_once([publish_torn])).result == "refused"


def test_a_rank_waits_for_no_store_that_does_not_answer(
    host: Host, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = stuck_buckets(monkeypatch)
    host.config = CompileConfig(uri=bucket, fetch_timeout_s=0.05)
    assert host.process().wait(60.0, pauses_once([])).result == "late"
    answer.set()


def test_a_key_that_cannot_be_read_is_noticed_where_there_is_no_pack(host: Host) -> None:
    """Where rank 0 cannot sign what it compiles, no rank need wait for that."""
    host.home.mkdir()
    (host.home / "key").write_text("the key of all hosts")
    (host.home / "key").chmod(0o644)
    host.config = CompileConfig(key_file=str(host.home / "key"))
    assert host.process().fetch().result == "failed"


def test_what_was_used_longest_ago_goes_first(host: Host) -> None:
    kinds = [replace(PARTS, code=code) for code in "abc"]
    for parts in kinds[:2]:
        host.process(graph("a"), parts).publish()
    size = FolderPacks(host.home / "compile-cache").stored()[0].num_bytes
    for age, parts in ((100, kinds[1]), (50, kinds[0])):
        path = host.home / "compile-cache" / parts.key / "0000.pack"
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    host.config = CompileConfig(max_bytes=2 * size + size // 2)
    host.process(graph("a"), kinds[2]).publish()
    assert {name.partition("/")[0] for name in host.packs} == {kinds[0].key, kinds[2].key}


def test_a_pack_above_the_bound_is_not_published(host: Host) -> None:
    host.config = CompileConfig(max_pack_bytes=100)
    assert host.process(graph("a")).publish() == "too_large"
    assert host.packs == []


def test_a_pack_above_the_bound_is_not_read_where_another_was_faster(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.process({f"t3/{'a' * 52}.so": os.urandom(5000)}).publish()
    read: list[str] = []
    monkeypatch.setattr(FolderPacks, "read", lambda self, name: read.append(name))
    host.config = CompileConfig(max_pack_bytes=3000)
    assert host.process(graph("a")).publish() == "published"
    assert read == []
    assert host.packs == [f"{KEY}/0000.pack", f"{KEY}/0001.pack"]


def test_each_action_is_an_event(host: Host) -> None:
    cold = host.process(graph("a"))
    cold.fetch()
    cold.publish()
    host.process().fetch()
    said = [(event["ev"], event["action"], event["result"], event["key"]) for event in host.events]
    assert said == [
        ("compile", "fetch", "miss", KEY),
        ("compile", "publish", "published", KEY),
        ("compile", "fetch", "hit", KEY),
    ]
