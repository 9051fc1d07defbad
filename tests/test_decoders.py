"""Decoders and blocks: the parallel pass against the loop of steps, torch's layers with copied weights, plain loops."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.decoding import Beam, Greedy
from vitcap.models.decoder import StepDecoder, select_groups
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.nn.alignment import ALIGNMENTS
from vitcap.nn.blocks import DecoderBlock, DropPath, EncoderBlock, LayerScale
from vitcap.nn.position import POSITIONS, line
from vitcap.types import BOS, EOS, PAD, DecoderOutput, Memory

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


def rnn(**options: object) -> RnnDecoder:
    dots = options.get("attention") in ("dot", "scaled_dot")  # which need the width of the memory
    sizes = {"vocab_size": VOCAB, "memory_width": MEMORY_WIDTH, "width": MEMORY_WIDTH if dots else 7}
    return lively(RnnDecoder(**{**sizes, "embed_width": 5, "attention_width": 4, **options}))  # type: ignore


def memory(mask: bool = True, pooled: bool = False) -> Memory:
    seen = torch.tensor([[True] * N, [True, True, True, False]])
    vector = random(B, MEMORY_WIDTH, seed=3) if pooled else None
    return Memory(random(B, N, MEMORY_WIDTH, seed=1), mask=seen if mask else None, pooled=vector)


def captions() -> Tensor:
    tokens = torch.randint(4, VOCAB, (B, G, T), generator=torch.Generator().manual_seed(2))
    tokens[:, :, 0] = BOS
    tokens[0, 1, 3:] = torch.tensor([EOS, PAD])
    tokens[1, 2] = PAD  # a missing caption
    return tokens


def plain() -> RnnDecoder:
    return rnn(attention="none", gate="none", initial="pooled")


BOTH = {"transformer": transformer, "rnn": rnn, "hard": lambda: rnn(hard=True, gate="scalar")}
ALL = {**BOTH, "no attention": plain}


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


KINDS = [*({"attention": kind} for kind in ALIGNMENTS), {"attention": "none"}, {"hard": True}]


def same_outputs_and_gradients(first: DecoderOutput, second: DecoderOutput, decoder: nn.Module, seen: Tensor) -> None:
    assert_close(first.logits, second.logits, atol=1e-10, rtol=1e-8)
    assert_close(first.attention, second.attention, atol=1e-10, rtol=1e-8)
    weights, grads = random(*first.logits.shape, seed=5), []
    for output in (first, second):
        loss = (output.logits * weights).sum()
        if output.attention is not None and output.attention.requires_grad:
            loss = loss + (output.attention * random(*output.attention.shape, seed=6)).sum()
        parameters = [seen, *decoder.parameters()]
        grads.append(torch.autograd.grad(loss, parameters, allow_unused=True))
    for name, a, b in zip(["memory", *dict(decoder.named_parameters())], *grads, strict=True):
        assert_close(a, b, atol=1e-10, rtol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("initial", ["mean", "pooled"])
@pytest.mark.parametrize("gate", ["channel", "scalar", "none"])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_fast_rnn_pass_equals_the_loop_of_steps(options: dict[str, object], gate: str, initial: str) -> None:
    """Values and gradients, also those of the memory; in training, without dropout, the same draws too."""
    decoder = rnn(**options, gate=gate, initial=initial, dropout=0.0)
    for training in (False, True):
        decoder.train(training)
        seen = memory(pooled=True)
        seen = replace(seen, tokens=seen.tokens.requires_grad_())
        outputs = []
        for forward in (decoder.forward, partial(StepDecoder.forward, decoder)):
            torch.manual_seed(7)
            outputs.append(forward(seen, captions(), need_attention=True))
        same_outputs_and_gradients(*outputs, decoder, seen.tokens)
    decoder.eval()
    assert_close(decoder(seen, captions()).logits, StepDecoder.forward(decoder, seen, captions()).logits)
    assert decoder(seen, captions()).attention is None
    single = decoder.float()
    seen = Memory(seen.tokens.detach().float(), mask=seen.mask)
    found, loop = single(seen, captions()).logits, StepDecoder.forward(single, seen, captions()).logits
    assert_close(found, loop, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_caption_is_read_alone(name: str) -> None:
    """The group axis: each caption as if it were the only one, whatever stands beside it; no memory is repeated."""
    decoder, tokens = ALL[name](), captions()
    together = decoder(memory(), tokens, need_attention=True)
    for b, g in itertools.product(range(B), range(G)):
        one = Memory(memory().tokens[b : b + 1], mask=memory().mask[b : b + 1])  # type: ignore[index]
        alone = decoder(one, tokens[b : b + 1, g : g + 1], need_attention=True)
        assert_close(together.logits[b, g], alone.logits[0, 0])
        if name != "no attention":
            assert_close(together.attention[b, g], alone.attention[0, 0])
    with torch.no_grad():
        first, second = (
            sum(t.untyped_storage().nbytes() for t in tensors(decoder.start(memory(), groups))) for groups in (1, 50)
        )
    assert first == second  # the memory is held once per image, however many sequences attend to it


@pytest.mark.parametrize("name", ALL)
def test_later_tokens_change_nothing_before(name: str) -> None:
    decoder, tokens = ALL[name](), captions()
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


@pytest.mark.parametrize("name", ALL)
def test_a_step_changes_no_state(name: str) -> None:
    """Two different continuations of one state, in either order, as if the other had not been."""
    decoder, tokens = ALL[name](), captions()
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


@pytest.mark.parametrize("scheme", ["rnn", "hard", "no attention", *POSITIONS])
def test_select_and_keep(scheme: str) -> None:
    """Any choice of sequences and images goes on as if it had been read from its beginning."""
    decoder = ALL[scheme]() if scheme in ALL else transformer(position=scheme, kv_heads=2)
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
    if scheme == "no attention":
        assert attention is expected.attention is None
    else:
        assert_close(attention, expected.attention[:, :, 3])
    logits, _, _ = decoder.step(prefix[:, :, 4], chosen)
    assert_close(logits, expected.logits[:, :, 4])

    for step, kept in ((4, chosen.keep(rows)), (3, state.keep(rows).select(index[rows]))):
        logits, attention, _ = decoder.step(prefix[rows, :, step], kept, need_attention=True)
        assert_close(logits, expected.logits[rows, :, step])
        if scheme != "no attention":
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
    assert decoder.max_length is None
    assert Greedy(max_length=12, min_length=12)(decoder, memory()).tokens.shape == (B, 1, 12)


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
    with pytest.raises(ValueError, match="max_length=5, but the decoder ends at 4"):
        Greedy(max_length=5)(decoder, memory())


def test_tied_and_separate_output_weights() -> None:
    tied, separate = transformer(tie=True), transformer(tie=False)
    assert tied.out.weight is tied.embed.weight
    assert separate.out.weight is not separate.embed.weight
    with pytest.raises(ValueError, match="norm must be 'pre' or 'post', got 'last'"):
        transformer(norm="last")
    with pytest.raises(ValueError, match="activation must be one of gelu, relu, got 'tanh'"):
        transformer(activation="tanh")


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


def equations(
    decoder: RnnDecoder, places: Tensor, tokens: Tensor, *, pooled: Tensor | None = None, choices: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Show, Attend and Tell (Xu et al. 2015), one caption (T,) of one image (N, M), in plain matrix products.

    choices: the place that each step reads, for hard attention. Returns logits (T, V) and attention weights (T, N).
    """
    w = dict(decoder.named_parameters())

    def affine(name: str, x: Tensor) -> Tensor:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0)

    def score(hidden: Tensor, place: Tensor) -> Tensor:
        if "attention.score.weight" in w:  # Bahdanau et al. 2015
            hidden = torch.tanh(affine("attention.query", hidden) + affine("attention.key", place))
            return w["attention.score.weight"][0] @ hidden
        if "attention.key.weight" in w:  # Luong et al. 2015, general
            return hidden @ affine("attention.key", place)
        return hidden @ place * getattr(decoder.attention, "factor", 1.0)

    mean = places.mean(0)
    first = pooled if decoder.initial == "pooled" and pooled is not None else mean
    hidden = torch.tanh(affine("init_hidden", first))  # the initial state, section 3.1.2
    cell = torch.tanh(affine("init_cell", first))
    logits, weights = [], []
    for t, token in enumerate(tokens):
        word = w["embed.weight"][token]
        if decoder.attention is None:
            context = mean if pooled is None else pooled
        else:
            alpha = torch.stack([score(hidden, place) for place in places]).softmax(0)
            context = places[choices[t]] if choices else alpha @ places  # sections 4.1 and 4.2
            weights.append(alpha)
        if "gate.weight" in w:
            context = sigmoid(affine("gate", hidden)) * context  # beta of section 4.2.1
        gates = w["cell.weight_ih"] @ torch.cat((word, context)) + w["cell.bias_ih"]
        i, f, new, o = (gates + w["cell.weight_hh"] @ hidden + w["cell.bias_hh"]).chunk(4)
        cell = sigmoid(f) * cell + sigmoid(i) * torch.tanh(new)
        hidden = sigmoid(o) * torch.tanh(cell)
        deep = torch.tanh(word + affine("hidden_out", hidden) + affine("context_out", context))  # equation 7
        logits.append(affine("out", deep))
    return torch.stack(logits), torch.stack(weights) if weights else torch.zeros(0)


