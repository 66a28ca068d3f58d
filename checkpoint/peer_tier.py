"""The tier between a host's buffer and the remote folder: other hosts' buffers, while all ranks restore a commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ett.checkpoint.buffered_store import BufferedStore
from ett.checkpoint.canonical_json import Json
from ett.checkpoint.commit import Commit
from ett.checkpoint.peer_server import PeerServer
from ett.checkpoint.peers import Held, Peers
from ett.checkpoint.ranks import Ranks, gather_or_raise
from ett.checkpoint.segment import StoredFile


@contextmanager
def peers_of(
    store: BufferedStore, commit: Commit, mine: list[StoredFile], *, ranks: Ranks, hosts: list[str], address: str
) -> Iterator[None]:
    """Let `store` read what the buffers of other hosts have of a commit. Collective.

    Args:
        mine: this rank's part of its host's files, whole; each is offered by one rank.
        hosts: of all ranks.
        address: where this rank offers its files; "" offers none, and those of others are read all the same.
    Raises: ConfigError: the address is not this host's.
    """
    files = {file.path: file for file in commit.stored_files()}
    offered = {file.path: file for file in mine if (store.local.root / file.path).exists()}
    with ExitStack() as stack:

        def offer() -> Json:
            if not address or not offered:
                return {"url": "", "names": []}
            server = PeerServer(store.local.root, offered, address)
            stack.callback(server.close)
            return {"url": server.url, "names": sorted(offered)}

        offers = gather_or_raise(ranks, offer)
        held = {
            name: Held(files[name], offer["url"])
            for offer, host in zip(offers, hosts, strict=True)
            if host != hosts[ranks.rank]
            for name in offer["names"]
        }
        store.peers = peers = Peers(store.local, held)
        try:
            yield
            ranks.gather(None)  # whoever serves a file, or has fetched it for its host, waits for all who read
        finally:
            store.peers = None
            peers.forget()
