"""Text encoders against torch's layers, one sentence at a time; the whole Transformer of 2017 against torch's."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.models.decoder import StepDecoder
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder, TransformerTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.nn.position import POSITIONS
from vitcap.types import BOS, PAD

VOCAB, WIDTH = 13, 16
LENGTHS = (5, 2, 7, 1)


def sentences(extra: int = 0) -> Tensor:
    """(B, S) ids of sentences of LENGTHS, with `extra` more columns of PAD than needed."""
    source = torch.randint(4, VOCAB, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate(LENGTHS):
        source[row, length:] = PAD
    return F.pad(source, (0, extra), value=PAD)


def recurrent(**options: object) -> RnnTextEncoder:
    torch.manual_seed(0)
    return RnnTextEncoder(vocab_size=VOCAB, width=WIDTH, embed_width=6, **options).double().eval()  # type: ignore[arg-type]


def transformer(**options: object) -> TransformerTextEncoder:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "width": WIDTH, "depth": 2, "heads": 2, "max_length": 9}
    return TransformerTextEncoder(**{**sizes, **options}).double().eval()  # type: ignore[arg-type]


ENCODERS = {
    "rnn": recurrent,
    "deep rnn": lambda: recurrent(depth=2),
    **{position: lambda position=position: transformer(position=position) for position in POSITIONS},
    "post": lambda: transformer(norm="post", activation="relu", scale_embedding=True),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_and_neighbours_change_nothing(name: str) -> None:
    """Every sentence as if it were alone and without PAD; the gradients too."""
    encoder = ENCODERS[name]()
    memory, wide = encoder(sentences()), encoder(sentences(extra=2))
    assert torch.equal(memory.mask, sentences() != PAD)
    assert memory.grid is None
    assert memory.tokens.shape == (len(LENGTHS), max(LENGTHS), encoder.width)
    assert memory.pooled.shape == (len(LENGTHS), encoder.width)
    assert_close(wide.pooled, memory.pooled)
    weights = torch.randn(max(LENGTHS), WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for row, length in enumerate(LENGTHS):
        alone = encoder(sentences()[row : row + 1, :length])
        assert_close(memory.tokens[row, :length], alone.tokens[0])
        assert_close(wide.tokens[row, :length], alone.tokens[0])
        assert_close(memory.pooled[row], alone.pooled[0])
        grads = []
        for out in (memory, alone):
            place = row if out is memory else 0
            loss = (out.tokens[place, :length] * weights[:length]).sum() + (out.pooled[place] * weights[0]).sum()
            grads.append(torch.autograd.grad(loss, list(encoder.parameters()), retain_graph=True))
        for mine, theirs in zip(*grads, strict=True):
            assert_close(mine, theirs)


@pytest.mark.parametrize("name", ENCODERS)
def test_an_empty_sentence_is_a_memory_without_tokens(name: str) -> None:
    encoder, source = ENCODERS[name](), sentences()
    source[1] = PAD
    memory, clean = encoder(source), encoder(sentences())
    assert not memory.mask[1].any()
    assert memory.pooled[1].eq(0).all()
    assert memory.tokens[1].eq(0).all() or "rnn" not in name
    assert memory.tokens.isfinite().all()
    for row in (0, 2, 3):
        assert_close(memory.tokens[row], clean.tokens[row])
    encoder(source).pooled.sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)
    assert encoder(torch.full((2, 3), PAD)).tokens.shape == (2, 3, WIDTH)
    decoder = RnnDecoder(vocab_size=5, memory_width=WIDTH, width=8, embed_width=4, attention_width=4).double().eval()
    assert decoder(memory, torch.full((len(LENGTHS), 1, 2), BOS)).logits.isfinite().all()


@pytest.mark.parametrize("depth", [1, 2])
def test_recurrent_encoder_is_two_lstms(depth: int) -> None:
    """Each direction stepped by hand with torch's cell, layer upon layer, sentence by sentence."""
    encoder = recurrent(depth=depth)
    memory, half = encoder(sentences()), WIDTH // 2
    weights = dict(encoder.rnn.named_parameters())
    for row, length in enumerate(LENGTHS):
        x = encoder.embed.weight[sentences()[row, :length]]
        for layer in range(depth):
            sides, ends = [], []
            for suffix, order in (("", range(length)), ("_reverse", range(length - 1, -1, -1))):
                cell = nn.LSTMCell(x.shape[-1], half, dtype=torch.float64)
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                cell.load_state_dict({name: weights[f"{name}_l{layer}{suffix}"].detach() for name in names})
                state, out = (torch.zeros(1, half).double(), torch.zeros(1, half).double()), {}
                for s in order:
                    state = cell(x[s : s + 1], state)
                    out[s] = state[0][0]
                sides.append(torch.stack([out[s] for s in range(length)]))
                ends.append(state[0][0])
            x = torch.cat(sides, dim=-1)
        assert_close(memory.tokens[row, :length], x)
        assert memory.tokens[row, length:].eq(0).all()
        assert_close(memory.pooled[row], torch.cat(ends))


