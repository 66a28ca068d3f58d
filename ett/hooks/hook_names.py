"""The hooks by name, and what `--hooks` may say. Imports no torch."""

from __future__ import annotations

from ett.errors import UsageError
from ett.section import nearest

HOOKS: dict[str, str] = {
    "imports": "span `imports`: from the start of the process to the end of the program's imports",
    "device_init": "span `device_init`: the first CUDA context",
    "process_group": "span `process_group`: torch.distributed.init_process_group",
    "model_build": "span `model_build`: modules that move to a device before the first step",
    "compile": "span `compile`: torch.compile, recompiles and backward graphs included",
    "recompiles": "records `recompile`: what torch compiles again after the first step, and the guard that failed",
    "steps": "step records: torch.optim.Optimizer.step",
    "samples": "samples of a step: batches of torch.utils.data.DataLoader",
    "data": "spans `data_warmup` and `data_stall`: waiting for a batch",
    "eval": "span `eval`: a DataLoader that is read without gradients",
    "saves": "span `ckpt_save` and commits: torch.save and torch.distributed.checkpoint",
    "loads": "span `restore` and the position to go on from: torch.load and torch.distributed.checkpoint",
    "transformers": "all of these as transformers.Trainer itself says them: it wins over a guess",
    "train_end": "train_end, and `final_save`, when the program ended well",
}


def parse_hooks(text: str) -> tuple[str, ...]:
    """Return the hooks that are on, in the order of HOOKS.

    Args:
        text: "all", "none", or names with commas: "steps,samples" are these alone, "-eval,-saves" all but these.
    Raises: UsageError: an unknown name (names the nearest).
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    names = set() if words and not words[0].startswith("-") else set(HOOKS)
    for word in words:
        name = word.removeprefix("-")
        if name in ("all", "none"):
            names = set(HOOKS) if (name == "all") != word.startswith("-") else set()
        elif name not in HOOKS:
            raise UsageError(f"unknown hook {name!r} in {text!r}", expected=nearest(name, [*HOOKS, "all", "none"]))
        elif word.startswith("-"):
            names.discard(name)
        else:
            names.add(name)
    return tuple(name for name in HOOKS if name in names)
