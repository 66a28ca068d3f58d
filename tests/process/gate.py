"""A rank that waits at the beginning of a step until the test lets it go: what the test does then happens before."""

from __future__ import annotations

import os
from pathlib import Path

from wait import wait_until

# `--chaos hang` that ends: what hangs by itself is a sleep.
GATE = """
import os, time
if "ETT_CHAOS" in os.environ and "RANK" in os.environ:
    from ett.recovery import fault_actions
    def wait_at_the_gate(fault):
        open({reached!r}, "w").close()
        while not os.path.exists({opened!r}):
            time.sleep(0.01)
    fault_actions.act = wait_at_the_gate
    {also}
"""


class Gate:
    """Give `flags` and `environ` to a launch whose rank shall wait; `folder` is the gate's own.

    Args: also: a line of Python that every rank runs as it starts.
    """

    def __init__(self, folder: Path, *, rank: int, step: int, also: str = "") -> None:
        folder.mkdir()
        self._reached, self._opened = folder / "reached", folder / "opened"
        text = GATE.format(reached=str(self._reached), opened=str(self._opened), also=also)
        (folder / "sitecustomize.py").write_text(text)
        self.flags = ("--chaos", f"hang:rank={rank},step={step}")
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environ = {"PYTHONPATH": os.pathsep.join(paths)}

    def wait_for_rank(self) -> None:
        wait_until(self._reached.exists, "the rank at the gate")

    def open(self) -> None:
        self._opened.touch()
