"""Alignment functions against plain loops, torch's attention and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.nn.alignment import ALIGNMENTS, AdditiveAttention, DotAttention, GeneralAttention, make_alignment

B, G, N, D = 2, 3, 7, 5
WIDTHS = {"additive": (4, 6), "dot": (6, 6), "scaled_dot": (6, 6), "general": (4, 6)}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(kind: str) -> nn.Module:
    torch.manual_seed(0)
    query_width, memory_width = WIDTHS[kind]
    return make_alignment(kind, query_width=query_width, memory_width=memory_width, width=5).double()


def score(module: nn.Module, kind: str, query: Tensor, token: Tensor) -> Tensor:
    """One query (Q,), one memory token (M,) -> a number; the equations of the papers."""
    match kind:
        case "additive":
            hidden = torch.tanh(module.query.weight @ query + module.query.bias + module.key.weight @ token)
            return module.score.weight[0] @ hidden
        case "dot":
            return sum(q * k for q, k in zip(query, token, strict=True))
        case "scaled_dot":
            return sum(q * k for q, k in zip(query, token, strict=True)) / math.sqrt(len(query))
        case "general":
            return query @ module.key.weight @ token
    raise AssertionError(kind)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("kind", ALIGNMENTS)
def test_is_a_loop_over_queries_and_keys(kind: str, masked: bool) -> None:
    """Context, weights and all gradients; values of another width than the memory."""
    module, (query_width, memory_width) = layer(kind), WIDTHS[kind]
    query, memory, values = (
        random(B, G, query_width, seed=1),
        random(B, N, memory_width, seed=2),
        random(B, N, D, seed=3),
    )
    inputs = [x.requires_grad_() for x in (query, memory, values)]
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, 4:] = False
    mask[1, 1] = False
    context, weights = module(query, module.key(memory), values, mask=mask if masked else None)

    contexts, expected = torch.zeros(B, G, D).double(), torch.zeros(B, G, N).double()
    for b in range(B):
        seen = [n for n in range(N) if not masked or mask[b, n]]
        for g in range(G):
            shares = torch.stack([torch.exp(score(module, kind, query[b, g], memory[b, n])) for n in seen])
            shares = shares / shares.sum()
            expected[b, g, seen] = shares
            contexts[b, g] = sum(p * values[b, n] for p, n in zip(shares, seen, strict=True))
    assert_close(weights, expected, atol=1e-12, rtol=1e-10)
    assert_close(context, contexts, atol=1e-12, rtol=1e-10)
    inputs += list(module.parameters())
    factors = random(B, G, D, seed=9)
    for mine, theirs in zip(
        torch.autograd.grad((context * factors).sum(), inputs),
        torch.autograd.grad((contexts * factors).sum(), inputs),
        strict=True,
    ):
        assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_scaled_dot_equals_torch() -> None:
    module, query, memory, values = (
        layer("scaled_dot"),
        random(B, G, 6, seed=1),
        random(B, N, 6, seed=2),
        random(B, N, D),
    )
    expected = F.scaled_dot_product_attention(query[:, None], memory[:, None], values[:, None])[:, 0]
    assert_close(module(query, module.key(memory), values)[0], expected)


@pytest.mark.parametrize("kind", ALIGNMENTS)
def test_a_memory_with_nothing_to_see_gives_zeros_and_no_gradient(kind: str) -> None:
    module, (query_width, memory_width) = layer(kind), WIDTHS[kind]
    query, memory = (
        random(B, G, query_width, seed=1).requires_grad_(),
        random(B, N, memory_width, seed=2).requires_grad_(),
    )
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[0] = False
    context, weights = module(query, module.key(memory), memory, mask=mask)
    assert context[0].eq(0).all()
    assert weights[0].eq(0).all()
    assert_close(weights[1].sum(-1), torch.ones(G).double())
    (context * random(B, G, memory_width, seed=9)).sum().backward()
    for gradient in (query.grad, memory.grad):
        assert gradient is not None
        assert gradient[0].eq(0).all()
        assert gradient[1].ne(0).any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ALIGNMENTS)
def test_half_precision_has_its_softmax_in_single(kind: str) -> None:
    module, (query_width, memory_width) = layer(kind), WIDTHS[kind]
    query, memory = random(B, G, query_width, seed=1), random(B, N, memory_width, seed=2)
    expected, _ = module(query, module.key(memory), memory)
    module.bfloat16()
    query, memory = query.bfloat16(), memory.bfloat16()
    context, weights = module(query, module.key(memory), memory)
    assert context.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    assert_close(weights.sum(-1), torch.ones(B, G))
    assert_close(context.double(), expected, atol=5e-2, rtol=5e-2)


def test_by_name() -> None:
    kinds = (AdditiveAttention, DotAttention, DotAttention, GeneralAttention)
    assert [type(layer(kind)) for kind in ALIGNMENTS] == list(kinds)
    with pytest.raises(
        ValueError, match="unknown alignment function 'cosine'; choose one of additive, dot, scaled_dot"
    ):
        make_alignment("cosine", query_width=4, memory_width=4, width=4)
    for kind in ("dot", "scaled_dot"):
        message = "the query has 4 and the memory 6: use 'general' or 'additive'"
        with pytest.raises(ValueError, match=message):
            make_alignment(kind, query_width=4, memory_width=6, width=5)


@pytest.mark.parametrize("kind", ALIGNMENTS)
def test_masks_that_do_not_fit(kind: str) -> None:
    module, (query_width, memory_width) = layer(kind), WIDTHS[kind]
    query, memory = random(B, G, query_width), random(B, N, memory_width)
    with pytest.raises(ValueError, match=r"must be boolean \(True = may attend\), got torch.float32"):
        module(query, module.key(memory), memory, mask=torch.ones(B, N))
    with pytest.raises(ValueError, match=r"mask \(2, 5\) does not fit a memory of \(2, 7\) tokens"):
        module(query, module.key(memory), memory, mask=torch.ones(B, 5, dtype=torch.bool))