def test_recurrent_encoder_refuses() -> None:
    with pytest.raises(ValueError, match="width 15 cannot be shared by 2 directions"):
        RnnTextEncoder(vocab_size=5, width=15)
    source = sentences()
    source[2, 3] = PAD
    with pytest.raises(ValueError, match="row 2 of the source has PAD before a token"):
        recurrent()(source)
    with pytest.raises(ValueError, match="no self-attention"):
        recurrent()(sentences(), need_attention=True)


def test_a_learned_table_ends_and_the_other_schemes_go_on() -> None:
    source = torch.full((1, 14), 5)
    with pytest.raises(ValueError, match="position 13 is beyond the learned table of 9"):
        transformer(position="learned")(source)
    for position in ("none", "sinusoidal", "rotary", "alibi"):
        long = transformer(position=position)(source).tokens
        assert long.isfinite().all()
        if position == "none":  # fourteen equal tokens cannot be told apart
            assert_close(long, long[:, :1].expand_as(long))


@pytest.mark.parametrize("position", POSITIONS)
def test_words_have_an_order_only_with_positions(position: str) -> None:
    encoder = transformer(position=position)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0, 0.4)
    source, order = sentences()[2:3], torch.tensor([3, 1, 0, 6, 2, 5, 4])
    moved = (encoder(source[:, order]).tokens - encoder(source).tokens[:, order]).abs().max()
    assert moved < 1e-9 if position == "none" else moved > 1e-3


def test_attention_of_every_block() -> None:
    encoder = transformer(dropout=0.0)
    memory = encoder(sentences(), need_attention=True)
    assert encoder(sentences()).attentions is None
    assert_close(encoder(sentences()).tokens, memory.tokens)
    assert len(memory.attentions) == 2
    for weights in memory.attentions:
        assert weights.shape == (len(LENGTHS), 2, max(LENGTHS), max(LENGTHS))
        assert_close(weights.sum(-1), torch.ones(len(LENGTHS), 2, max(LENGTHS)).double())
        for row, length in enumerate(LENGTHS):
            assert weights[row, :, :, length:].eq(0).all()


def test_dropout_is_for_training_only() -> None:
    for encoder in (recurrent(dropout=0.5), recurrent(depth=2, dropout=0.5), transformer(dropout=0.5)):
        encoder.train()
        assert not torch.equal(encoder(sentences()).tokens, encoder(sentences()).tokens)
        assert not torch.equal(encoder(sentences()).pooled, encoder(sentences()).pooled)
        encoder.eval()
        assert torch.equal(encoder(sentences()).tokens, encoder(sentences()).tokens)


# the whole encoder-decoder against torch's


def copy_attention(theirs: nn.MultiheadAttention, layer: nn.Module) -> None:
    own = [layer.qkv] if hasattr(layer, "qkv") else [layer.q, layer.kv]
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in own]))  # type: ignore[arg-type, union-attr]
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in own]))  # type: ignore[arg-type, union-attr]
    theirs.out_proj.load_state_dict(layer.proj.state_dict())


