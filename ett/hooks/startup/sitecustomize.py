"""Loaded by Python itself before the program, because `ett launch` put this folder on PYTHONPATH.

So the program is started by Python, not by us: `sys.argv`, `sys.path[0]`, `__main__`, `-m`, exit codes, signals,
debuggers and multiprocessing are those of a plain start. What was added to the environment is taken away again, and
a `sitecustomize` that this one hides is loaded as ever.
"""

import importlib
import os
import sys


def _start() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(os.path.dirname(folder)))
    while folder in sys.path:
        sys.path.remove(folder)
    before = os.environ.pop("PYTHONPATH", "").removeprefix(folder).removeprefix(os.pathsep)
    if before:
        os.environ["PYTHONPATH"] = before
    sys.path.insert(0, root)  # the ett of the supervisor, however this Python would find another or none
    try:
        from ett.hooks.start import start
    except ImportError as err:
        sys.stderr.write(f"ett: hooks are off: {err}\n")
        return
    finally:
        sys.path.remove(root)
    start(os.environ)


_start()

_own = sys.modules.pop("sitecustomize")
try:
    importlib.import_module("sitecustomize")  # the one that this file hides
except ModuleNotFoundError as _err:
    if _err.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _own
