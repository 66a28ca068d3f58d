"""Loops of many shapes, each in a process with hooks: the records that they leave."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from hooked_program import HookedProgram

from ett.hooks.batch_hook import STALL_NS

pytestmark = [pytest.mark.process, pytest.mark.slow]

# The first optimizer of a process imports torch._dynamo: as much processor time as torch itself. Most programs here do
# without; those with LOADED do as every program does.
LOADED = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss_of(batch): return nn.functional.mse_loss(model(batch[0]), batch[1])
def train(batch): optimizer.zero_grad(); loss_of(batch).backward(); optimizer.step()
"""
BEFORE = LOADED.replace(
    "data =",
    """
for method in (getattr(torch.optim.Optimizer, name) for name in ("add_param_group", "zero_grad", "state_dict")):
    setattr(method.__wrapped__, "__dynamo_disable", method.__wrapped__)
data =""",
    1,
)


def run(folder: Path, text: str, hooks: str = "all", *, before: str = BEFORE, **given: int) -> HookedProgram:
    (folder / "program.py").write_text((LOADED if "torch.compile" in text else before) + dedent(text))
    program = HookedProgram(folder, "program.py")
    ended = program.hooked(hooks, **given)
    assert ended.code == 0, ended.err
    return program


def samples(program: HookedProgram) -> list[tuple[int, bool]]:
    """Return (samples, whether they are inferred) of each step, and check that steps are counted without a gap."""
    steps = program.records("step")
    first = steps[0].data["step"] if steps else 0
    assert [step.data["step"] for step in steps] == list(range(first, first + len(steps)))
    return [(step.data["samples"], step.data.get("samples_inferred", False)) for step in steps]


def names(program: HookedProgram) -> list[str]:
    return [name for name, _, _ in program.spans()]


def test_the_last_batch_of_an_epoch_may_be_smaller(tmp_path: Path) -> None:
    program = run(tmp_path, "for batch in DataLoader(data, batch_size=24): train(batch)", before=LOADED)
    assert samples(program) == [(24, False), (24, False), (16, False)]


def test_a_loader_with_workers_and_dropped_rest(tmp_path: Path) -> None:
    text = """
        loader = DataLoader(data, batch_size=24, drop_last=True, num_workers=1, persistent_workers=True)
        for epoch in range(2):
            for batch in loader: train(batch)
    """
    assert samples(run(tmp_path, text)) == [(24, False)] * 4


def test_micro_batches_make_one_step(tmp_path: Path) -> None:
    text = """
        for index, batch in enumerate(DataLoader(data, batch_size=8), 1):
            loss_of(batch).backward()
            if index % 4 == 0: optimizer.step(); optimizer.zero_grad()
    """
    assert samples(run(tmp_path, text)) == [(32, False)] * 2


def test_a_gan_steps_once_a_batch(tmp_path: Path) -> None:
    text = """
        other = torch.optim.Adam(nn.Linear(4, 1).parameters())
        for batch in DataLoader(data, batch_size=16):
            train(batch)
            other.step()
    """
    assert samples(run(tmp_path, text)) == [(16, False)] * 4


def test_a_step_that_the_scaler_skips_gives_its_batch_to_the_next(tmp_path: Path) -> None:
    text = """
        scaler = torch.amp.GradScaler("cpu")
        for index, batch in enumerate(DataLoader(data, batch_size=16)):
            optimizer.zero_grad()
            scaler.scale(loss_of(batch) * (float("inf") if index == 1 else 1)).backward()
            scaler.step(optimizer); scaler.update()
    """
    assert samples(run(tmp_path, text)) == [(16, False), (32, False), (16, False)]


def test_without_a_loader_a_step_counts_as_one_inferred_sample(tmp_path: Path) -> None:
    program = run(tmp_path, "for index in range(3): train((data.tensors[0], data.tensors[1]))")
    assert samples(program) == [(1, True)] * 3


def test_a_compiled_optimizer_steps_too(tmp_path: Path) -> None:
    text = """
        step = torch.compile(lambda: optimizer.step(), backend="aot_eager")
        for batch in DataLoader(data, batch_size=16):
            optimizer.zero_grad(); loss_of(batch).backward(); step()
    """
    assert samples(run(tmp_path, text)) == [(16, False)] * 4


