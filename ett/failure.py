"""Why an attempt failed: which rank first, how, whose fault, and an error text by which two failures compare."""

from __future__ import annotations

import errno
import hashlib
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ett.hang import Hang
from ett.restart import FailureClass

NUM_TAIL_LINES = 20
TAIL_BYTES = 64 << 10
# Ended from outside: the memory killer, the host, an operator. Another signal may be the program or the host.
INFRA_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGPWR, signal.SIGBUS})
# A worker of ours ends with the exit code of its error (ett/errors.py); these would meet a restarted one again.
FINAL_CODES = frozenset({2, 3, 4, 5, 7, 8, 9, 10, 120, 122})


@dataclass(frozen=True, kw_only=True, slots=True)
class RankExit:
    """How one rank ended. `code` is as Python's Popen says it: negative for a signal."""

    rank: int
    code: int
    hang: Hang | None = None  # it was killed because it made no progress
    # Of its process. Rank numbers change with the world, these do not; None and 0: as the supervisor knows the rank.
    local_rank: int | None = field(default=None, compare=False)
    pid: int = field(default=0, compare=False)

    @property
    def exit_code(self) -> int:
        """What a shell would say: 128 + n for a signal."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def signal(self) -> int | None:
        return -self.code if self.code < 0 else None

    def fields(self) -> dict[str, Any]:
        """Return what a record of it says."""
        return {"exit_code": self.exit_code, "signal": self.signal, "class": classify(self)}

    def __str__(self) -> str:
        if self.hang is not None:
            return str(self.hang)
        if self.code >= 0:
            return f"rank {self.rank} exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"rank {self.rank} was killed by {name}"


def first_failure(exits: Sequence[RankExit], order: Sequence[int]) -> RankExit:
    """Return the failed rank that ended first.

    Args:
        exits: of the ranks that ended so far, at least one of them not 0.
        order: ranks in the order in which they ended; may lack some.
    """
    failed = [gone for gone in exits if gone.code != 0]
    places = {rank: place for place, rank in enumerate(order)}
    return min(failed, key=lambda gone: (places.get(gone.rank, len(places)), gone.rank))


def classify(gone: RankExit) -> FailureClass:
    if gone.hang is not None:
        return gone.hang.failure_class
    if gone.signal is not None:
        return "infra" if gone.signal in INFRA_SIGNALS else "unknown"
    return "user"


def last_lines(*paths: Path, num_lines: int = NUM_TAIL_LINES) -> list[str]:
    """Return the last lines of the first of the files that has any; empty if none can be read."""
    for path in paths:
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            continue
        if lines:
            return lines[-num_lines:]
    return []


def stated_cause(lines: Sequence[str]) -> str:
    """Return the last line that names an error, "" where none does: `ValueError: …` or `error[ETT-…]: …`."""
    named = [found.group(1) for line in lines if (found := _ERROR_LINE.match(line))]
    return named[-1][:200] if named else ""


def named_cause(gone: RankExit, lines: Sequence[str]) -> str:
    """Return a short name of what the program itself said it died of, such as "value_error" or "disk_full"; "" where
    it said nothing that explains this end: a handled error may stand in the last lines of a process that was killed.
    """
    stated = stated_cause(lines)
    if found := _ETT_CODE.match(stated):
        return found[1].lower()
    if gone.code != 1 or not stated:  # what Python ends with after an error that nobody caught
        return ""
    name, _, text = stated.partition(":")
    if found := _ERRNO.match(text.strip()):
        return _ERRNO_CAUSES.get(int(found[1]), "os_error")
    short = name.rpartition(".")[2]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", short).lower()[:63]


_ETT_CODE = re.compile(r"error\[(ETT-\w+)\]")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_ERRNO_CAUSES = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ENOMEM: "out_of_memory"}


# torch puts "[rank0]: " before the lines of a traceback.
_ERROR_LINE = re.compile(r"(?:\[\w+\]:? )*((?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b|error\[ETT-\w+\]).*)")


def names_lost_peer(text: str) -> bool:
    """Return whether an error's text is what a rank meets when another one is gone."""
    return _LOST_PEER.search(text) is not None


# Of gloo, NCCL and torch's store, whose errors have no class; and of ours (LostPeer).
_LOST_PEER = re.compile(
    r"gloo|NCCL|process group|Connection (reset|closed|refused)|Socket|Broken pipe|ETT-S004", re.IGNORECASE
)


def signature(gone: RankExit, lines: Sequence[str]) -> str:
    """Return 12 hex digits that are equal for the same error; empty for a signal or where the program said nothing."""
    said = [line.strip() for line in lines if line.strip()]
    if gone.signal is not None or not said:
        return ""
    # Addresses, steps and times differ from one failure to the next with the same cause.
    error = re.sub(r"0x[0-9a-f]+|\d+", "#", said[-1])
    return hashlib.sha256(f"{gone.code} {error}".encode()).hexdigest()[:12]


def keep_tail(folder: Path, lines: Sequence[str]) -> str:
    """Write the lines into a file of `folder` that is named by their hash, and return its name; "" where it cannot."""
    text = "\n".join(lines) + "\n"
    name = f"tail-{hashlib.sha256(text.encode()).hexdigest()[:16]}.txt"
    try:
        (folder / name).write_text(text)
    except OSError:
        return ""
    return name
