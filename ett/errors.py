"""Every error that a user can meet: fact, value, expectation, safe next move.

    EttError
    +-- UsageError        U  exit 2    the command line is wrong
    +-- ConfigError       F  exit 3    a recipe, site file or config value is wrong
    +-- NotFound          N  exit 4    a job, checkpoint or file is missing or ambiguous
    +-- AccessDenied      P  exit 5    the operating system or the store refused access
    +-- Unreachable       S  exit 6    a store or server did not answer (retryable)
    |   +-- LostPeer      S  exit 6    another rank ended or hangs: nothing can be agreed on any more
    +-- Conflict          L  exit 7    somebody else holds it: a running job, a lease, a fenced writer
    +-- CorruptState      C  exit 8    stored data fails its checksum or identity
    +-- ThresholdMissed   T  exit 9    a bench or --fail-under did not meet its target
    +-- NoCheckpoint      C  exit 10   nothing restorable exists
    +-- DataError         D  exit 3    an input line or file is malformed
    +-- LaunchRefused     L  exit 120  the job was refused before it started
    +-- RestartsSpent     L  exit 121  the restart policy gave up
    +-- RestoreFailed     C  exit 122  the state could not be restored

A class exists where a caller acts differently. `ett errors CODE` prints the page of a code.
"""

from __future__ import annotations

from ett.shown_text import shown


class EttError(Exception):
    """A user's or environment's error: four short texts and a stable code; it is printed without a traceback.

    Args:
        fact: what was observed, with the value and the place.
        expected: what would have been right; empty where the fact says it.
        do: the next safe move.
        did: what ett did about it by itself; empty if nothing.
        code: a stable code such as "F001"; the class's own where not given.
    """

    code = "E000"
    exit_code = 1

    def __init__(self, fact: str, *, expected: str = "", do: str = "", did: str = "", code: str | None = None) -> None:
        super().__init__(fact)
        self.fact, self.expected, self.do, self.did = fact, expected, do, did
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        parts = [self.fact, *(f"{k}: {v}" for k, v in (("expected", self.expected), ("do", self.do)) if v)]
        return "; ".join(parts)

    def render(self) -> str:
        """Return the lines that a terminal shows, without a trailing newline."""
        rows = (("expected", self.expected), ("did", self.did), ("do", self.do))
        lines = [f"error[ETT-{self.code}]: {self.fact}", *(f"  {k:<9} {v}" for k, v in rows if v)]
        return shown("\n".join(lines))


class InjectedError(RuntimeError):
    """What `--chaos raise:` raises. No EttError: it stands for an error of the program's own."""


class UsageError(EttError):
    code, exit_code = "U001", 2


class ConfigError(EttError):
    code, exit_code = "F001", 3


class DataError(EttError):
    code, exit_code = "D001", 3


class NotFound(EttError):
    code, exit_code = "N001", 4


class AccessDenied(EttError):
    code, exit_code = "P001", 5


class Unreachable(EttError):
    code, exit_code = "S001", 6


class LostPeer(Unreachable):
    code, exit_code = "S004", 6


class Conflict(EttError):
    code, exit_code = "L007", 7


class CorruptState(EttError):
    code, exit_code = "C008", 8


class ThresholdMissed(EttError):
    code, exit_code = "T009", 9


class NoCheckpoint(EttError):
    code, exit_code = "C010", 10


class LaunchRefused(EttError):
    code, exit_code = "L120", 120


class RestartsSpent(EttError):
    code, exit_code = "L121", 121


class RestoreFailed(EttError):
    code, exit_code = "C122", 122
