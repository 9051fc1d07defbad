"""Attention against torch's own function and module with copied weights: values and gradients."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.nn.attention import MultiHeadAttention, attend, merge_masks
from vitcap.nn.position import line, make_position

WITHIN = {torch.float64: 1e-6, torch.float32: 1e-5}
MASKS = ("none", "padding", "causal", "both")
DTYPES = [torch.float64, torch.float32]


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def padding(batch: int, keys: int) -> Tensor:
    """(B, 1, 1, S): image b may not attend to its last b keys."""
    return (torch.arange(keys) < keys - torch.arange(batch)[:, None])[:, None, None]


def allowed(masks: str, batch: int, queries: int, keys: int) -> Tensor:
    """(B, 1, T, S), element by element: what a query may attend to."""
    table = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                after = masks in ("causal", "both") and j > i + keys - queries
                padded = masks in ("padding", "both") and j >= keys - b
                table[b, 0, i, j] = not (after or padded)
    return table


def gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a weighted sum of the output, so that every element counts differently."""
    weights = random(*out.shape, dtype=out.dtype, seed=99)
    return list(torch.autograd.grad((out * weights).sum(), inputs, retain_graph=True))


def close(mine: list[Tensor], theirs: list[Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a, b, rtol=WITHIN[dtype], atol=WITHIN[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "single"])
@pytest.mark.parametrize(
    ("queries", "keys"), [(5, 5), (3, 5), (1, 5), (4, 7)], ids=["self", "two cached", "four cached", "cross"]
)
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("masks", MASKS)
def test_attend_equals_torch(masks: str, with_bias: bool, queries: int, keys: int, dtype: torch.dtype) -> None:
    batch, heads, width = 3, 2, 4
    q = random(batch, heads, queries, width, dtype=dtype, seed=1).requires_grad_()
    k, v = (random(batch, heads, keys, width, dtype=dtype, seed=s).requires_grad_() for s in (2, 3))
    bias = random(heads, queries, keys, dtype=dtype, seed=4).requires_grad_() if with_bias else None
    inputs = [q, k, v] if bias is None else [q, k, v, bias]

    table = allowed(masks, batch, queries, keys)
    added = torch.zeros(batch, heads, queries, keys, dtype=dtype).masked_fill(~table, -math.inf)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=added if bias is None else added + bias)
    scores = q @ k.transpose(-1, -2) / math.sqrt(width) + (0 if bias is None else bias) + added

    given = padding(batch, keys) if masks in ("padding", "both") else None
    wanted = [expected, *gradients(expected, inputs)]
    for fused in (True, False):
        out, none = attend(q, k, v, mask=given, causal=masks in ("causal", "both"), bias=bias, fused=fused)
        assert none is None
        close([out, *gradients(out, inputs)], wanted, dtype)
    out, weights = attend(q, k, v, mask=given, causal=masks in ("causal", "both"), bias=bias, need_weights=True)
    assert weights is not None
    close([out, weights], [expected, scores.softmax(-1)], dtype)


def copied(mine: MultiHeadAttention, memory_width: int | None, bias: bool) -> nn.MultiheadAttention:
    """torch's module with the weights of ours; its output projection has no bias if its inputs have none."""
    width = mine.heads * mine.head_width
    theirs = nn.MultiheadAttention(
        width, mine.heads, bias=bias, kdim=memory_width, vdim=memory_width, batch_first=True, dtype=torch.float64
    )
    with torch.no_grad():
        if memory_width is None:
            theirs.in_proj_weight.copy_(mine.qkv.weight)
        else:
            for weight, value in zip(
                (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight),
                (mine.q.weight, *mine.kv.weight.chunk(2)),
                strict=True,
            ):
                weight.copy_(value)
        theirs.out_proj.weight.copy_(mine.proj.weight)
        if bias:
            inputs = mine.qkv.bias if memory_width is None else torch.cat((mine.q.bias, mine.kv.bias))
            theirs.in_proj_bias.copy_(inputs)
            theirs.out_proj.bias.copy_(mine.proj.bias)
        else:
            mine.proj.bias.zero_()
    return theirs


def input_weights(module: nn.Module) -> list[Tensor]:
    """Weights, then biases where both have them, as [q, k, v] and the output projection."""
    if isinstance(module, nn.MultiheadAttention):
        three = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        weights = list(three) if module.in_proj_weight is None else [module.in_proj_weight]
        biases = [] if module.in_proj_bias is None else [module.in_proj_bias, module.out_proj.bias]
        return [*weights, *biases, module.out_proj.weight]
    own = [module.qkv] if hasattr(module, "qkv") else [module.q, module.kv]
    biases = [] if own[0].bias is None else [*(p.bias for p in own), module.proj.bias]
    return [*(p.weight for p in own), *biases, module.proj.weight]


