"""Embedding tables behind TorchRec's modules."""