def test_a_pass_for_statistics_before_training_is_no_step(tmp_path: Path) -> None:
    text = """
        mean = sum(batch[0].mean() for batch in DataLoader(data, batch_size=8))
        for batch in DataLoader(data, batch_size=32): train(batch)
    """
    assert samples(run(tmp_path, text)) == [(32, False)] * 2


def test_a_slow_batch_is_a_stall_and_a_quick_one_is_not(tmp_path: Path) -> None:
    text = """
        class Slow(Dataset):
            def __len__(self): return 6
            def __getitem__(self, index): time.sleep(0.3 * (index == 4)); return torch.zeros(4), torch.zeros(1)
        batches = iter(DataLoader(Slow(), batch_size=1))
        for index in range(6):
            begin_ns = time.monotonic_ns()
            batch = next(batches)
            print(begin_ns, time.monotonic_ns(), file=open("waits", "a"))
            train(batch)
    """
    program = run(tmp_path, text)
    waits = [tuple(map(int, line.split())) for line in (tmp_path / "waits").read_text().splitlines()]
    stalls = [(begin, end) for name, begin, end in program.spans() if name == "data_stall"]
    # By the program's own looks at the clock: on a busy machine a quick batch may be a slow one, too.
    of_batch = [[s for s in stalls if begin <= s[0] <= s[1] <= end] for begin, end in waits]
    (stall,) = of_batch[4]
    assert stall[1] - stall[0] > 0.3e9
    assert sum(map(len, of_batch)) == len(stalls)
    assert all(not found for found, (begin, end) in zip(of_batch, waits, strict=True) if end - begin < STALL_NS)


EVALS = {
    "without gradients": """
        with torch.no_grad():
            for batch in DataLoader(tests, batch_size=8): model(batch[0])
    """,
    "in inference mode, broken off": """
        with torch.inference_mode():
            for index, batch in enumerate(DataLoader(tests, batch_size=8)):
                if index == 1: break
    """,
    "by its mode alone": """
        model.eval()
        for batch in DataLoader(tests, batch_size=8): model(batch[0])
        model.train()
    """,
    "on the data of training": """
        with torch.no_grad():
            for batch in DataLoader(data, batch_size=8): model(batch[0])
    """,
}


@pytest.mark.parametrize("way", EVALS)
def test_an_evaluation_between_epochs_is_seen(tmp_path: Path, way: str) -> None:
    body = dedent(EVALS[way]).replace("\n", "\n    ")
    text = "tests = TensorDataset(torch.randn(16, 4))\nfor epoch in range(2):\n"
    text += f"    for batch in DataLoader(data, batch_size=32): train(batch)\n    {body}"
    program = run(tmp_path, text)
    assert names(program).count("eval") == 2
    assert samples(program) == [(32, False)] * 4
    begins = [r for r in program.records("span_begin") if r.data["name"] == "eval"]
    assert all(record.data["inferred"] for record in begins)


def test_a_frozen_teacher_makes_no_evaluation_of_training(tmp_path: Path) -> None:
    text = """
        teacher = nn.Linear(4, 1).eval()
        for epoch in range(2):
            for batch in DataLoader(data, batch_size=16): train((batch[0], teacher(batch[0]).detach()))
    """
    program = run(tmp_path, text)
    assert "eval" not in names(program)
    assert samples(program) == [(16, False)] * 8


SAYS_ITSELF = """
import ett
run = ett.init()
with run.span("model_build"): nn.Linear(4, 1).to("cpu")
for index, batch in enumerate(DataLoader(data, batch_size=16), 1):
    with run.step(samples=5): train(batch)
    torch.save({"model": model.state_dict()}, "x.pt")
    run.committed(index, index * 5, "mine")
with torch.no_grad():
    with run.span("eval"):
        for batch in DataLoader(TensorDataset(torch.zeros(4, 4)), batch_size=2): pass
run.train_end()
torch.save({"model": model.state_dict()}, "y.pt")
"""


