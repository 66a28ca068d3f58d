"""A rank before it knows which: has imported what the worker of a recipe needs, and waits to be told who it is.

`python -m ett.spare_process FD`: FD is the read end of a pipe that the supervisor alone writes to. One line of JSON, a
`Role`, makes the process that rank of the job, as if it had been started as such; end of file ends it. It records
nothing before, joins nothing and touches no device. `ett/spares.py` is the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ett.seams import SEAMS, load

WAITING_NAME = "ett-spare"  # what `ps` calls it; 15 characters at most
_IMPORTING_NAME = "ett-importing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    environ: Mapping[str, str | None]  # over what the spare was started with; None: not set
    out: str  # the files that the rank's output is appended to
    err: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> Role:
        return cls(**json.loads(line))

    def take_on(self) -> None:
        """Give this process the environment, the output and a name of the rank."""
        for name, value in self.environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for path, stream in ((self.out, sys.stdout), (self.err, sys.stderr)):
            stream.flush()
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.dup2(fd, stream.fileno())
            os.close(fd)
        _name_process(rank_name(os.environ))


def changed_environ(then: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return what makes an environment of `then` one of `now`."""
    gone = dict.fromkeys(set(then) - set(now))
    return gone | {name: value for name, value in now.items() if then.get(name) != value}


def rank_name(environ: Mapping[str, str]) -> str:
    """Return what `ps` calls a spare that has become a rank: /proc shows the environment that it was started with."""
    return f"ett-a{environ.get('ETT_ATTEMPT', '')}r{environ.get('RANK', '')}"


def _name_process(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


def read_role(fd: int) -> Role | None:
    """Wait for the role and close the pipe; None where it ended without a whole one."""
    with os.fdopen(fd, "rb") as pipe:
        line = pipe.readline()
    return Role.of_line(line) if line.endswith(b"\n") else None


def is_told(fd: int) -> bool:
    """Return whether there is something to read: the role comes in one write."""
    return bool(select.select([fd], [], [], 0)[0])


def main(argv: list[str]) -> None:
    pipe = int(argv[1])
    os.set_inheritable(pipe, False)
    _name_process(_IMPORTING_NAME)
    has_imported = False
    try:
        load(SEAMS["spare_imports"])()
        has_imported = True
    finally:
        # A rank by now: one that died without a word in its own output would be looked into for hours.
        if not has_imported and is_told(pipe) and (told := read_role(pipe)) is not None:
            told.take_on()
    _name_process(WAITING_NAME)
    role = read_role(pipe)
    if role is None:
        os._exit(0)  # without the interpreter's teardown, which with torch takes half a second
    del argv[1:]
    role.take_on()
    load(SEAMS["recipe_worker"])()


if __name__ == "__main__":
    main(sys.argv)
