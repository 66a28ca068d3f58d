"""Attention of trainer/dense/jagged_attention.py, a segment at a time over its whole score matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, offsets: Tensor, *, window: int, scale: float
) -> Tensor:
    outputs = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        length = end - begin
        back = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        sees = (back >= 0) & (back < window)
        scores = torch.einsum("ihd,jhd->hij", q[begin:end], k[begin:end])
        scores = scores + bias[:, back.clamp(0, bias.shape[1] - 1)]
        weights = torch.where(sees, torch.nn.functional.silu(scores), 0.0)
        outputs.append(scale * torch.einsum("hij,jhe->ihe", weights, v[begin:end]))
    return torch.cat(outputs)
