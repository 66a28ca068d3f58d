"""Rank 1 takes its time to end by an error of its own; the others see it leave before, and only name that."""

import atexit
import os
import pathlib
import time

left = pathlib.Path("left")
if os.environ["RANK"] == "1":
    left.touch()
    time.sleep(0.3)
    atexit.register(time.sleep, 3.5)
    raise ValueError("no such column")
while not left.exists():
    time.sleep(0.01)
raise RuntimeError("gloo: Connection closed by peer")