EQUATIONS = [
    {},
    {"gate": "scalar"},
    {"gate": "none", "initial": "pooled"},
    {"attention": "dot"},
    {"attention": "scaled_dot", "gate": "scalar"},
    {"attention": "general", "initial": "pooled"},
    {"attention": "none", "gate": "none", "initial": "pooled"},
    {"attention": "none"},
]


@pytest.mark.parametrize("pooled", [False, True], ids=["no pooled", "pooled"])
@pytest.mark.parametrize("options", EQUATIONS, ids=str)
def test_rnn_is_its_equations(options: dict[str, object], pooled: bool) -> None:
    decoder, tokens, seen = rnn(**options), captions(), memory(pooled=pooled)
    found = decoder(seen, tokens, need_attention=True)
    assert (found.attention is None) == (options.get("attention") == "none")
    for b, g in itertools.product(range(B), range(G)):
        places = seen.tokens[b][seen.mask[b]]  # type: ignore[index]
        logits, weights = equations(decoder, places, tokens[b, g], pooled=seen.pooled[b] if pooled else None)  # type: ignore[index]
        assert_close(found.logits[b, g], logits, atol=1e-10, rtol=1e-8)
        if found.attention is not None:
            assert_close(found.attention[b, g, :, 0, 0, : len(places)], weights, atol=1e-10, rtol=1e-8)