def test_what_the_program_says_itself_is_not_said_again(tmp_path: Path) -> None:
    program = run(tmp_path, SAYS_ITSELF, before=LOADED)
    assert samples(program) == [(5, False)] * 4
    assert [record.data["uri"] for record in program.records("ckpt_commit")] == ["mine"] * 4
    assert (names(program).count("model_build"), names(program).count("eval")) == (1, 1)
    (end,) = program.records("train_end")
    assert "inferred" not in end.data
    assert "data_stall" not in names(program)


@pytest.mark.parametrize(
    ("hooks", "left"),
    [
        ("none", set()),
        ("-steps", {"imports", "data_warmup", "eval", "ckpt_save", "model_build"}),
        ("steps,samples", set()),
        ("-data,-model_build,-imports,-train_end", {"eval", "ckpt_save"}),
        ("-saves,-eval", {"imports", "data_warmup", "model_build"}),
    ],
)
def test_each_hook_can_be_turned_off(tmp_path: Path, hooks: str, left: set[str]) -> None:
    text = """
        model.to("cpu")
        for batch in DataLoader(data, batch_size=32): train(batch)
        with torch.no_grad():
            for batch in DataLoader(data, batch_size=32): pass
        torch.save(model.state_dict(), "x.pt")
    """
    program = run(tmp_path, text, hooks)
    assert set(names(program)) - {"final_save"} == left
    assert bool(program.records("step")) is (hooks not in ("none", "-steps"))


def test_only_the_first_load_of_what_the_job_saved_moves_the_position(tmp_path: Path) -> None:
    save = """
        for batch in DataLoader(data, batch_size=16):
            train(batch)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "a.pt")
        torch.save(model.state_dict(), "best.pt")
        os.rename("a.pt", "b.bin")
    """
    program = run(tmp_path, save)
    load = """
        import io
        torch.load("best.pt")
        torch.load(io.BytesIO(open("b.bin", "rb").read()))
        torch.load("best.pt")
        for batch in DataLoader(data, batch_size=32): train(batch)
        torch.load("b.bin")
    """
    again = run(tmp_path, load, attempt=2)
    assert [(r.data["step"], r.data["cursor"]) for r in again.records("restore")] == [(4, 64)]
    assert [step.data["step"] for step in again.records("step") if step.att == 2] == [5, 6]
    assert program.records("cursor_unknown") == []


def test_a_save_by_an_attempt_that_is_lost_makes_the_next_one_lost(tmp_path: Path) -> None:
    text = """
        if os.path.exists("a.pt") and "ETT_LOAD" in os.environ: torch.load("a.pt")
        for batch in DataLoader(data, batch_size=32): train(batch)
        torch.save(model.state_dict(), "a.pt")
    """
    (tmp_path / "program.py").write_text(BEFORE + dedent(text))
    program = HookedProgram(tmp_path, "program.py")
    program.hooked(attempt=2)
    program.hooked(attempt=3, ETT_LOAD="1")
    assert [record.att for record in program.records("cursor_unknown")] == [2, 3]
    assert program.records("restore") == []


def test_rank_1_follows_a_load_that_only_rank_0_makes(tmp_path: Path) -> None:
    text = """
        if os.environ["RANK"] == "0" and os.path.exists("a.pt"): torch.load("a.pt")
        for batch in DataLoader(data, batch_size=32): train(batch)
        if os.environ["RANK"] == "0": torch.save(model.state_dict(), "a.pt")
    """
    (tmp_path / "program.py").write_text(BEFORE + dedent(text))
    program = HookedProgram(tmp_path, "program.py")
    for attempt in (1, 2):
        for rank in (0, 1):
            program.hooked(attempt=attempt, rank=rank, world=2)
    assert [(s.rank, s.data["step"]) for s in program.records("step") if s.att == 2] == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert program.records("cursor_unknown") == []


