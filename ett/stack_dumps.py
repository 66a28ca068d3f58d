"""Where every thread of a rank stands, taken from outside before a hung rank is ended.

Three sources, none of which needs the rank's help while it hangs. `ett.init()` makes faulthandler answer a real-time
signal by writing the Python stacks of all threads into `logs/<attempt>/rank<k>.stacks`: its handler runs in C, so it
answers in native code and while another thread holds the GIL, and children that a rank forked answer too. What the
kernel knows of each thread (`/proc/<pid>/task/*`) is there for any process, also a stopped or unkillable one. And
py-spy, where it is installed, reads the stacks of a Python process that knows nothing of us.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A real-time signal that neither Python, CUDA nor glibc uses; SIGUSR1 and SIGUSR2 belong to users and schedulers.
STACK_SIGNAL = signal.SIGRTMIN + 17
ANSWER_S, SETTLED_S, POLL_S = 1.0, 0.06, 0.02
ALL_CHILDREN_S = 5.0  # for the children of all ranks together: data loaders may have many
PY_SPY_S = 5.0
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel (D)",
    "T": "is stopped by a signal (T)",
    "t": "is traced",
}


def stacks_name(rank: int) -> str:
    return f"rank{rank}.stacks"


def answer_stack_signal(path: Path) -> None:
    """Let this process write its stacks into `path` whenever STACK_SIGNAL comes. Does nothing where it cannot."""
    # Telemetry: a read-only folder or an embedded interpreter must not stop training.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if signal.getsignal(STACK_SIGNAL) != signal.SIG_DFL:
            return
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True, chain=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacks:
    """What was found of one rank's own process."""

    file: str  # name in the folder
    state: str  # as /proc says: R, S, D, T, …; "" where the process was gone
    text: str  # Python stacks, "" where the process did not answer

    @property
    def waits_for_peers(self) -> bool:
        """True where the main thread is in a collective or in autograd's native code, which may wait for one."""
        main = self.text.rpartition("(most recent call first):")[2]  # the main thread is the oldest, so the last
        calls = [line for line in main.splitlines() if line.lstrip().startswith("File ")]
        return any("torch/distributed/" in call or "torch/autograd/" in call for call in calls[:6])


def dump_stacks(folder: Path, pids: Mapping[int, int]) -> dict[int, Stacks]:
    """Write where every process of every rank stands into `folder`/rank<k>.stacks; takes at most some 10 s.

    Args:
        pids: process id by rank; children in a rank's session follow it in the same file.
    """
    before = {rank: _ask(folder / stacks_name(rank), pid, f"rank {rank}") for rank, pid in pids.items()}
    found = {}
    for rank, pid in pids.items():
        path = folder / stacks_name(rank)
        offset = before[rank]
        text = "" if offset is None else _answer(path, offset)
        if not text:
            text = _ask_py_spy(path, pid)
        found[rank] = Stacks(file=path.name, state=process_state(pid), text=text)
    deadline_s = time.monotonic() + ALL_CHILDREN_S
    for rank, pid in pids.items():
        path = folder / stacks_name(rank)
        for child in _session_members(pid):
            if time.monotonic() > deadline_s:
                break
            offset = _ask(path, child, f"child of rank {rank}")
            if offset is not None:
                _answer(path, offset)
    return found


def process_state(pid: int) -> str:
    """Return the letter that the kernel gives the process's main thread; "" where there is none."""
    return (_proc(pid, "stat").rpartition(")")[2].split() or [""])[0]


def state_words(state: str) -> str:
    """Return the state in words where it explains by itself why a process makes no progress; else ""."""
    return _STATES[state] if state in ("D", "T", "t") else ""


def _ask(path: Path, pid: int, who: str) -> int | None:
    """Write what the kernel knows of the process, then ask it; return where its answer begins, None: it cannot answer.

    A process that does not handle the signal would die of it, and a stopped one answers when it goes on.
    """
    state = process_state(pid)
    try:
        with path.open("a") as file:
            file.write(_kernel_view(pid, who, state))
            offset = file.tell()
        if not _catches(pid) or state in ("T", "t", "Z", ""):
            return None
        os.kill(pid, STACK_SIGNAL)
    except OSError:
        return None
    return offset


def _answer(path: Path, offset: int) -> str:
    """Wait until the file stops growing and return what was added."""
    deadline_s = time.monotonic() + ANSWER_S
    size, settled_s = offset, time.monotonic() + ANSWER_S
    while time.monotonic() < min(deadline_s, settled_s):
        time.sleep(POLL_S)
        now = path.stat().st_size
        if now != size:
            size, settled_s = now, time.monotonic() + SETTLED_S
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size - offset).decode(errors="replace")


def _ask_py_spy(path: Path, pid: int) -> str:
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None or process_state(pid) in ("Z", ""):
        return ""
    try:
        command: Sequence[str] = (program, "dump", "--nonblocking", "--pid", str(pid))
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PY_SPY_S, check=False)
        with path.open("a") as file:
            file.write(f"py-spy:\n{done.stdout or done.stderr}\n")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _kernel_view(pid: int, who: str, state: str) -> str:
    command = _proc(pid, "cmdline").replace("\0", " ").strip()[:200]
    lines = [f"\n=== {who}, process {pid}, {_STATES.get(state, state or 'gone')}: {command}"]
    for tid in sorted(_entries(f"/proc/{pid}/task"), key=int):
        task = f"task/{tid}"
        status = (_proc(pid, f"{task}/stat").rpartition(")")[2].split() or [""])[0]
        where = _proc(pid, f"{task}/wchan")
        where = where if where not in ("", "0") else "-"
        lines.append(f"thread {tid} {_proc(pid, f'{task}/comm').strip()}: {status} {where}")
        lines += [f"    {line}" for line in _proc(pid, f"{task}/stack").splitlines()]  # root only
    return "\n".join(lines) + "\n"


def _catches(pid: int) -> bool:
    for line in _proc(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)
    return False


def _session_members(leader: int) -> list[int]:
    """Return the other processes of the session that a worker leads."""
    found = []
    for name in _entries("/proc"):
        if name.isdecimal() and int(name) != leader:
            fields = _proc(int(name), "stat").rpartition(")")[2].split()
            if len(fields) > 3 and fields[3] == str(leader) and fields[0] != "Z":
                found.append(int(name))
    return sorted(found)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