@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "single"])
@pytest.mark.parametrize("kind", ["self", "cross", "cached"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("masks", MASKS)
def test_module_equals_torch(masks: str, bias: bool, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, length, width, memory_width = 3, 5, 8, 6 if kind == "cross" else None
    mine = MultiHeadAttention(width, 2, memory_width=memory_width, bias=bias).double()
    if bias:
        nn.init.normal_(mine.proj.bias)
    theirs = copied(mine, memory_width, bias).to(dtype)
    mine = mine.to(dtype)
    x = random(batch, length, width, dtype=dtype, seed=1).requires_grad_()
    seen = x if memory_width is None else random(batch, 7, memory_width, dtype=dtype, seed=2).requires_grad_()
    old = 3 if kind == "cached" else 0  # tokens that are in the cache when the others come
    keys = seen.shape[1]

    table = allowed(masks, batch, length, keys)[:, 0]
    expected, expected_weights = theirs(
        x[:, old:],
        seen,
        seen,
        attn_mask=~table[:, old:].repeat_interleave(2, dim=0),
        need_weights=True,
        average_attn_weights=False,
    )

    options = {
        "mask": padding(batch, keys) if masks in ("padding", "both") else None,
        "causal": masks in ("causal", "both"),
        "memory": None if memory_width is None else mine.project_memory(seen),
    }
    if old:
        before = None if options["mask"] is None else options["mask"][..., :old]
        _, _, options["past"] = mine(x[:, :old], mask=before, causal=options["causal"])
    inputs = [x] if memory_width is None else [x, seen]
    own, other = input_weights(mine), input_weights(theirs)
    wanted = gradients(expected, [*inputs, *other])
    for choice in ({"fused": True}, {"need_weights": True}):
        out, weights, (k, _) = mine(x[:, old:], **options, **choice)
        grads = gradients(out, [*inputs, *own])
        close([out, *grads[: len(inputs)]], [expected, *wanted[: len(inputs)]], dtype)
        # q, k, v lie one after the other in both, whatever they are cut into.
        mine_flat, theirs_flat = (torch.cat([g.flatten() for g in part[len(inputs) :]]) for part in (grads, wanted))
        close([mine_flat], [theirs_flat], dtype)
        assert k.shape == (batch, 2, keys, 4)
    assert weights is not None
    close([weights], [expected_weights], dtype)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("case", ["padding", "causal", "bias", "one query"])
def test_queries_that_see_nothing_give_zeros(case: str, fused: bool) -> None:
    """Zero output and zero, finite gradient; the other rows are as if the empty ones were not there."""
    queries, keys = (1, 4) if case == "one query" else (5, 3) if case == "causal" else (4, 4)
    q, k, v = (random(2, 2, n, 4, seed=s).requires_grad_() for s, n in ((1, queries), (2, keys), (3, keys)))
    bias = random(2, queries, keys, seed=4).requires_grad_() if case == "bias" else None
    mask = None
    if case != "causal":
        mask = torch.ones(2, 1, 1, keys, dtype=torch.bool)
        mask[0] = False
    out, _ = attend(q, k, v, mask=mask, causal=case == "causal", bias=bias, fused=fused)
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    grads = gradients(out, inputs)
    assert all(g.isfinite().all() for g in grads)
    if case == "causal":  # five queries aligned with three keys: the first two stand before all keys
        assert out[:, :, :2].eq(0).all()
        assert grads[0][:, :, :2].eq(0).all()
        expected = F.scaled_dot_product_attention(q[:, :, 2:], k, v, is_causal=True)
        assert_close(out[:, :, 2:], expected)
    else:
        assert out[0].eq(0).all()
        assert all(g[0].eq(0).all() for g in grads[:3])
        expected = F.scaled_dot_product_attention(q[1], k[1], v[1], attn_mask=bias)
        assert_close(out[1], expected)
        kept = torch.autograd.grad((expected * random(*out.shape, seed=99)[1]).sum(), inputs)
        for mine, theirs in zip(grads[:3], kept[:3], strict=True):
            assert_close(mine[1], theirs[1])
        if bias is not None:
            assert_close(grads[3], kept[3])
    weights = attend(q, k, v, mask=mask, causal=case == "causal", bias=bias, need_weights=True)[1]
    assert weights is not None
    sums = weights.sum(-1)
    assert_close(sums, torch.where(out.eq(0).all(-1), 0.0, 1.0).to(sums))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_grouped_query_attention_shares_heads(masks: str, fused: bool) -> None:
    """Six query heads on two key heads: the same as every key head copied three times."""
    q, k, v = (random(2, h, 4, 4, seed=s).requires_grad_() for s, h in ((1, 6), (2, 2), (3, 2)))
    table = allowed(masks, 2, 4, 4)
    copies = [x[:, [0, 0, 0, 1, 1, 1]] for x in (k, v)]
    expected = F.scaled_dot_product_attention(q, *copies, attn_mask=table)
    given = padding(2, 4) if masks in ("padding", "both") else None
    out, _ = attend(q, k, v, mask=given, causal=masks in ("causal", "both"), fused=fused)
    close([out, *gradients(out, [q, k, v])], [expected, *gradients(expected, [q, k, v])], torch.float64)


def test_grouped_query_module_equals_torch_and_shrinks_the_cache() -> None:
    torch.manual_seed(0)
    small = MultiHeadAttention(16, 4, kv_heads=2).double()
    full = MultiHeadAttention(16, 4).double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            q, k, v = getattr(small.qkv, name).split((16, 8, 8))
            k, v = (x.unflatten(0, (2, 4))[[0, 0, 1, 1]].flatten(0, 1) for x in (k, v))
            getattr(full.qkv, name).copy_(torch.cat((q, k, v)))
        full.proj.load_state_dict(small.proj.state_dict())
    theirs = copied(full, None, True)
    x = random(2, 5, 16)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=later)
    out, _, (k, v) = small(x, causal=True)
    assert_close(out, expected)
    assert k.shape == v.shape == (2, 2, 5, 4)  # half of the four heads
    _, _, past = small(x[:, :3], causal=True)
    rest, _, _ = small(x[:, 3:], past=past, causal=True)
    assert_close(rest, expected[:, 3:])


def test_half_precision_follows_double() -> None:
    q, k, v = (random(2, 2, 6, 8, seed=s) for s in (1, 2, 3))
    expected, _ = attend(q, k, v, mask=padding(2, 6), causal=True)
    for fused in (True, False, None):
        half, _ = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask=padding(2, 6), causal=True, fused=fused)
        assert half.dtype == torch.bfloat16
        assert_close(half.double(), expected, rtol=2e-2, atol=2e-2)


def test_dropout_hits_the_weights_after_they_are_returned() -> None:
    """With the identity for values the output is the dropped weights: 0, or scaled by 1 / (1 - p)."""
    torch.manual_seed(0)
    q, k = random(1, 2, 30, 4, seed=1), random(1, 2, 30, 4, seed=2)
    out, weights = attend(q, k, torch.eye(30).double().expand(1, 2, 30, 30), dropout=0.25, need_weights=True)
    assert weights is not None
    assert_close(weights.sum(-1), torch.ones(1, 2, 30).double())
    dropped = out == 0
    assert 0.2 < dropped.double().mean() < 0.3
    assert_close(out[~dropped], weights[~dropped] / 0.75)
    layer = MultiHeadAttention(8, 2, dropout=0.5).double()
    x = random(1, 6, 8)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_two_tokens_by_hand() -> None:
    """Keys = values = [1, 1], [0, 1]; the first query sees itself alone, the second scores both keys alike."""
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    k = torch.tensor([[1.0, 1.0], [0.0, 1.0]]).view(1, 1, 2, 2)
    out, weights = attend(q, k, k, causal=True, need_weights=True)
    assert_close(weights, torch.tensor([[1.0, 0.0], [0.5, 0.5]]).view(1, 1, 2, 2))
    assert_close(out, torch.tensor([[1.0, 1.0], [0.5, 1.0]]).view(1, 1, 2, 2))
    assert_close(attend(q, k, k, causal=True, fused=True)[0], out)
    # Without the mask q1 prefers the first key: e^(1/sqrt 2) : 1 = 2.0281 : 1.
    free = attend(q, k, k, need_weights=True)[1]
    assert free is not None
    assert_close(free[0, 0, 0], torch.tensor([0.669761, 0.330239]), atol=1e-6, rtol=0)


def test_causality_is_aligned_at_the_end() -> None:
    seen = merge_masks(None, True, 2, 5, torch.device("cpu"))
    assert seen is not None
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]
    assert merge_masks(None, True, 1, 5, torch.device("cpu")) is None