@torch.no_grad()
def torch_transformer(encoder: TransformerTextEncoder, decoder: TransformerDecoder, norm: str) -> nn.Transformer:
    """torch's module with the weights of ours. torch puts final norms after both stacks; the paper, whose blocks end
    with a norm, does not."""
    block, dtype = encoder.blocks[0], encoder.embed.weight.dtype
    sizes = {"dim_feedforward": block.mlp.fc1.out_features, "nhead": block.attn.heads, "dtype": dtype}  # type: ignore[union-attr]
    theirs = nn.Transformer(
        encoder.width,
        num_encoder_layers=len(encoder.blocks),
        num_decoder_layers=len(decoder.blocks),
        dropout=0.0,
        batch_first=True,
        norm_first=norm == "pre",
        **sizes,  # type: ignore[arg-type]
    )
    for their_stack, mine in ((theirs.encoder, encoder), (theirs.decoder, decoder)):
        if norm == "post":
            their_stack.norm = None
        else:
            their_stack.norm.load_state_dict(mine.norm.state_dict())  # type: ignore[union-attr]
    for their_layer, mine in zip(theirs.encoder.layers, encoder.blocks, strict=True):
        copy_attention(their_layer.self_attn, mine.attn)
    for their_layer, mine in zip(theirs.decoder.layers, decoder.blocks, strict=True):
        copy_attention(their_layer.self_attn, mine.self_attn)
        copy_attention(their_layer.multihead_attn, mine.cross_attn)
        their_layer.norm3.load_state_dict(mine.norm3.state_dict())
    for their_layer, mine in (
        *zip(theirs.encoder.layers, encoder.blocks, strict=True),
        *zip(theirs.decoder.layers, decoder.blocks, strict=True),
    ):
        for their_name, name in (
            ("norm1", "norm1"),
            ("norm2", "norm2"),
            ("linear1", "mlp.fc1"),
            ("linear2", "mlp.fc2"),
        ):
            their_layer.get_submodule(their_name).load_state_dict(mine.get_submodule(name).state_dict())
    return theirs


def sinusoids(length: int, width: int) -> Tensor:
    """Section 3.5, in double precision."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for place in range(length):
        for i in range(0, width, 2):
            angle = place / 10000 ** (i / width)
            table[place, i], table[place, i + 1] = math.sin(angle), math.cos(angle)
    return table


def compare(norm: str, dtype: torch.dtype, within: float, **sizes: int) -> None:
    """Memory, logits and gradients of encoder and decoder, with padded sources and a causal mask over the targets."""
    torch.manual_seed(0)
    common = {**sizes, "dropout": 0.0, "position": "sinusoidal", "norm": norm}
    common |= {"activation": "relu", "scale_embedding": True, "max_length": 12}
    width = sizes["width"]
    encoder = TransformerTextEncoder(vocab_size=VOCAB, **common)  # type: ignore[arg-type]
    decoder = TransformerDecoder(vocab_size=VOCAB, memory_width=width, **common)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            spread = 1 / math.sqrt(width) if parameter.ndim == 2 else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
    encoder, decoder = encoder.to(dtype), decoder.to(dtype)
    if dtype == torch.float64:  # the frequencies are kept in single
        for model in (encoder, decoder):
            model.position.frequency = 10000 ** (-torch.arange(0, width, 2, dtype=dtype) / width)
    theirs = torch_transformer(encoder, decoder, norm)

    source, target = sentences(), torch.randint(4, VOCAB, (len(LENGTHS), 2, 6))
    target[:, :, 0] = BOS
    memory = encoder(source)
    found = decoder(memory, target)

    table, embed = sinusoids(12, width).to(dtype), math.sqrt(width)
    padding, later = source == PAD, torch.ones(6, 6, dtype=torch.bool).triu(1)
    x = encoder.embed(source) * embed + table[: source.shape[1]]
    seen = theirs.encoder(x, src_key_padding_mask=padding)
    shown = ~padding
    assert_close(memory.tokens[shown], seen[shown], atol=within, rtol=within)
    for g in range(2):
        y = decoder.embed(target[:, g]) * embed + table[:6]
        masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": later}
        out = theirs(x, y, **masks)
        expected = out @ decoder.embed.weight.T + decoder.out.bias
        assert_close(found.logits[:, g], expected, atol=within, rtol=within)
        weights = torch.randn_like(expected) / expected.numel() ** 0.5
        parts = [encoder.embed.weight, decoder.embed.weight]
        for mine, other in zip(
            torch.autograd.grad((found.logits[:, g] * weights).sum(), parts, retain_graph=True),
            torch.autograd.grad((expected * weights).sum(), parts, retain_graph=True),
            strict=True,
        ):
            assert_close(mine, other, atol=within, rtol=within)
    loop = StepDecoder.forward(decoder, replace(memory, pooled=None), target)
    assert_close(loop.logits, found.logits, atol=within, rtol=within)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.float64, 1e-8)], ids=["single", "double"])
def test_the_transformer_of_2017_equals_torch(dtype: torch.dtype, within: float) -> None:
    """The base model: six layers, width 512, eight heads, hidden width 2048, post-norm, ReLU, sinusoidal positions."""
    compare("post", dtype, within, width=512, depth=6, heads=8)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_small_transformers_equal_torch(norm: str) -> None:
    compare(norm, torch.float64, 1e-8, width=16, depth=3, heads=4)
