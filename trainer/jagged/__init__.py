"""Inputs and outputs of embedding tables, with TorchRec's names: ids of very uneven number an example."""

from ett.trainer.jagged.jagged_tensor import JaggedTensor
from ett.trainer.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from ett.trainer.jagged.keyed_tensor import KeyedTensor

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor"]
