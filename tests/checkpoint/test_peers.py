"""A restore reads its own buffer, then those of other hosts, then the remote folder: always the committed bytes."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from checkpoint_world import Rank, ThreadRanks, holds, raise_first, run_ranks

from ett.checkpoint import peer_tier as peer_tier_module
from ett.checkpoint.buffer import buffer_store
from ett.checkpoint.commit import Commit
from ett.checkpoint.commit_log import CommitLog, line_of_history
from ett.checkpoint.local_store import LocalReader, LocalStore
from ett.checkpoint.peer_server import PeerServer
from ett.checkpoint.peers import Held, Peers
from ett.checkpoint.segment import StoredFile
from ett.errors import ConfigError

LOOPBACK = "127.0.0.1"


class Counting(LocalStore):
    """A remote folder that knows which files of a state were read from it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.was_read: set[str] = set()

    @contextmanager
    def open(self, name: str) -> Iterator[LocalReader]:
        self.was_read.add(name)
        with super().open(name) as reader:
            yield reader

    def read(self, name: str) -> bytes:
        if not name.startswith("commits/") and name != "FORMAT.json":
            self.was_read.add(name)
        return super().read(name)


@pytest.fixture
def remote(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "remote")


def ran(remote: Counting, hosts: list[Path], seed: int | None, **config: Any) -> list[Rank]:
    """Restore with a rank on each host, then save `seed` if there is one; the remote folder is asked for it at last."""

    def work(ranks: ThreadRanks) -> Rank:
        rank = Rank(remote.root, ranks, store=remote, buffer_dir=str(hosts[ranks.rank]), **config)
        rank.checkpointer.restore()
        if seed is not None:
            rank.fill(seed)
            rank.checkpointer.save(seed, seed * 10)
        rank.checkpointer.close()
        return rank

    results = run_ranks(len(hosts), work)
    raise_first(results)
    return results  # type: ignore[return-value]


@pytest.fixture
def hosts(tmp_path: Path, remote: Counting) -> list[Path]:
    """Two hosts whose buffers have what their rank has saved, and no more."""
    hosts = [tmp_path / "a", tmp_path / "b"]
    ran(remote, hosts, 1)
    remote.was_read.clear()
    return hosts


def newest(remote: Counting) -> Commit:
    return line_of_history(CommitLog(LocalStore(remote.root)).read_all()[0])[0]


def folder(remote: Counting, host: Path) -> Path:
    return buffer_store(host / "test-job", remote.uri).root


def is_state(world: list[Rank], seed: int) -> bool:
    return holds([(rank, None) for rank in world], seed)


