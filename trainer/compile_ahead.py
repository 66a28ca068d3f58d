"""The dense part compiled before there is a batch: a stand-in of the model takes a step over zeros.

It has the model's shapes and nothing else of it, so neither weights, gradients nor generators of the model are touched.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch

from ett.errors import ConfigError
from ett.raised import raised_by
from ett.trainer.compile_plan import CompilePlan, FetchedCode, compile_plan, has_compiling_rank
from ett.trainer.config import TrainerConfig
from ett.trainer.dense.dlrm import Dlrm
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.embedding.table_outputs import SparseInputs
from ett.trainer.job_recipe import JobRecipe

PUBLISH_GRACE_S = 2.0  # of a job that ends while what it compiled is still being published
# Where no pack comes, the others begin to compile that much later than rank 0, which waits for them in a collective.
_SHARE_OF_TIMEOUT = 0.5


class CompiledStart:
    """One rank's compilation: with what the cache had, after another rank's, or from nothing."""

    def __init__(self, recipe: JobRecipe, environ: Mapping[str, str]) -> None:
        self._recipe, self._has_other = recipe, has_compiling_rank(recipe, environ)
        self._publishing: threading.Thread | None = None

    def compile(self, fetched: FetchedCode | None, world_size: int, device: torch.device) -> None:
        """Compile; afterwards a thread publishes what was new.

        Args: fetched: None: nothing is kept.
        Raises: ConfigError: torch cannot compile.
        """
        config = self._recipe.trainer
        if fetched is not None and fetched.result == "miss" and self._has_other:
            fetched = replace(
                fetched, result=fetched.cache.wait(_SHARE_OF_TIMEOUT * config.train.comm_timeout_s).result
            )
        plan = compile_plan(self._recipe, world_size)
        failure = raised_by(lambda: compile_dense(config, plan, device))
        if isinstance(failure, Exception) and fetched is not None and fetched.result == "hit":
            fetched.cache.discard(f"{type(failure).__name__}: {failure}")
            forget_compiled()
            compile_dense(config, plan, device)
        elif failure is not None:
            raise failure
        if fetched is not None:
            self._publishing = threading.Thread(target=fetched.cache.publish, name="ett-compile-publish", daemon=True)
            self._publishing.start()

    def close(self) -> None:
        """Give the publication the time that it may take of a job's end."""
        if self._publishing is not None:
            self._publishing.join(PUBLISH_GRACE_S)


def compile_dense(config: TrainerConfig, plan: CompilePlan, device: torch.device) -> None:
    """Compile forward and backward pass of a recipe's dense part, in this process.

    Raises: ConfigError: torch cannot: there is no C++ compiler, say.
    """
    torch.set_num_threads(config.dense.threads)  # this thread's, which the code is made for
    model = stand_in(config, plan).to(device)
    dense = torch.zeros(plan.num_examples, plan.num_dense, device=device)
    pooled = [
        torch.zeros(plan.num_examples, len(names), dim, device=device, requires_grad=True) for dim, names in plan.pooled
    ]
    try:
        logits = model(dense, SparseInputs(pooled, {}))
        torch.autograd.grad(logits.sum(), [*pooled, *model.parameters()])
    except (
        RuntimeError,
        ImportError,
        OSError,
    ) as err:  # what torch's compilers raise, and the loader of what they made
        raise ConfigError(
            f"compile.dense is true, and torch.compile fails: {str(err).strip().partition(chr(10))[0][:300]}",
            expected="a C++ compiler (g++) on a CPU, Triton on a GPU; a job folder with space",
            do="install it, or --set compile.dense=false, which trains other bits",
        ) from err


def stand_in(config: TrainerConfig, plan: CompilePlan) -> Dlrm:
    """Return a model on the host with the shapes of a recipe's, whose passes compile what that one's will find."""
    precision, seed = config.dense.precision, config.train.seed
    model = Dlrm(config.model, cast(JobTables, plan), num_dense=plan.num_dense, seed=seed, precision=precision)
    model.compile_for(plan.num_examples)
    return model


def forget_compiled() -> None:
    """Have torch find out all anew that it knows of compiled code, as a fresh process does."""
    from torch._inductor import cpu_vec_isa, utils  # 2 s, which a start that compiles nothing need not take

    torch.compiler.reset()
    utils.clear_caches()
    # Not among those: which vectors this processor has, asked by loading a small object of the same cache folder. Where
    # that one was broken too, torch would go on without vectors, and with other bits.
    kinds = [value for value in vars(cpu_vec_isa).values() if isinstance(value, type)]
    for known in [vars(cpu_vec_isa), *map(vars, kinds)]:
        for function in known.values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()