def test_parameters_of_the_rnn_keep_their_names() -> None:
    """So that model files of the default decoder load."""
    shapes = {name: tuple(p.shape) for name, p in RnnDecoder(vocab_size=9, memory_width=6).named_parameters()}
    assert shapes == {
        "embed.weight": (9, 256),
        "init_hidden.weight": (512, 6),
        "init_hidden.bias": (512,),
        "init_cell.weight": (512, 6),
        "init_cell.bias": (512,),
        "attention.query.weight": (256, 512),
        "attention.query.bias": (256,),
        "attention.key.weight": (256, 6),
        "attention.score.weight": (1, 256),
        "gate.weight": (6, 512),
        "gate.bias": (6,),
        "cell.weight_ih": (2048, 262),
        "cell.weight_hh": (2048, 512),
        "cell.bias_ih": (2048,),
        "cell.bias_hh": (2048,),
        "hidden_out.weight": (256, 512),
        "hidden_out.bias": (256,),
        "context_out.weight": (256, 6),
        "out.weight": (9, 256),
        "out.bias": (9,),
    }


def test_without_attention_one_vector_is_all_that_is_seen() -> None:
    """The bottleneck: the pooled vector at every step, nothing else of the memory."""
    decoder, seen = plain(), memory(pooled=True)
    found = decoder(seen, captions(), need_attention=True)
    other = replace(seen, tokens=random(B, 9, MEMORY_WIDTH, seed=8), mask=None)
    assert torch.equal(found.logits, decoder(other, captions()).logits)
    assert found.attention is None
    assert (found.logits - decoder(replace(seen, pooled=-seen.pooled), captions()).logits).abs().max() > 1e-2  # type: ignore[operator]
    contexts: list[Tensor] = []
    decoder.context_out.register_forward_pre_hook(lambda module, inputs: contexts.append(inputs[0]))
    decoder(seen, captions())
    assert torch.equal(contexts[0], seen.pooled[:, None, None].expand(B, G, T, -1))  # type: ignore[index]
    generated = Beam(max_length=6)(decoder, seen, need_attention=True)
    assert generated.attention is None
    assert generated.tokens.shape[0] == B


# hard attention


def drawn(decoder: RnnDecoder, seen: Memory, tokens: Tensor, seed: int = 0) -> tuple[DecoderOutput, Tensor]:
    """Output in training, and the contexts (B, G, T, M) that it was made of."""
    contexts: list[Tensor] = []
    hook = decoder.context_out.register_forward_pre_hook(lambda module, inputs: contexts.append(inputs[0]))
    torch.manual_seed(seed)
    output = decoder.train()(seen, tokens, need_attention=True)
    hook.remove()
    return output, contexts[0]


