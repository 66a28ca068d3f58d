"""Between ours and TorchRec's inputs: the same memory under the other library's class.

`from_torchrec` needs no torchrec: it reads the methods that its classes have. `to_torchrec` imports it, and is the only
place of the project that does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ett.errors import ConfigError
from ett.trainer.jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor

Ours = JaggedTensor | KeyedJaggedTensor | KeyedTensor
_MODULE = "torchrec.sparse.jagged_tensor"


def from_torchrec(theirs: Any) -> Ours:
    """Return ours for a JaggedTensor, KeyedJaggedTensor or KeyedTensor of TorchRec.

    Values and weights are shared, and so are lengths and offsets that are int64 already; int32 ones are converted.
    Raises: ConfigError: it is none of the three.
    """
    match type(theirs).__name__:
        case "JaggedTensor":
            parts = theirs.values(), theirs.weights_or_none(), theirs.lengths_or_none(), theirs.offsets_or_none()
            return JaggedTensor(*parts)
        case "KeyedTensor":
            return KeyedTensor(theirs.keys(), theirs.length_per_key(), theirs.values(), theirs.key_dim())
        case "KeyedJaggedTensor":
            is_vbe = theirs.variable_stride_per_key()
            return KeyedJaggedTensor(
                theirs.keys(),
                theirs.values(),
                theirs.weights_or_none(),
                theirs.lengths_or_none(),
                theirs.offsets_or_none(),
                None if is_vbe else theirs.stride(),
                theirs.stride_per_key_per_rank() if is_vbe else None,
                theirs.inverse_indices_or_none(),
            )
    raise ConfigError(
        f"a {type(theirs).__name__} was given", expected="a JaggedTensor, KeyedJaggedTensor or KeyedTensor of TorchRec"
    )


def to_torchrec(ours: Ours) -> Any:
    """Return TorchRec's object of the same name, sharing all memory.

    Raises: ConfigError: torchrec is not installed.
    """
    try:
        module = import_module(_MODULE)
    except ImportError as err:
        raise ConfigError(
            f"torchrec cannot be imported: {err}", expected="torchrec beside torch", do="see docs/core.md, TorchRec"
        ) from err
    if isinstance(ours, KeyedTensor):
        return module.KeyedTensor(ours.keys(), ours.length_per_key(), ours.values(), ours.key_dim())
    parts = ours.values(), ours.weights_or_none(), ours.lengths_or_none(), ours.offsets_or_none()
    if isinstance(ours, JaggedTensor):
        return module.JaggedTensor(*parts)
    is_vbe = ours.variable_stride_per_key()
    return module.KeyedJaggedTensor(
        ours.keys(),
        *parts,
        stride=None if is_vbe else ours.stride(),
        stride_per_key_per_rank=ours.stride_per_key_per_rank() if is_vbe else None,
        inverse_indices=ours.inverse_indices_or_none(),
    )
