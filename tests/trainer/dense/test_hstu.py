"""The sequence encoder against its formula, and what it must not see."""

from __future__ import annotations

import pytest
import torch
from plain_attention import plain_attention
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from ett.trainer.dense.hstu import HstuEncoder, HstuLayer
from ett.trainer.dense.mlp import draw_weights
from ett.trainer.jagged.segments import offsets_of

WIDTH, HEADS, HEAD_DIM, WINDOW = 6, 2, 4, 20
LENGTHS = torch.tensor([3, 0, 90, 1, 0])


def make_encoder() -> HstuEncoder:
    encoder = HstuEncoder(WIDTH, num_layers=2, num_heads=HEADS, head_dim=HEAD_DIM, window=WINDOW).double()
    generator = torch.Generator().manual_seed(1)
    draw_weights(encoder, generator)
    for layer in encoder.layers:
        assert isinstance(layer, HstuLayer)
        nn.init.normal_(layer.bias, generator=generator)
    return encoder


def rows(seed: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        torch.randn(n, WIDTH, generator=generator, dtype=torch.float64).requires_grad_() for n in (94, 5)
    )


def norm(values: Tensor) -> Tensor:
    return layer_norm(values, values.shape[-1:], eps=1e-6)


def formula(encoder: HstuEncoder, history: Tensor, item: Tensor) -> Tensor:
    parts = zip(torch.split(history, LENGTHS.tolist()), item, strict=True)
    x = torch.cat([torch.cat((of_user, one[None])) for of_user, one in parts])
    offsets = offsets_of(LENGTHS + 1)
    for layer in encoder.layers:
        assert isinstance(layer, HstuLayer)
        u, v, q, k = silu(norm(x) @ layer.uvqk.weight.T).view(len(x), 4, HEADS, HEAD_DIM).unbind(1)
        attended = plain_attention(q, k, v, layer.bias, offsets, window=WINDOW, scale=1 / WINDOW)
        x = x + layer.out(norm(attended.flatten(1)) * u.flatten(1))
    return norm(x[offsets[1:] - 1])


@pytest.mark.slow
def test_the_encoder_equals_its_formula_forward_and_backward() -> None:
    encoder = make_encoder()
    results = []
    for forward in (lambda h, i: encoder(h, LENGTHS, i), lambda h, i: formula(encoder, h, i)):
        encoder.zero_grad()
        history, item = rows()
        out = forward(history, item)
        (out * torch.arange(WIDTH)).sum().backward()
        results.append([out.detach(), history.grad, item.grad, *(p.grad for p in encoder.parameters())])
    # float64; both norms may scale a rounding up by 1 / sqrt(1e-6).
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_another_users_history_changes_nothing_for_this_one() -> None:
    encoder = make_encoder()
    history, item = rows()
    other = history.detach().clone()
    other[3:93] = 7.0  # the third user's
    before, after = encoder(history, LENGTHS, item), encoder(other, LENGTHS, item)
    assert torch.equal(before[[0, 1, 3, 4]], after[[0, 1, 3, 4]])
    assert not torch.equal(before[2], after[2])


@pytest.mark.slow
def test_the_order_of_a_history_matters() -> None:
    encoder = make_encoder()
    history, item = rows()
    swapped = history.detach().clone()
    swapped[[0, 2]] = swapped[[2, 0]]
    assert not torch.allclose(encoder(history, LENGTHS, item)[0], encoder(swapped, LENGTHS, item)[0])


def test_a_batch_of_no_examples_is_no_row() -> None:
    encoder = make_encoder()
    out = encoder(torch.empty(0, WIDTH).double(), torch.empty(0, dtype=torch.int64), torch.empty(0, WIDTH).double())
    out.sum().backward()
    assert out.shape == (0, WIDTH)
    assert all(p.grad is not None and not p.grad.any() for p in encoder.parameters())
