"""Decoders and blocks: the parallel pass against the loop of steps, torch's layers with copied weights, plain loops."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.models.decoder import StepDecoder, select_groups
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.nn.blocks import DecoderBlock, DropPath, EncoderBlock, LayerScale
from vitcap.nn.position import POSITIONS, line
from vitcap.types import BOS, EOS, PAD, Memory

VOCAB, WIDTH, MEMORY_WIDTH, HEADS = 11, 16, 6, 4
B, G, T, N = 2, 3, 5, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lively(module: nn.Module) -> nn.Module:
    """In double precision, with weights large enough that every part of the model shows in the logits."""
    torch.manual_seed(0)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.4)
    return module.eval()


def transformer(**options: object) -> TransformerDecoder:
    sizes = {"vocab_size": VOCAB, "memory_width": MEMORY_WIDTH, "width": WIDTH, "depth": 2, "heads": HEADS}
    return lively(TransformerDecoder(**{**sizes, "max_length": 8, "mlp_ratio": 2.0, **options}))  # type: ignore


def rnn() -> RnnDecoder:
    sizes = {"vocab_size": VOCAB, "memory_width": MEMORY_WIDTH, "width": 7, "embed_width": 5, "attention_width": 4}
    return lively(RnnDecoder(**sizes))  # type: ignore


def memory(mask: bool = True) -> Memory:
    seen = torch.tensor([[True] * N, [True, True, True, False]])
    return Memory(random(B, N, MEMORY_WIDTH, seed=1), mask=seen if mask else None)


def captions() -> Tensor:
    tokens = torch.randint(4, VOCAB, (B, G, T), generator=torch.Generator().manual_seed(2))
    tokens[:, :, 0] = BOS
    tokens[0, 1, 3:] = torch.tensor([EOS, PAD])
    tokens[1, 2] = PAD  # a missing caption
    return tokens


BOTH = {"transformer": transformer, "rnn": rnn}


def tensors(state: object) -> list[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, tuple):
        return [t for part in state for t in tensors(part)]
    if hasattr(state, "__dataclass_fields__"):
        return [t for f in fields(state) for t in tensors(getattr(state, f.name))]  # type: ignore[arg-type]
    return []


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kv_heads", [None, 2], ids=["own keys", "shared keys"])
@pytest.mark.parametrize("position", POSITIONS)
def test_parallel_pass_equals_the_loop_of_steps(position: str, kv_heads: int | None, norm: str) -> None:
    decoder = transformer(position=position, norm=norm, kv_heads=kv_heads)
    parallel = decoder(memory(), captions(), need_attention=True)
    loop = StepDecoder.forward(decoder, memory(), captions(), need_attention=True)
    assert parallel.logits.shape == (B, G, T, VOCAB)
    assert_close(parallel.logits, loop.logits)
    assert_close(parallel.attention, loop.attention)
    assert parallel.attention is not None
    assert parallel.attention.shape == (B, G, T, 2, HEADS, N)
    assert_close(parallel.attention.sum(-1), torch.ones(B, G, T, 2, HEADS).double())
    assert parallel.attention[1, ..., 3].eq(0).all()  # the masked token
    assert_close(decoder(memory(), captions()).logits, parallel.logits)  # the fused path
    weights = random(*parallel.logits.shape, seed=5)
    for output in (parallel, loop):
        decoder.zero_grad()
        (output.logits * weights).sum().backward()
        grads = {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}
        if output is parallel:
            first = grads
    assert first.keys() == grads.keys()
    for name, grad in grads.items():
        assert_close(first[name], grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", BOTH)
def test_a_caption_is_read_alone(name: str) -> None:
    """The group axis: each caption as if it were the only one, whatever stands beside it; no memory is repeated."""
    decoder, tokens = BOTH[name](), captions()
    together = decoder(memory(), tokens, need_attention=True)
    for b, g in itertools.product(range(B), range(G)):
        one = Memory(memory().tokens[b : b + 1], mask=memory().mask[b : b + 1])  # type: ignore[index]
        alone = decoder(one, tokens[b : b + 1, g : g + 1], need_attention=True)
        assert_close(together.logits[b, g], alone.logits[0, 0])
        assert_close(together.attention[b, g], alone.attention[0, 0])
    with torch.no_grad():
        first, second = (
            sum(t.untyped_storage().nbytes() for t in tensors(decoder.start(memory(), groups))) for groups in (1, 50)
        )
    assert first == second  # the memory is held once per image, however many sequences attend to it


@pytest.mark.parametrize("name", BOTH)
def test_later_tokens_change_nothing_before(name: str) -> None:
    decoder, tokens = BOTH[name](), captions()
    changed = tokens.clone()
    changed[:, :, 3:] = 4 + (changed[:, :, 3:] + 1) % 7
    before, after = decoder(memory(), tokens).logits, decoder(memory(), changed).logits
    assert_close(before[:, :, :3], after[:, :, :3])
    assert (before[:, :, 3] - after[:, :, 3]).abs().max() > 1e-3


@pytest.mark.parametrize("name", BOTH)
def test_memory_mask(name: str) -> None:
    """Hidden tokens may hold anything, and the result is that of a memory without them."""
    decoder, tokens = BOTH[name](), captions()
    garbage = memory().tokens.clone()
    garbage[1, 3] = 1e4
    clean = decoder(memory(), tokens, need_attention=True)
    dirty = decoder(replace(memory(), tokens=garbage), tokens, need_attention=True)
    assert_close(clean.logits, dirty.logits)
    short = decoder(Memory(memory().tokens[1:, :3]), tokens[1:], need_attention=True)
    assert_close(clean.logits[1], short.logits[0])
    assert_close(clean.attention[1, ..., :3], short.attention[0])
    assert clean.attention[1, ..., 3].eq(0).all()
    open_ = decoder(memory(mask=False), tokens)
    assert (open_.logits[1] - clean.logits[1]).abs().max() > 1e-3
    assert_close(open_.logits[0], clean.logits[0])
    nothing = decoder(replace(memory(), mask=torch.zeros(B, N, dtype=torch.bool)), tokens)
    assert nothing.logits.isfinite().all()


@pytest.mark.parametrize("name", BOTH)
def test_a_step_changes_no_state(name: str) -> None:
    """Two different continuations of one state, in either order, as if the other had not been."""
    decoder, tokens = BOTH[name](), captions()
    _, _, state = decoder.step(tokens[:, :, 0], decoder.start(memory(), G))
    frozen = [t.detach().clone() for t in tensors(state)]
    first = decoder.step(tokens[:, :, 1], state)
    other = decoder.step(tokens[:, :, 2], state)
    again = decoder.step(tokens[:, :, 1], state)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    for old, new in zip(frozen, tensors(state), strict=True):
        assert torch.equal(old, new)
    for a, b in zip(tensors(first[2]), tensors(again[2]), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(AttributeError):
        state.mask = None


@pytest.mark.parametrize("scheme", ["rnn", *POSITIONS])
def test_select_and_keep(scheme: str) -> None:
    """Any choice of sequences and images goes on as if it had been read from its beginning."""
    decoder = rnn() if scheme == "rnn" else transformer(position=scheme, kv_heads=2)
    tokens = captions()
    state = decoder.start(memory(), G)
    for t in range(3):
        _, _, state = decoder.step(tokens[:, :, t], state)
    index = torch.tensor([[2, 0, 0, 1], [1, 1, 2, 0]])  # one more than there were, another choice for each image
    rows = torch.tensor([1])
    prefix = torch.stack([tokens[b, index[b]] for b in range(B)])
    assert torch.equal(select_groups(tokens, index), prefix)
    expected = decoder(memory(), prefix, need_attention=True)

    chosen = state.select(index)
    logits, attention, chosen = decoder.step(prefix[:, :, 3], chosen, need_attention=True)
    assert_close(logits, expected.logits[:, :, 3])
    assert_close(attention, expected.attention[:, :, 3])
    logits, _, _ = decoder.step(prefix[:, :, 4], chosen)
    assert_close(logits, expected.logits[:, :, 4])

    for step, kept in ((4, chosen.keep(rows)), (3, state.keep(rows).select(index[rows]))):
        logits, attention, _ = decoder.step(prefix[rows, :, step], kept, need_attention=True)
        assert_close(logits, expected.logits[rows, :, step])
        assert_close(attention, expected.attention[rows, :, step])

    fresh = decoder.start(memory(), G).select(torch.tensor([[0], [0]])).keep(rows)
    logits, _, _ = decoder.step(tokens[rows, :1, 0], fresh)
    assert_close(logits, expected.logits[rows, :1, 0])


@pytest.mark.parametrize("position", ["none", "sinusoidal", "rotary", "alibi"])
def test_schemes_without_a_table_go_beyond_the_training_length(position: str) -> None:
    decoder = transformer(position=position, max_length=4)
    tokens = torch.full((B, 1, 12), 5)
    parallel = decoder(memory(), tokens).logits
    assert parallel.isfinite().all()
    assert_close(parallel, StepDecoder.forward(decoder, memory(), tokens).logits)


def test_a_learned_table_ends() -> None:
    decoder = transformer(position="learned", max_length=4)
    decoder(memory(), torch.full((B, 1, 4), 5))
    with pytest.raises(ValueError, match="position 4 is beyond the learned table of 4"):
        decoder(memory(), torch.full((B, 1, 5), 5))
    state = decoder.start(memory())
    for _ in range(4):
        _, _, state = decoder.step(torch.full((B, 1), 5), state)
    with pytest.raises(ValueError, match="position 4 is beyond the learned table of 4"):
        decoder.step(torch.full((B, 1), 5), state)


def test_tied_and_separate_output_weights() -> None:
    tied, separate = transformer(tie=True), transformer(tie=False)
    assert tied.out.weight is tied.embed.weight
    assert separate.out.weight is not separate.embed.weight
    with pytest.raises(ValueError, match="norm must be 'pre' or 'post', got 'last'"):
        transformer(norm="last")


# torch's layers with copied weights


def copy_attention(theirs: nn.MultiheadAttention, weight: Tensor, bias: Tensor, proj: nn.Linear) -> None:
    theirs.in_proj_weight.copy_(weight)
    theirs.in_proj_bias.copy_(bias)
    theirs.out_proj.load_state_dict(proj.state_dict())


@torch.no_grad()
def copy_encoder(theirs: nn.TransformerEncoderLayer, mine: EncoderBlock) -> None:
    copy_attention(theirs.self_attn, mine.attn.qkv.weight, mine.attn.qkv.bias, mine.attn.proj)
    pairs = ((theirs.linear1, mine.mlp.fc1), (theirs.linear2, mine.mlp.fc2))
    for their_part, my_part in (*pairs, (theirs.norm1, mine.norm1), (theirs.norm2, mine.norm2)):
        their_part.load_state_dict(my_part.state_dict())


@torch.no_grad()
def copy_decoder(theirs: nn.TransformerDecoderLayer, mine: DecoderBlock) -> None:
    own, cross = mine.self_attn, mine.cross_attn
    copy_attention(theirs.self_attn, own.qkv.weight, own.qkv.bias, own.proj)
    weight, bias = torch.cat((cross.q.weight, cross.kv.weight)), torch.cat((cross.q.bias, cross.kv.bias))
    copy_attention(theirs.multihead_attn, weight, bias, cross.proj)
    pairs = ((theirs.linear1, mine.mlp.fc1), (theirs.linear2, mine.mlp.fc2))
    norms = ((theirs.norm1, mine.norm1), (theirs.norm2, mine.norm2), (theirs.norm3, mine.norm3))
    for their_part, my_part in (*pairs, *norms):
        their_part.load_state_dict(my_part.state_dict())


def layer_options(norm: str, eps: float) -> dict[str, object]:
    return {
        "dim_feedforward": 2 * WIDTH,
        "dropout": 0.0,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": norm == "pre",
        "layer_norm_eps": eps,
        "dtype": torch.float64,
    }


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_block_equals_torch(norm: str) -> None:
    mine = lively(EncoderBlock(WIDTH, HEADS, mlp_ratio=2.0, norm=norm))
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, **layer_options(norm, 1e-6))  # type: ignore[arg-type]
    copy_encoder(theirs, mine)  # type: ignore[arg-type]
    x = random(B, N, WIDTH).requires_grad_()
    seen = memory().mask
    assert seen is not None
    for mask in (None, seen):
        found, _ = mine(x, mask=mask)
        expected = theirs(x, src_key_padding_mask=None if mask is None else ~mask)
        assert_close(found, expected, atol=1e-9, rtol=1e-9)
        weights = random(*found.shape, seed=9)
        (a,), (b,) = (torch.autograd.grad((out * weights).sum(), x) for out in (found, expected))
        assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_block_equals_torch(norm: str) -> None:
    mine = lively(DecoderBlock(WIDTH, HEADS, memory_width=WIDTH, mlp_ratio=2.0, norm=norm))
    theirs = nn.TransformerDecoderLayer(WIDTH, HEADS, **layer_options(norm, 1e-5))  # type: ignore[arg-type]
    copy_decoder(theirs, mine)  # type: ignore[arg-type]
    x, seen = random(B, 1, T, WIDTH).requires_grad_(), random(B, N, WIDTH, seed=1).requires_grad_()
    mask = memory().mask
    assert mask is not None
    found, _, _ = mine(x, mine.cross_attn.project_memory(seen), memory_mask=mask, coordinates=line(T))
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x[:, 0], seen, tgt_mask=later, memory_key_padding_mask=~mask)
    assert_close(found[:, 0], expected, atol=1e-9, rtol=1e-9)
    weights = random(*expected.shape, seed=9)
    mine_grads = torch.autograd.grad((found[:, 0] * weights).sum(), (x, seen))
    for a, b in zip(mine_grads, torch.autograd.grad((expected * weights).sum(), (x, seen)), strict=True):
        assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_whole_decoder_equals_torch(norm: str) -> None:
    """Embedding, learned positions, two layers, final norm (pre only), output: with torch's decoder in the middle."""
    mine = transformer(memory_width=WIDTH, norm=norm, position="learned")
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, **layer_options(norm, 1e-5))  # type: ignore[arg-type]
    last = nn.LayerNorm(WIDTH, dtype=torch.float64) if norm == "pre" else None
    theirs = nn.TransformerDecoder(layer, num_layers=2, norm=last)
    for their_layer, block in zip(theirs.layers, mine.blocks, strict=True):
        copy_decoder(their_layer, block)  # type: ignore[arg-type]
    if last is not None:
        assert theirs.norm is not None
        theirs.norm.load_state_dict(mine.norm.state_dict())
    seen, tokens = random(B, N, WIDTH, seed=1), captions()
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    queries: list[Tensor] = []
    for their_layer in theirs.layers:
        their_layer.multihead_attn.register_forward_pre_hook(lambda module, inputs: queries.append(inputs[0]))
    found = mine(Memory(seen), tokens, need_attention=True)
    for g in range(G):
        x = mine.embed.weight[tokens[:, g]] + mine.position.table[:T]
        queries.clear()
        expected = theirs(x, seen, tgt_mask=later) @ mine.embed.weight.T + mine.out.bias
        assert_close(found.logits[:, g], expected, atol=1e-9, rtol=1e-9)
        for layer, query in enumerate(queries[:2]):
            attention = theirs.layers[layer].multihead_attn
            _, weights = attention(query, seen, seen, average_attn_weights=False)  # (B, H, T, N)
            assert_close(found.attention[:, g, :, layer].transpose(1, 2), weights, atol=1e-9, rtol=1e-9)


