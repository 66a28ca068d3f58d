"""A user's history and one item to score, as one sequence: layers of gated attention, the item last.

A layer is x + W2 (norm(attention(q, k, v)) * u) with u, v, q, k = silu(W1 norm(x)); see jagged_attention.py.

Source: Zhai et al., Actions Speak Louder than Words (2024), equations 1 to 3.
Shapes: B examples, L ids of all histories, T = L + B tokens, D = width of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ett.trainer.dense.distinct_gather import gather_distinct
from ett.trainer.dense.jagged_attention import Layout, jagged_attention
from ett.trainer.dense.precision import UndrawnLinear
from ett.trainer.jagged.segments import offsets_of

# Sums over few keys are small, since they are divided by the window: torch's 1e-5 would outweigh their variance.
_NORM_EPS = 1e-6


class HstuLayer(nn.Module):
    def __init__(self, width: int, *, num_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self._heads, self._window = (num_heads, head_dim), window
        self.uvqk = UndrawnLinear(width, 4 * num_heads * head_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(num_heads, window))  # of a key so many tokens before the query
        self.out = UndrawnLinear(num_heads * head_dim, width)

    def forward(self, tokens_TD: Tensor, layout: Layout) -> Tensor:
        mixed = nn.functional.silu(self.uvqk(_norm(tokens_TD)))
        gate, v, q, k = (part.view(-1, *self._heads) for part in mixed.chunk(4, dim=1))
        attended = jagged_attention(q, k, v, self.bias, layout, 1.0 / self._window)
        out: Tensor = tokens_TD + self.out(_norm(attended.flatten(1)) * gate.flatten(1))
        return out


class HstuEncoder(nn.Module):
    """What the last token of each sequence, the item to score, has gathered from the history before it.

    Args:
        window: tokens that one token sees in a layer, itself included; later layers see what earlier ones gathered.
    """

    def __init__(self, width: int, *, num_layers: int, num_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self._window = window
        self.layers = nn.ModuleList(
            HstuLayer(width, num_heads=num_heads, head_dim=head_dim, window=window) for _ in range(num_layers)
        )

    def forward(self, history_LD: Tensor, lengths_B: Tensor, item_BD: Tensor) -> Tensor:
        """Return [B, D], of the dtype of the rows.

        Args:
            history_LD: rows of all histories, back to back, the latest last; lengths_B: int64, some may be 0.
        """
        ends = offsets_of(lengths_B + 1)
        order, items = _token_order(lengths_B, ends)
        tokens_TD = gather_distinct(torch.cat((history_LD, item_BD)), order, 0)
        layout = Layout.of(ends, self._window)
        for layer in self.layers:
            tokens_TD = layer(tokens_TD, layout)
        return _norm(gather_distinct(tokens_TD, items, 0))


def _token_order(lengths_B: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each token stands among histories and then items, int64 [T], and the token of each item, [B]."""
    items = ends[1:] - 1
    num_tokens = int(ends[-1])
    is_item = torch.zeros(num_tokens, dtype=torch.int64, device=ends.device)
    is_item[items] = 1
    seen = is_item.cumsum(0)
    history = torch.arange(num_tokens, device=ends.device) - seen
    num_ids = num_tokens - len(lengths_B)
    return torch.where(is_item.bool(), num_ids + seen - 1, history), items


def _norm(values: Tensor) -> Tensor:
    return nn.functional.layer_norm(values, values.shape[-1:], eps=_NORM_EPS)
