"""SIGTERM, SIGINT and SIGHUP to a supervisor: remembered here, acted upon where nothing is half done."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignals:
    """Remembers the first stop signal; a second SIGINT makes the stop urgent. Only the main thread may install it."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self.is_urgent = False

    def install(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._remember)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` asks us to outlive the terminal
            signal.signal(signal.SIGHUP, self._remember)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        if self.requested is not None and signum == signal.SIGINT:
            self.is_urgent = True
        self.requested = self.requested or signal.Signals(signum)
