"""Every encoder with every decoder: learns, decodes, and shows what it attended to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcap.decoding import Beam, Greedy
from vitcap.models.backbones import TimmEncoder
from vitcap.models.captioner import CaptionModel
from vitcap.models.cnn import ConvEncoder
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder, TransformerTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.models.vit import VisionTransformer
from vitcap.types import BOS, EOS, PAD, Batch, Memory

VOCAB, SOURCES, SIZE = 12, 9, 32
SMALL = {"width": 24, "depth": 1, "heads": 2}

# name: encoder, memory tokens of a picture or sentence, grid
ENCODERS: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, int] | None]] = {
    "vit": (lambda: VisionTransformer(image_size=SIZE, patch_size=16, **SMALL), 5, (2, 2)),
    "timm vit": (lambda: TimmEncoder("test_vit", image_size=SIZE, trainable=1), 5, (2, 2)),
    "timm cnn": (lambda: TimmEncoder("test_resnet", image_size=2 * SIZE), 4, (2, 2)),
    "small cnn": (lambda: ConvEncoder(image_size=SIZE, channels=(8, 8, 16), width=24), 16, (4, 4)),
    "hybrid": (lambda: HybridEncoder("test_resnet", image_size=2 * SIZE, **SMALL), 4, (2, 2)),
    "recurrent text": (lambda: RnnTextEncoder(vocab_size=SOURCES, width=24, embed_width=8), 6, None),
    "transformer text": (lambda: TransformerTextEncoder(vocab_size=SOURCES, **SMALL), 6, None),
}


def recurrent(**options: object) -> Callable[[int], nn.Module]:
    def make(memory_width: int) -> nn.Module:
        width = memory_width if options.get("attention") in ("dot", "scaled_dot") else 32
        sizes = {"vocab_size": VOCAB, "memory_width": memory_width, "width": width, "embed_width": 16}
        return RnnDecoder(**sizes, attention_width=16, dropout=0.0, **options)  # type: ignore[arg-type]

    return make


def transformer(memory_width: int) -> nn.Module:
    return TransformerDecoder(vocab_size=VOCAB, memory_width=memory_width, dropout=0.0, max_length=8, **SMALL)  # type: ignore[arg-type]


DECODERS: dict[str, Callable[[int], nn.Module]] = {
    "additive": recurrent(gate="scalar"),
    "dot": recurrent(attention="dot"),
    "scaled dot": recurrent(attention="scaled_dot"),
    "general": recurrent(attention="general", initial="pooled"),
    "hard": recurrent(hard=True),
    "no attention": recurrent(attention="none", gate="none", initial="pooled"),
    "transformer": transformer,
}


def batch(name: str) -> Batch:
    """Three pictures, or three sentences of which the last is short; two captions each."""
    random = torch.Generator().manual_seed(0)
    captions = torch.randint(4, VOCAB, (3, 2, 6), generator=random)
    captions[:, :, 0], captions[:, :, 5] = BOS, EOS
    captions[0, 1, 4:] = torch.tensor([EOS, PAD])
    if "text" in name:
        source = torch.randint(4, SOURCES, (3, 6), generator=random)
        source[2, 4:] = PAD
        return Batch(ids=(0, 1, 2), captions=captions, source=source)
    side = 2 * SIZE if name in ("hybrid", "timm cnn") else SIZE
    return Batch(ids=(0, 1, 2), captions=captions, images=torch.randn(3, 3, side, side, generator=random))


def train(model: CaptionModel, data: Batch, steps: int) -> list[float]:
    """Cross-entropy of every step, with the score function's term for hard attention (Xu et al. 2015, section 4.1)."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    assert data.captions is not None
    targets, losses = data.captions[:, :, 1:], []
    for _ in range(steps):
        output = model(data)
        nll = F.cross_entropy(output.logits.permute(0, 3, 1, 2), targets, ignore_index=PAD, reduction="none")
        loss = nll.sum() / (targets != PAD).sum()
        losses.append(loss.item())
        if output.choice_log_prob is not None:
            loss = loss + 0.1 * ((nll.detach() - nll.detach().mean()) * output.choice_log_prob).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def check_attention(attention: Tensor, tokens: Tensor, memory: Memory) -> None:
    """attention (B, K, T, L, H, N): a distribution over the memory at every token, zero after the end."""
    written = (tokens != PAD)[..., None, None].expand(attention.shape[:-1])
    assert attention.shape[:3] == tokens.shape
    assert attention.shape[-1] == memory.tokens.shape[1]
    torch.testing.assert_close(attention.sum(-1), written.to(attention.dtype))
    assert attention.ge(0).all()
    if memory.mask is not None:
        hidden = ~memory.mask[:, None, None, None, None].expand(attention.shape)
        assert attention[hidden].eq(0).all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_pair_trains_and_decodes(encoder: str, decoder: str) -> None:
    torch.manual_seed(0)
    make, count, grid = ENCODERS[encoder]
    part = make()
    model, data = CaptionModel(part, DECODERS[decoder](part.width)), batch(encoder)  # type: ignore[arg-type]
    losses = train(model, data, steps=12)
    assert losses[-1] < 0.8 * losses[0]
    trained = [p for p in part.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.decoder.parameters())
    assert any(p.grad is not None and p.grad.ne(0).any() for p in trained) == bool(trained)

    model.eval()
    with torch.no_grad():
        memory = model.encode(data)
        assert memory.tokens.shape == (3, count, part.width)
        assert memory.grid == grid
        shown = model(data, need_attention=True).attention
    heads = (1, 2) if decoder == "transformer" else (1, 1)  # layers, heads
    for search, kept in ((Greedy(max_length=7), 1), (Beam(max_length=7, beams=3, n_best=2), 2)):
        generated = search(model.decoder, memory, need_attention=True)
        assert generated.tokens.shape[:2] == (3, kept)
        assert generated.scores.isfinite().all()
        plain = search(model.decoder, memory)
        assert torch.equal(plain.tokens, generated.tokens)
        if decoder == "no attention":
            assert generated.attention is shown is None
            continue
        assert shown is not None
        assert shown.shape == (3, 2, 5, *heads, count)
        assert generated.attention is not None
        assert generated.attention.shape[3:] == (*heads, count)
        check_attention(generated.attention, generated.tokens, memory)