def test_a_save_through_an_open_file_is_committed_once_it_is_closed(tmp_path: Path) -> None:
    text = """
        for batch in DataLoader(data, batch_size=32):
            train(batch)
            with open("x.pt", "wb") as file: torch.save(model.state_dict(), file)
    """
    program = run(tmp_path, text)
    assert [Path(r.data["uri"]).name for r in program.records("ckpt_commit")] == ["x.pt", "x.pt"]
    again = run(tmp_path, 'torch.load("x.pt")', attempt=2)
    assert [r.data["step"] for r in again.records("restore")] == [2]


def test_an_unfinished_save_is_no_commit(tmp_path: Path) -> None:
    text = """
        for batch in DataLoader(data, batch_size=32): train(batch)
        torch.save(model.state_dict(), "a.tmp")
        torch.save(model.state_dict(), "b.tmp"); os.unlink("b.tmp")
        torch.save({"predictions": torch.zeros(2)}, "c.pt")
        try: torch.save({"model": {"weight": torch.zeros(2)}, "x": lambda: 0}, "d.pt")
        except Exception: pass
    """
    assert run(tmp_path, text).records("ckpt_commit") == []


def test_numbers_are_those_without_hooks(tmp_path: Path) -> None:
    text = """
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        for batch in DataLoader(data, batch_size=8, shuffle=True): train(batch)
        print([p.detach().double().sum().item().hex() for p in model.parameters()], torch.rand(1).item().hex())
    """
    (tmp_path / "program.py").write_text(LOADED + dedent(text))
    program = HookedProgram(tmp_path, "program.py")
    assert program.hooked() == program.plainly()


def test_graphs_backward_graphs_and_recompiles_are_compilation(tmp_path: Path) -> None:
    text = """
        compiled = torch.compile(model, backend="aot_eager")
        for size in (16, 16, 8, 8):
            optimizer.zero_grad()
            nn.functional.mse_loss(compiled(torch.ones(size, 4)), torch.ones(size, 1)).backward()
            optimizer.step()
        torch._dynamo.reset()
        compiled(torch.ones(4, 4)).sum().backward()
    """
    program = run(tmp_path, text)
    kinds = [r.data["kind"] for r in program.records("span_begin") if r.data["name"] == "compile"]
    assert kinds[:3] == ["dynamo", "lazy_backward", "dynamo"]  # the first graph, its backward, the second size
    assert kinds[-2:] == ["dynamo", "lazy_backward"]  # after a reset, which forgets all callbacks
    assert names(program).count("compile") == len(kinds)
    (again,) = program.records("recompile")
    assert "size mismatch at index 0. expected 16, actual 8" in again.data["guard"]
    assert "program.py" in again.data["code"]  # the layer is torch's own


def test_a_program_that_does_not_compile_has_no_compiler_in_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys, torch\nprint('torch._dynamo' in sys.modules)\n")
    assert HookedProgram(tmp_path, "program.py").hooked().out == "False\n"


@pytest.mark.parametrize("way", ["save", "async_save"])
def test_a_distributed_checkpoint_is_committed_and_known_again(tmp_path: Path, way: str) -> None:
    save = f"""
        import torch.distributed as dist, torch.distributed.checkpoint as dcp
        dist.init_process_group("gloo", init_method="file://" + os.path.abspath("rendezvous"), rank=0, world_size=1)
        for batch in DataLoader(data, batch_size=16): train(batch)
        saving = dcp.{way}({{"model": model.state_dict()}}, checkpoint_id="first")
        if "async" in "{way}": saving.result()
        time.sleep(0.2)
        os.rename("first", "second")
        dist.destroy_process_group()
    """
    program = run(tmp_path, save)
    (commit,) = program.records("ckpt_commit")
    assert (commit.data["step"], commit.data["cursor"], Path(commit.data["uri"]).name) == (4, 64, "first")
    assert "ckpt_save" in names(program)
    load = """
        import torch.distributed.checkpoint as dcp
        dcp.load({"model": model.state_dict()}, checkpoint_id="second", no_dist=True)
        for batch in DataLoader(data, batch_size=32): train(batch)
    """
    again = run(tmp_path, load, attempt=2)
    assert [(r.data["step"], r.data["cursor"]) for r in again.records("restore")] == [(4, 64)]
