"""Who is told before a torch optimizer steps, and after it: those that follow a parameter, whichever optimizer has it.

One hook of the process finds the optimizers as they step. Each gets two hooks of its own then, that stand closest to
the step: what an earlier hook does to gradients is seen, and what a later one does to parameters is not taken for the
step's. A step that computes its gradients by a closure has them known when the closure returns.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cache
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ett.checkpoint.stepped_rows import stepped_rows


class StepFollower(Protocol):
    """Follows one parameter, which may be another one later."""

    @property
    def weight(self) -> nn.Parameter: ...

    def look(self) -> None:
        """A step begins: whatever happened since the last one ended was not an optimizer's doing."""

    def before_step(self, optimizer: Optimizer, rows: Tensor | None) -> None:
        """Rows are about to change; see `stepped_rows`. Called again for a step that evaluates its closure again."""

    def after_step(self) -> None:
        """The step is over, and nothing else has happened since."""


class _Hooks:
    """The hooks of one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._before = optimizer.register_step_pre_hook(self._begin)
        self._after = optimizer.register_step_post_hook(self._end)
        self._followed: list[tuple[int, StepFollower]] = []

    def come_closest(self, optimizer: Optimizer) -> None:
        cast("OrderedDict[int, Any]", optimizer._optimizer_step_pre_hooks).move_to_end(self._before.id)
        cast("OrderedDict[int, Any]", optimizer._optimizer_step_post_hooks).move_to_end(self._after.id, last=False)

    def _begin(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._followed = _followed_by(optimizer)
        for _, follower in self._followed:
            follower.look()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None or not self._followed:
            self._tell(optimizer)
            return None

        def told_after(*values: Any) -> Any:
            loss = closure(*values)
            self._tell(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": told_after}
        return (args[0], told_after, *args[2:]), kwargs

    def _tell(self, optimizer: Optimizer) -> None:
        for number, follower in self._followed:
            follower.before_step(optimizer, stepped_rows(optimizer, optimizer.param_groups[number], follower.weight))

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for _, follower in self._followed:
            follower.after_step()
        self._followed = []


_changing = threading.Lock()
_followers: WeakSet[StepFollower] = WeakSet()
_hooks: WeakKeyDictionary[Optimizer, _Hooks] = WeakKeyDictionary()


def follow_steps(follower: StepFollower) -> None:
    """Call a follower at each step of an optimizer that has its parameter, as long as the follower lives."""
    with _changing:
        _followers.add(follower)
        _find_optimizers()


@cache
def _find_optimizers() -> None:
    register_optimizer_step_pre_hook(_place_hooks)


def _place_hooks(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    with _changing:
        hooks = _hooks.get(optimizer)
    if hooks is None:
        if not _followed_by(optimizer):
            return
        hooks = _Hooks(optimizer)
        with _changing:
            _hooks[optimizer] = hooks
    hooks.come_closest(optimizer)


def _followed_by(optimizer: Optimizer) -> list[tuple[int, StepFollower]]:
    """Return those whose parameter an optimizer has, each with the number of the parameter's group."""
    with _changing:
        followers = list(_followers)
    wanted: dict[int, list[StepFollower]] = {}
    for follower in followers:
        wanted.setdefault(id(follower.weight), []).append(follower)
    return [
        (number, follower)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if id(parameter) in wanted
        for follower in wanted[id(parameter)]
    ]