def test_layer_scale_and_drop_path_act_on_the_branches() -> None:
    """A layer scale of 0 leaves the input; drop path leaves it for whole samples and keeps the mean over many."""
    x = random(3, N, WIDTH)
    block = EncoderBlock(WIDTH, HEADS, layer_scale=0.0).double()
    assert torch.equal(block(x)[0], x)
    assert torch.equal(LayerScale(WIDTH, 0.5).double()(x), 0.5 * x)
    torch.manual_seed(0)
    drop = DropPath(0.25).train()
    out = drop(torch.ones(4000, 2, 3))
    kept = out[:, 0, 0] > 0
    assert torch.equal(out, kept[:, None, None].expand_as(out) / 0.75)
    assert 0.72 < kept.float().mean() < 0.78
    assert torch.equal(drop.eval()(x), x)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1.0"):
        DropPath(1.0)


# the recurrent decoder from its equations


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def test_rnn_is_its_equations() -> None:
    """Show, Attend and Tell (Xu et al. 2015), one caption at a time, in plain matrix products."""
    decoder, tokens = rnn(), captions()
    found = decoder(memory(), tokens, need_attention=True)
    w = dict(decoder.named_parameters())

    def affine(name: str, x: Tensor) -> Tensor:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0)

    for b, g in itertools.product(range(B), range(G)):
        places = memory().tokens[b][memory().mask[b]]  # type: ignore[index]
        hidden = torch.tanh(affine("init_hidden", places.mean(0)))  # the initial state, section 3.1.2
        cell = torch.tanh(affine("init_cell", places.mean(0)))
        for t in range(T):
            word = w["embed.weight"][tokens[b, g, t]]
            query = affine("attention.query", hidden)
            scores = [w["attention.score.weight"][0] @ torch.tanh(query + affine("attention.key", a)) for a in places]
            alpha = torch.stack(scores).softmax(0)
            context = sigmoid(affine("gate", hidden)) * (alpha @ places)  # beta of section 4.2.1
            x = torch.cat((word, context))
            gates = w["cell.weight_ih"] @ x + w["cell.bias_ih"] + w["cell.weight_hh"] @ hidden + w["cell.bias_hh"]
            i, f, new, o = gates.chunk(4)
            cell = sigmoid(f) * cell + sigmoid(i) * torch.tanh(new)
            hidden = sigmoid(o) * torch.tanh(cell)
            deep = torch.tanh(word + affine("hidden_out", hidden) + affine("context_out", context))  # equation 7
            assert_close(found.logits[b, g, t], affine("out", deep), atol=1e-6, rtol=1e-5)
            assert found.attention is not None
            assert_close(found.attention[b, g, t, 0, 0, : len(places)].double(), alpha, atol=1e-6, rtol=1e-5)


def test_decoders_train_with_dropout() -> None:
    """In training dropout changes the result; in evaluation nothing does."""
    for decoder in (rnn(), transformer(dropout=0.3)):
        decoder.train()
        assert not torch.equal(decoder(memory(), captions()).logits, decoder(memory(), captions()).logits)
        decoder.eval()
        assert torch.equal(decoder(memory(), captions()).logits, decoder(memory(), captions()).logits)
