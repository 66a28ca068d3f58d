"""An optimizer's state under the names of its parameters: positions in a list change with the code, names do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ett.checkpoint.canonical_json import Json
from ett.checkpoint.state_tree import encode_state
from ett.errors import RestoreFailed

DensePart = Callable[[dict[str, Any]], dict[str, Any]]


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers of a program that has none, one or a list of them."""
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def optimizer_tree(optimizer: Any, model: nn.Module, tensors: dict[str, Tensor], dense_part: DensePart) -> Json:
    """Return the state of an optimizer as a tree, of several as a list; None for none.

    Anything with a state_dict is taken as it is.

    Args: dense_part: returns what is dense of the states that an optimizer has by the names of parameters.
    """
    if optimizer is None:
        return None
    if isinstance(optimizer, list | tuple):
        return [_tree(one, model, tensors, (f"optimizer.{n}", dense_part)) for n, one in enumerate(optimizer)]
    return _tree(optimizer, model, tensors, ("optimizer", dense_part))


def _tree(optimizer: Any, model: nn.Module, tensors: dict[str, Tensor], where: tuple[str, DensePart]) -> Json:
    path, dense_part = where
    state = optimizer.state_dict()
    if isinstance(optimizer, Optimizer):
        names = _parameter_names(optimizer, model)
        state = {
            **state,
            "state": dense_part({names[index]: entry for index, entry in state["state"].items()}),
            "param_groups": [_renamed(group, dict(enumerate(names))) for group in state["param_groups"]],
        }
    return encode_state(state, path, tensors)


def load_optimizer_tree(optimizer: Any, model: nn.Module, saved: Any) -> None:
    """Set an optimizer, or several, to a decoded tree, bit for bit.

    Raises: RestoreFailed: other parameters or groups, or another number of optimizers.
    """
    ours, theirs = optimizers_of(optimizer), optimizers_of(saved)
    if len(ours) != len(theirs) or isinstance(saved, list) != isinstance(optimizer, list | tuple):
        raise RestoreFailed(
            f"the checkpoint has {_number(saved)}, the program {_number(optimizer)}",
            do="restore with the recipe that saved it",
        )
    for one, tree in zip(ours, theirs, strict=True):
        _load(one, model, tree)


def _number(optimizer: Any) -> str:
    return f"a list of {len(optimizer)} optimizers" if isinstance(optimizer, list | tuple) else "one optimizer"


def _load(optimizer: Any, model: nn.Module, saved: dict[str, Any]) -> None:
    if not isinstance(optimizer, Optimizer):
        optimizer.load_state_dict(saved)
        return
    names = _parameter_names(optimizer, model)
    index = {name: number for number, name in enumerate(names)}
    theirs = [sorted(group["params"]) for group in saved["param_groups"]]
    ours = [sorted(names[i] for i in group["params"]) for group in optimizer.state_dict()["param_groups"]]
    if theirs != ours:
        raise RestoreFailed(
            f"the optimizer holds {_count(ours)} parameters in {len(ours)} groups, "
            f"the checkpoint {_count(theirs)} in {len(theirs)}, or other names",
            do="restore with the recipe that saved it",
        )
    optimizer.load_state_dict(
        {
            **saved,
            "state": {index[name]: dict(entry) for name, entry in saved["state"].items()},
            # torch pairs parameters by position, so each group's are put in the order of the live one.
            "param_groups": [
                {**group, "params": live["params"]}
                for group, live in zip(saved["param_groups"], optimizer.state_dict()["param_groups"], strict=True)
            ],
        }
    )
    _undo_casts(optimizer, names, saved["state"])


def _undo_casts(optimizer: Optimizer, names: list[str], saved: dict[str, dict[str, Any]]) -> None:
    """load_state_dict casts states to their parameter's dtype; put the saved values in their own dtype back."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        for key, value in saved.get(name, {}).items():
            if isinstance(value, Tensor):
                # A copy, so that it lies in memory that torch aligned: the last bit of a product may depend on it.
                optimizer.state[parameter][key] = value.to(optimizer.state[parameter][key].device, copy=True)


def _parameter_names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [known.get(id(parameter), f"#{number}") for number, parameter in enumerate(parameters)]


def _renamed(group: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    return {**group, "params": [names[index] for index in group["params"]]}


def _count(groups: list[list[str]]) -> int:
    return sum(len(group) for group in groups)
