"""One rank of a running attempt, started anew alone: its output goes on in the same files. Importing this is light."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


class ReplacedRank:
    """What torch's agent knows of a worker: `proc` and `close`."""

    def __init__(self, proc: subprocess.Popen[bytes]) -> None:
        """Args: proc: leads a session of its own."""
        self.proc = proc

    @classmethod
    def start(cls, command: Sequence[str], environ: Mapping[str, str], out: str, err: str) -> ReplacedRank:
        with open(out, "ab") as stdout, open(err, "ab") as stderr:
            return cls(
                subprocess.Popen(
                    command, env={**os.environ, **environ}, stdout=stdout, stderr=stderr, start_new_session=True
                )
            )

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the rank's whole session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
