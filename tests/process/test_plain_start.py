"""A program with hooks prints, fails and ends as it does without: output, tracebacks and exit codes are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hooked_program import HookedProgram

pytestmark = pytest.mark.process

PROGRAMS = {
    "who am I": """
import os, sys, threading
print(sys.argv, sys.path[0], __name__, __file__, __spec__, __package__, __builtins__.__name__, sys.flags)
print(sys.path, sys.orig_argv, os.environ.get("PYTHONPATH"), threading.active_count(), sorted(vars()))
print(sys.modules["__main__"].__dict__ is globals(), os.getcwd(), sys.stdout.write_through, "sitecustomize" in sys.path)
""",
    "an error": """
def inner(value):
    return 1 / value
inner(0)
""",
    "an error within an error": """
try:
    {}["a"]
except KeyError as err:
    raise ValueError("no") from err
""",
    "a syntax error": "def (:\n",
    "exit code": "import sys\nsys.exit(3)\n",
    "exit text": "import sys\nsys.exit('a text')\n",
    "exit by the operating system": "import os\nprint('x')\nos._exit(7)\n",
    "exit from a thread's error": """
import threading
def fail(): raise RuntimeError("in a thread")
thread = threading.Thread(target=fail); thread.start(); thread.join()
""",
    "interrupted": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('not reached')\n",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "its own handler": """
import os, signal
class Stop(Exception): pass
def handle(signum, frame): raise Stop(signum)
signal.signal(signal.SIGUSR1, handle)
os.kill(os.getpid(), signal.SIGUSR1)
""",
    "a missing module": "import no_such_module_anywhere\n",
    "a module that fails": """
import pathlib
pathlib.Path("failing.py").write_text("import json\\nraise OSError('at import')\\n")
import failing
""",
    "at exit": "import atexit\natexit.register(print, 'last words')\nprint('first')\n",
    "spawned children import the program again": """
import multiprocessing, sys
print("module", __name__)
def child(number): print("child", number, __name__, sys.argv, sys.path[0]); return number
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool: print(pool.map(child, [1, 2]))
""",
    "forked children": """
import os
print("before", flush=True)
if os.fork() == 0:
    raise ValueError("in the child")
print(os.wait()[1])
""",
    "a hidden module of torch that fails": """
import sys
sys.modules["torch._C"] = None
import torch
""",
}
TORCH_PROGRAMS = {
    "torch.save fails": """
import torch
class Unpicklable:
    def __reduce__(self): raise TypeError("never")
torch.save({"model": {"weight": torch.ones(2)}, "other": Unpicklable()}, "x.pt")
""",
    "torch.load fails": "import torch\ntorch.load('missing.pt')\n",
    "a data set fails": """
import torch
from torch.utils.data import DataLoader, Dataset
class Broken(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): raise IndexError(f"row {index}") if index > 3 else KeyError(index)
for batch in DataLoader(Broken(), batch_size=2): pass
""",
    "a process group fails": """
import torch.distributed as dist
dist.init_process_group("no-such-backend", init_method="file:///tmp/never", rank=0, world_size=1)
""",
    "moving fails": "import torch\ntorch.nn.Linear(2, 2).to('nowhere')\n",
    "stepping into a hooked function": """
import io, pdb, sys, torch
model = torch.nn.Linear(2, 2)
commands = io.StringIO("step\\nwhere 1\\nreturn\\ncontinue\\n")
pdb.Pdb(stdin=commands, stdout=sys.stdout, nosigint=True).set_trace()
model.eval()
print("after")
""",
    "looking at hooked functions": """
import inspect, pickle, copy, torch
for function in (torch.save, torch.load, torch.distributed.init_process_group):
    print(function.__name__, function.__module__, inspect.signature(function), len(function.__doc__))
    print(pickle.loads(pickle.dumps(function)) is function, copy.deepcopy(function) is function)
print(inspect.signature(torch.nn.Module.to), torch.nn.Linear(2, 2).eval)
""",
    "interrupted in a fetch": """
import os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): os.kill(os.getpid(), signal.SIGINT); return torch.ones(2)
for batch in DataLoader(Slow(), batch_size=2): pass
""",
    "loaders with workers": """
import torch
from torch.utils.data import DataLoader, TensorDataset
for batch in DataLoader(TensorDataset(torch.arange(6.)), batch_size=2, num_workers=1): print(batch)
""",
}


def compare(folder: Path, text: str) -> None:
    (folder / "program.py").write_text(text)
    program = HookedProgram(folder, "program.py", "--flag", "a b")
    assert program.hooked() == program.plainly()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_without_hooks(tmp_path: Path, name: str) -> None:
    compare(tmp_path, PROGRAMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH_PROGRAMS)
def test_a_program_with_torch_does_what_it_does_without_hooks(tmp_path: Path, name: str) -> None:
    compare(tmp_path, TORCH_PROGRAMS[name])


def test_a_module_starts_as_python_starts_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('package', __name__)\n")
    (package / "__main__.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __spec__.name, __package__)\nraise ValueError('x')\n"
    )
    program = HookedProgram(tmp_path, "package", "--flag", kind="module")
    ended = program.hooked()
    assert ended == program.plainly()
    assert "['" in ended.out
    assert ended.code == 1


def test_the_programs_own_paths_and_sitecustomize_stay(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("print('mine', __name__)\n")
    (tmp_path / "program.py").write_text(
        "import os, sys, sitecustomize\nprint(sys.path, os.environ['PYTHONPATH'], sitecustomize.__file__)\n"
    )
    program = HookedProgram(tmp_path, "program.py")
    assert program.hooked(PYTHONPATH=f"{mine}::rel") == program.plainly(PYTHONPATH=f"{mine}::rel")


def test_every_start_leaves_a_trace_of_itself(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(1)\n")
    program = HookedProgram(tmp_path, "program.py")
    program.hooked()
    assert len(program.records("proc_start")) == 1
    assert [name for name, _, _ in program.spans()] == ["imports"]


@pytest.mark.parametrize("first", ["run.step(samples=1)", "run.span('eval')"])
def test_imports_are_over_when_a_program_says_its_first_step_or_span(first: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"import os, signal, time, ett\nrun = ett.init()\nwith {first}:\n    time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    program = HookedProgram(tmp_path, "program.py")
    assert program.hooked().code == -9
    ((name, begin_ns, end_ns),) = [span for span in program.spans() if span[0] != "eval"]
    assert name == "imports"
    [began] = [r.mono_ns for r in program.records("step_begin", "span_begin") if r.data.get("name") != "imports"]
    assert begin_ns <= end_ns <= began


def test_hooks_that_are_off_leave_none(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print(1)\n")
    program = HookedProgram(tmp_path, "program.py")
    program.hooked("none")
    assert not program.job_dir.exists()