def copies(remote: Counting, host: Path) -> set[str]:
    root = folder(remote, host)
    return {str(path.relative_to(root)) for top in "dm" for path in root.glob(f"{top}*/**/*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_a_buffer_has_lost_comes_from_the_other_hosts(
    remote: Counting, hosts: list[Path], order: tuple[int, int]
) -> None:
    """Also where the ranks have changed hosts."""
    before = [copies(remote, host) for host in hosts]
    assert before[0] and before[1] and not before[0] & before[1]
    assert is_state(ran(remote, [hosts[n] for n in order], None, peer_address=LOOPBACK), 1)
    assert remote.was_read == set()
    assert [copies(remote, host) for host in hosts] == before, "what was fetched was removed again"
    assert not [thread for thread in threading.enumerate() if thread.name == "ckpt-peer"]


@pytest.mark.slow
def test_without_an_address_nothing_is_served(
    remote: Counting, hosts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tier_module, "PeerServer", None)
    assert is_state(ran(remote, hosts, None), 1)
    assert {file.stored.path for table in newest(remote).tables for file in table.files} <= remote.was_read


@pytest.mark.slow
def test_a_host_that_is_new_reads_from_the_one_that_is_left(
    remote: Counting, hosts: list[Path], tmp_path: Path
) -> None:
    left = copies(remote, hosts[0])
    assert is_state(ran(remote, [hosts[0], tmp_path / "c"], None, peer_address=LOOPBACK), 1)
    assert remote.was_read == {file.path for file in newest(remote).stored_files()} - left


@pytest.mark.slow
@pytest.mark.parametrize("address", ["", LOOPBACK])
def test_damaged_copies_are_dropped_where_the_ranks_have_changed_hosts(
    remote: Counting, hosts: list[Path], address: str
) -> None:
    for host in hosts:
        for name in copies(remote, host):
            path = folder(remote, host) / name
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    assert is_state(ran(remote, hosts[::-1], None, peer_address=address), 1)


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["bit", "last bit", "short", "long", "gone"])
def test_what_a_peer_gives_is_hashed_on_arrival_and_read_elsewhere_if_it_is_not_the_file(
    remote: Counting, hosts: list[Path], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer serves copies of its copies, which are damaged."""

    class Damaged(PeerServer):
        def __init__(self, root: Path, offered: dict[str, StoredFile], address: str) -> None:
            served = root.with_name("served")
            for path in offered:
                data = (root / path).read_bytes()
                flipped = data[:9] + bytes([data[9] ^ 1]) + data[10:]
                last = data[:-1] + bytes([data[-1] ^ 1])
                harmed = {"bit": flipped, "last bit": last, "short": data[:-1], "long": data + b"x"}
                (served / path).parent.mkdir(parents=True, exist_ok=True)
                if harm != "gone":
                    (served / path).write_bytes(harmed[harm])
            super().__init__(served, offered, address)

    monkeypatch.setattr(peer_tier_module, "PeerServer", Damaged)
    theirs = copies(remote, hosts[1])
    new = hosts[0].with_name("c")
    assert is_state(ran(remote, [new, hosts[1]], None, peer_address=LOOPBACK), 1)
    assert theirs <= remote.was_read, "the first rank needs all of them, and no peer has them as they were"
    assert copies(remote, new) == set()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[PeerServer, StoredFile, LocalStore]]:
    held = LocalStore(tmp_path / "held")
    held.create("m/x/w00000.json", b"content")
    held.create("secret", b"secret")
    stored = StoredFile(path="m/x/w00000.json", bytes=7, xxh3_128="917e1274274fc195b27a2d2388d9568c")
    server = PeerServer(held.root, {stored.path: stored}, LOOPBACK)
    yield server, stored, LocalStore(tmp_path / "mine")
    server.close()


def status(server: PeerServer, path: str, method: str = "GET") -> int:
    place = urlsplit(server.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=300)
    connection.request(method, path)
    answer = connection.getresponse().status
    connection.close()
    return answer


def test_only_offered_files_are_served_and_only_to_who_knows_the_word(
    served: tuple[PeerServer, StoredFile, LocalStore],
) -> None:
    server, stored, _ = served
    word = urlsplit(server.url).path
    good = f"{word}/{stored.xxh3_128}/{stored.path}"
    assert status(server, good) == 200
    for path in (
        f"{word}/{stored.xxh3_128}/secret",
        f"{word}/{stored.xxh3_128}/m/../secret",
        f"{word}/{stored.xxh3_128}/m/x/../../secret",
        f"{word}/{stored.xxh3_128}//etc/passwd",
        f"{word}/{'0' * 32}/{stored.path}",
        f"/{'0' * 32}/{stored.xxh3_128}/{stored.path}",
        "/",
    ):
        assert status(server, path) == 404, path
    assert status(server, good, "PUT") == 501
    assert status(server, good, "DELETE") == 501


@pytest.mark.slow
def test_a_file_is_fetched_once_and_forgotten(served: tuple[PeerServer, StoredFile, LocalStore]) -> None:
    server, stored, mine = served
    peers = Peers(mine, {stored.path: Held(stored, server.url)})
    assert not peers.fetch("secret")
    assert peers.fetch(stored.path)
    server.close()
    assert peers.fetch(stored.path), "it is there already"
    assert mine.read(stored.path) == b"content"
    peers.forget()
    assert mine.list("") == []


@pytest.mark.slow
def test_a_peer_that_is_gone_is_asked_once(tmp_path: Path) -> None:
    server = PeerServer(tmp_path, {}, LOOPBACK)
    server.close()
    files = [StoredFile(path=f"m/x/{n}", bytes=1, xxh3_128="0" * 32) for n in range(2)]
    peers = Peers(LocalStore(tmp_path / "mine"), {file.path: Held(file, server.url) for file in files})
    asked: list[str] = []
    opened = peers._open
    peers._open = lambda url, **options: (asked.append(url), opened(url, **options))[1]
    assert [peers.fetch(file.path) for file in files] == [False, False]
    assert len(asked) == 1


def test_an_address_of_another_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.peer_address is '192\.0\.2\.1'"):
        PeerServer(tmp_path, {}, "192.0.2.1")