@pytest.mark.parametrize("soft_share", [0.0, 0.5, 1.0])
def test_hard_attention_reads_what_it_says(soft_share: float) -> None:
    """The attention returned formed the context; one place for hard images, the weights for soft ones, per image."""
    decoder = rnn(hard=True, soft_share=soft_share, gate="none", dropout=0.0)
    images = 400
    seen = Memory(random(images, N, MEMORY_WIDTH), mask=torch.arange(N) < 2 + torch.arange(images)[:, None] % 3)
    tokens = torch.randint(4, VOCAB, (images, G, T), generator=torch.Generator().manual_seed(2))
    output, contexts = drawn(decoder, seen, tokens)
    assert output.attention is not None
    assert output.choice_log_prob is not None
    assert output.entropy is not None
    weights = output.attention[:, :, :, 0, 0]
    assert_close(contexts, weights @ seen.tokens[:, None])
    assert_close(weights.sum(-1), torch.ones(images, G, T).double())
    hard = weights.amax(-1) == 1
    assert torch.equal(hard, hard[:, :1, :1].expand_as(hard))  # an image is soft as a whole
    share = 1 - hard[:, 0, 0].double().mean()
    assert abs(share - soft_share) < 4 * math.sqrt(0.25 / images)
    if soft_share in (0, 1):
        assert share == soft_share
    assert output.choice_log_prob[~hard].eq(0).all()
    assert output.choice_log_prob[hard].lt(0).all()
    assert output.entropy.gt(0).all()
    for b in range(6):  # as the equations have it, given the places drawn
        for g in range(G):
            places = weights[b, g].argmax(-1).tolist()
            lot = seen.tokens[b, : 2 + b % 3]
            logits, alpha = equations(decoder, lot, tokens[b, g], choices=tuple(places) if hard[b, 0, 0] else ())
            assert_close(output.logits[b, g], logits, atol=1e-10, rtol=1e-8)
            assert_close(output.entropy[b, g], -(alpha * alpha.log()).sum(-1), atol=1e-10, rtol=1e-8)
            if hard[b, 0, 0]:
                own = alpha[range(T), places].log()
                assert_close(output.choice_log_prob[b, g], own, atol=1e-10, rtol=1e-8)
            else:
                assert_close(weights[b, g, :, : len(lot)], alpha, atol=1e-10, rtol=1e-8)


def test_places_are_drawn_as_often_as_their_weights_say() -> None:
    decoder = rnn(hard=True, soft_share=0.0, dropout=0.0)
    tokens = torch.full((B, 4000, 1), BOS)
    output, _ = drawn(decoder, memory(), tokens)
    assert output.attention is not None
    for b in range(B):
        places = memory().tokens[b][memory().mask[b]]  # type: ignore[index]
        _, alpha = equations(decoder, places, tokens[b, 0])
        shares = output.attention[b, :, 0, 0, 0].mean(0)[: len(places)]
        assert (shares - alpha[0]).abs().max() < 4 * math.sqrt(0.25 / 4000)
    assert output.attention[1, ..., 3].eq(0).all()
    other, _ = drawn(decoder, memory(), tokens, seed=1)
    assert not torch.equal(output.attention, other.attention)  # type: ignore[arg-type]


def test_reinforce_averaged_over_all_choices_is_the_gradient_of_the_expectation(monkeypatch) -> None:
    """Sum over all ways to choose of p (grad f + f grad log p) = grad sum p f, f a function of the logits.

    The left side is the decoder's, each way forced upon it; the right side that of the equations.
    """
    steps, places = 2, 3
    decoder = rnn(hard=True, soft_share=0.0, dropout=0.0).train()
    seen, tokens = random(1, places, MEMORY_WIDTH).requires_grad_(), torch.tensor([[[BOS, 5]]])
    factors = random(steps, VOCAB, seed=4)
    parameters = [seen, *decoder.parameters()]

    estimate = [torch.zeros_like(p) for p in parameters]
    without = [torch.zeros_like(p) for p in parameters]
    expectation = torch.zeros(()).double()
    total = 0.0
    for choices in itertools.product(range(places), repeat=steps):
        left = list(choices)
        monkeypatch.setattr(torch, "multinomial", lambda shares, count, left=left: torch.tensor([[left.pop(0)]]))
        output = decoder(Memory(seen), tokens)
        assert not left
        value = (output.logits[0, 0].log_softmax(-1) * factors).sum()
        log_prob = output.choice_log_prob.sum()  # type: ignore[union-attr]
        probability = float(log_prob.detach().exp())
        total += probability
        for sums, loss in ((estimate, value + value.detach() * log_prob), (without, value)):
            grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for part, grad in zip(sums, grads, strict=True):
                part += 0 if grad is None else probability * grad

        logits, alpha = equations(decoder, seen[0], tokens[0, 0], choices=choices)
        chance = alpha[range(steps), choices].prod()
        assert float(chance.detach()) == pytest.approx(probability)
        expectation = expectation + chance * (logits.log_softmax(-1) * factors).sum()
    assert total == pytest.approx(1.0)
    exact = torch.autograd.grad(expectation, parameters)
    names = ["memory", *dict(decoder.named_parameters())]
    for name, mine, theirs in zip(names, estimate, exact, strict=True):
        assert_close(mine, theirs, atol=1e-10, rtol=1e-8, msg=lambda text, name=name: f"{name}: {text}")
    # Without the score function's term nothing would reach the attention: no gradient passes through a draw.
    blind = dict(zip(names, without, strict=True))
    for name in ("attention.query.weight", "attention.key.weight", "attention.score.weight"):
        assert blind[name].eq(0).all()
        assert dict(zip(names, exact, strict=True))[name].abs().max() > 1e-4