SHAPES = {
    "head width": ((1, 2, 3, 4), (1, 2, 3, 8), (1, 2, 3, 8), r"q \(1, 2, 3, 4\), k \(1, 2, 3, 8\)"),
    "lengths of k and v": ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 6, 4), r"k \(1, 2, 5, 4\), v \(1, 2, 6, 4\)"),
    "batch": ((3, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4), r"q \(3, 2, 3, 4\), k \(2, 2, 3, 4\)"),
    "no heads": ((2, 3, 4), (2, 3, 4), (2, 3, 4), r"q \(2, 3, 4\)"),
    "heads": ((1, 4, 3, 4), (1, 3, 3, 4), (1, 3, 3, 4), "4 query heads cannot share 3 key heads"),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("fused", [True, False])
def test_shapes_that_do_not_fit_are_named(name: str, fused: bool) -> None:
    *shapes, message = SHAPES[name]
    with pytest.raises(ValueError, match=message):
        attend(*(torch.zeros(shape) for shape in shapes), fused=fused)  # type: ignore[arg-type]


@pytest.mark.parametrize("fused", [True, False])
def test_masks_of_the_wrong_kind(fused: bool) -> None:
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    for dtype in (torch.float32, torch.int64):
        with pytest.raises(ValueError, match="must be boolean"):
            attend(q, k, k, mask=torch.ones(3, 5, dtype=dtype), fused=fused)
    for shape in ((3, 4), (2, 5), (3, 3, 5), (2, 1, 1, 5), (1, 1, 1, 3, 5)):
        message = rf"{re.escape(str(shape))} does not fit the scores \(1, 2, 3, 5\)"
        with pytest.raises(ValueError, match=f"mask {message}"):
            attend(q, k, k, mask=torch.ones(shape, dtype=torch.bool), fused=fused)
        with pytest.raises(ValueError, match=f"bias {message}"):
            attend(q, k, k, bias=torch.ones(shape), fused=fused)


