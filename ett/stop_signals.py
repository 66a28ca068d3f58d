"""What tells a supervisor to stop: remembered here, acted upon where nothing is half done.

SIGTERM, SIGINT, SIGHUP; and SIGUSR1 and SIGUSR2, by which schedulers say some time ahead that they will take the host
(Slurm's `--signal=USR1@120`).
"""

from __future__ import annotations

import signal
from types import FrameType

# A rank that got the same notice from the scheduler before it could save ends by one of these, and failed at nothing.
NOTICES = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
NOTICE_CODES = frozenset({*(-signum for signum in NOTICES), *(128 + signum for signum in NOTICES)})


class StopSignals:
    """Remembers the first stop signal; a second SIGINT makes the stop urgent. Only the main thread may install it."""

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self.is_urgent = False

    def install(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._remember)
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # `nohup` asks us to outlive the terminal
                signal.signal(signum, self._remember)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        if self.requested is not None and signum == signal.SIGINT:
            self.is_urgent = True
        self.requested = self.requested or signal.Signals(signum)
