"""The rendezvous of a job on one host: nobody to wait for, and each attempt's ranks meet at a store of their own.

torch's c10d rendezvous keeps one store for all attempts (2.11, 2.13): a restarted rank then reads the address that a
dead one left there and fails with "connection refused". Its stores also listen on every interface of the host.
Importing this imports torch.
"""

from __future__ import annotations

import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

ADDRESS = "127.0.0.1"


class OneHostRendezvous(RendezvousHandler):
    """One node of rank 0, at once, with a fresh store each time."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    @property
    def use_agent_store(self) -> bool:
        return True  # ranks connect to the supervisor's store; rank 0 does not open one

    def get_backend(self) -> str:
        return "one-host"

    def next_rendezvous(self) -> RendezvousInfo:
        store = local_store()
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(ADDRESS, store.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else could still join."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def local_store() -> TCPStore:
    """Return the server of a new store that only this host reaches."""
    with socket.create_server((ADDRESS, 0)) as listener:
        port = listener.getsockname()[1]
        return TCPStore(ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