def test_layers_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="width 10 is not a multiple of 4 heads"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match="6 heads are not a multiple of 4 key/value heads"):
        MultiHeadAttention(12, 6, kv_heads=4)
    with pytest.raises(ValueError, match="0 heads"):
        MultiHeadAttention(12, 0)
    with pytest.raises(ValueError, match="width 7 for an attention layer of width 8"):
        MultiHeadAttention(8, 2)(torch.zeros(1, 3, 7))
    with pytest.raises(ValueError, match="memory of width 7 for an attention layer built for 6"):
        MultiHeadAttention(8, 2, memory_width=6).project_memory(torch.zeros(1, 3, 7))


def test_what_does_not_fit_is_told_with_both_numbers() -> None:
    x, own, cross = torch.zeros(1, 3, 8), MultiHeadAttention(8, 2), MultiHeadAttention(8, 2, memory_width=6)
    keys = torch.zeros(1, 2, 4, 4)
    with pytest.raises(ValueError, match=r"bias must be floating point.*got torch\.bool; a mask is no bias"):
        attend(keys, keys, keys, bias=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"2 query heads cannot share 0 key heads"):
        attend(keys, keys[:, :0], keys[:, :0])
    with pytest.raises(ValueError, match=r"dropout must be in 0\.\.1, got 2"):
        attend(keys, keys, keys, dropout=2)
    with pytest.raises(ValueError, match=r"^width=0: a whole number of at least 1"):
        MultiHeadAttention(0, 2)
    with pytest.raises(ValueError, match=r"give memory=layer\.project_memory"):
        cross(x)
    with pytest.raises(ValueError, match=r"attends to its own tokens"):
        own(x, memory=(keys, keys))
    with pytest.raises(ValueError, match=r"attends to its own tokens"):
        own.project_memory(x)
    with pytest.raises(ValueError, match=r"^past keys \(1, 1, 4, 4\) before new ones \(1, 2, 3, 4\)$"):
        own(x, past=(keys[:, :1], keys[:, :1]))


@pytest.mark.parametrize("scheme", ["rotary", "alibi"])
def test_positions_inside_the_layer_are_never_left_out(scheme) -> None:
    layer = MultiHeadAttention(8, 2, position=make_position(scheme, width=8, heads=2, size=9))
    with pytest.raises(ValueError, match=r"Position acts inside the layer: give coordinates"):
        layer(torch.zeros(1, 3, 8))
    with pytest.raises(ValueError, match=r"coordinates .*4.* tokens"):
        layer(torch.zeros(1, 3, 8), coordinates=line(4))


def test_alibi_wants_the_places_of_cached_tokens() -> None:
    layer = MultiHeadAttention(8, 2, position=make_position("alibi", width=8, heads=2, size=9))
    past = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"1 tokens and 1 keys for 1 tokens and 4 keys: give past_coordinates"):
        layer(torch.zeros(1, 1, 8), coordinates=line(1, start=3), past=(past, past))