def test_hard_attention_reads_the_likeliest_place_in_evaluation() -> None:
    decoder = rnn(hard=True)
    output = decoder(memory(), captions(), need_attention=True)
    assert output.choice_log_prob is None
    assert output.entropy is None
    assert output.attention is not None
    for b, g in itertools.product(range(B), range(G)):
        places, chosen = memory().tokens[b][memory().mask[b]], output.attention[b, g, :, 0, 0].argmax(-1).tolist()  # type: ignore[index]
        logits, alpha = equations(decoder, places, captions()[b, g], choices=tuple(chosen))
        assert alpha.argmax(-1).tolist() == chosen
        assert_close(output.logits[b, g], logits, atol=1e-10, rtol=1e-8)
    assert output.attention.eq(0).logical_or(output.attention.eq(1)).all()


@pytest.mark.parametrize("training", [False, True])
def test_hard_attention_with_nothing_to_see(training: bool) -> None:
    decoder = rnn(hard=True, soft_share=0.0, dropout=0.0).train(training)
    tokens = memory().tokens.requires_grad_()
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[0] = False
    output = decoder(Memory(tokens, mask=mask), captions(), need_attention=True)
    assert output.attention is not None
    assert output.attention[0].eq(0).all()
    assert_close(output.attention[1].sum(-1), torch.ones(G, T, 1, 1).double())
    loss = output.logits.sum()
    if training:
        assert output.choice_log_prob is not None
        assert output.entropy is not None
        assert output.choice_log_prob[0].eq(0).all()
        assert output.entropy[0].eq(0).all()
        loss = loss + output.choice_log_prob.sum() + output.entropy.sum()
    loss.backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
    assert tokens.grad[0].eq(0).all()
    assert all(p.grad.isfinite().all() for p in decoder.parameters() if p.grad is not None)


def test_states_of_hard_training_keep_their_soft_images() -> None:
    decoder = rnn(hard=True).train()
    seen = Memory(random(40, N, MEMORY_WIDTH))
    state, rows = decoder.start(seen, G), torch.tensor([7, 3])
    assert torch.equal(state.keep(rows).soft, state.soft[rows])
    assert 0 < int(state.soft.sum()) < 40
    assert decoder.eval().start(seen).soft is None


BAD = {
    "attention='none' has none": {"attention": "none", "hard": True},
    "soft_share must be in 0..1, got 1.5": {"soft_share": 1.5},
    "gate must be one of channel, scalar, none, got True": {"gate": True},
    "initial must be one of mean, pooled, got 'last'": {"initial": "last"},
    "unknown alignment function 'soft'": {"attention": "soft"},
    "the query has 7 and the memory 6: use 'general' or 'additive'": {"attention": "dot", "width": 7},
}


@pytest.mark.parametrize("message", BAD)
def test_recurrent_decoders_that_cannot_be(message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rnn(**BAD[message])


def test_a_memory_of_another_width_is_named() -> None:
    for decoder in (rnn(), plain()):
        with pytest.raises(ValueError, match="memory of width 5 for a decoder built for 6"):
            decoder(Memory(random(B, N, 5)), captions())
    with pytest.raises(ValueError, match="memory of width 5 for an attention layer built for 6"):
        transformer()(Memory(random(B, N, 5)), captions())


def test_decoders_train_with_dropout() -> None:
    """In training dropout changes the result; in evaluation nothing does."""
    for decoder in (rnn(), transformer(dropout=0.3)):
        decoder.train()
        assert not torch.equal(decoder(memory(), captions()).logits, decoder(memory(), captions()).logits)
        decoder.eval()
        assert torch.equal(decoder(memory(), captions()).logits, decoder(memory(), captions()).logits)
