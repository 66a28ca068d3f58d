"""In which order child processes ended: of ranks that fail within one poll, the first is the cause."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping


class ExitOrder:
    """Watches processes from a thread, each through a pidfd, and lists the ranks as they end."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        """Args: pids: process id by rank; one that is gone already is left out."""
        self.ended: list[int] = []
        self._poller = select.poll()
        self._ranks: dict[int, int] = {}
        for rank, pid in pids.items():
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            self._ranks[fd] = rank
            self._poller.register(fd, select.POLLIN)
        threading.Thread(target=self._watch, name="ett-exit-order", daemon=True).start()

    def _watch(self) -> None:
        while self._ranks:
            for fd, _ in self._poller.poll():
                self._poller.unregister(fd)
                self.ended.append(self._ranks.pop(fd))
                os.close(fd)
