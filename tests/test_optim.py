"""Optimiser groups, the learning-rate schedule and the caption loss, against values worked out by hand and loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitcap.models.captioner import CaptionModel
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.models.vit import VisionTransformer
from vitcap.tasks.captioning import caption_loss
from vitcap.tasks.optim import make_optimizer, parameter_groups, warmup_cosine
from vitcap.types import PAD


def model(trainable: str | int = "all", decoder: type = TransformerDecoder) -> CaptionModel:
    encoder = VisionTransformer(
        image_size=16, patch_size=8, width=16, depth=2, heads=2, registers=2, layer_scale=0.1, trainable=trainable
    )
    made = decoder(vocab_size=9, memory_width=16, width=16, **({"depth": 1} if decoder is TransformerDecoder else {}))
    return CaptionModel(encoder, made, mean=(0.5,) * 3, std=(0.5,) * 3)


def groups_of(model: CaptionModel) -> dict[str, dict[str, object]]:
    groups = parameter_groups(model, encoder=model.encoder, lr=1e-3, encoder_lr=1e-5, weight_decay=0.05)
    names = {id(p): name for name, p in model.named_parameters()}
    return {str(g["name"]): {**g, "params": {names[id(p)] for p in g["params"]}} for g in groups}  # type: ignore


def test_only_matrices_decay_and_the_encoder_has_its_own_rate() -> None:
    made = model()
    groups = groups_of(made)
    assert set(groups) == {"encoder", "encoder without decay", "decoder", "decoder without decay"}
    for name, group in groups.items():
        assert group["lr"] == (1e-5 if name.startswith("encoder") else 1e-3)
        assert group["weight_decay"] == (0.0 if name.endswith("without decay") else 0.05)
    every = [name for group in groups.values() for name in group["params"]]  # type: ignore[attr-defined]
    assert sorted(every) == sorted(name for name, _ in made.named_parameters())  # each once, the tied one too
    assert groups["encoder without decay"]["params"] >= {
        "encoder.cls_token",
        "encoder.reg_token",
        "encoder.pos_embed",
        "encoder.norm.weight",
        "encoder.blocks.0.ls1.gamma",
        "encoder.blocks.1.mlp.fc2.bias",
    }
    assert "decoder.position.table" in groups["decoder without decay"]["params"]
    assert groups["encoder"]["params"] >= {"encoder.patch_embed.proj.weight", "encoder.blocks.0.attn.qkv.weight"}
    assert groups["decoder"]["params"] >= {"decoder.embed.weight", "decoder.blocks.0.cross_attn.kv.weight"}
    shapes = {name: p.ndim for name, p in made.named_parameters()}
    assert all(shapes[name] >= 2 for part in ("encoder", "decoder") for name in groups[part]["params"])  # type: ignore
    tables = {"encoder.cls_token", "encoder.reg_token", "encoder.pos_embed", "decoder.position.table"}
    for part in ("encoder without decay", "decoder without decay"):
        assert all(shapes[name] == 1 or name in tables for name in groups[part]["params"])  # type: ignore[attr-defined]


def test_frozen_parameters_are_left_out() -> None:
    assert set(groups_of(model("none"))) == {"decoder", "decoder without decay"}
    names = groups_of(model(1))
    trained = names["encoder"]["params"] | names["encoder without decay"]["params"]  # type: ignore[operator]
    assert {name.split(".")[1] for name in trained} == {"blocks", "norm"}
    assert all(".blocks.1." in name or ".norm." in name for name in trained)
    recurrent = groups_of(model("none", RnnDecoder))
    assert all(name.endswith("bias") or ".bias_" in name for name in recurrent["decoder without decay"]["params"])  # type: ignore


def test_warmup_and_cosine_by_hand() -> None:
    """Base 1e-3, warm-up 5 of 90: 5e-4 half-way up and half-way down, 1e-3 in between, 0 at the end."""

    def rate(step: float) -> float:
        return 1e-3 * warmup_cosine(step, warmup=5, total=90)  # type: ignore[arg-type]

    # While it rises the factor belongs to the end of the update: t = step + 1.
    for t, expected in ((0, 0.0), (2.5, 5e-4), (5, 1e-3)):
        assert rate(t - 1) == pytest.approx(expected, abs=1e-12)
    for t, expected in ((5, 1e-3), (47.5, 5e-4), (90, 0.0), (200, 0.0)):
        assert rate(t) == pytest.approx(expected, abs=1e-12)
    assert rate(5 + 85 / 4) == pytest.approx(1e-3 * (2 + math.sqrt(2)) / 4)  # (1 + cos 45 degrees) / 2
    rates = [rate(step) for step in range(90)]
    assert rates[:5] == sorted(rates[:5])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert min(rates) > 0  # no update is lost, neither the first nor the last
    assert warmup_cosine(90, warmup=5, total=90) == pytest.approx(0.0)
    assert warmup_cosine(0, warmup=1, total=1) == 1.0


def test_optimizer_follows_the_schedule_in_every_group() -> None:
    made = model()
    groups = parameter_groups(made, encoder=made.encoder, lr=1e-3, encoder_lr=1e-5, weight_decay=0.05)
    optimizer, schedule = make_optimizer(groups, betas=(0.9, 0.98), warmup=2, total=6)
    assert isinstance(optimizer, torch.optim.AdamW)
    for step in range(7):
        factor = warmup_cosine(step, warmup=2, total=6)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(factor * (1e-5 if group["name"].startswith("encoder") else 1e-3))
            assert group["betas"] == (0.9, 0.98)
        optimizer.step()
        schedule.step()


def test_adamw_decays_the_right_parameters() -> None:
    """With zero gradients AdamW multiplies by 1 - lr * decay, and nothing else moves."""
    made = model()
    groups = parameter_groups(made, encoder=made.encoder, lr=1e-2, encoder_lr=1e-1, weight_decay=0.5)
    optimizer, _ = make_optimizer(groups, betas=(0.9, 0.98), warmup=1, total=10)
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    for p in made.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    kept = groups_of(made)
    for name, p in made.named_parameters():
        still = name in kept["encoder without decay"]["params"] or name in kept["decoder without decay"]["params"]  # type: ignore
        factor = 1.0 if still else 1 - 0.5 * (1e-1 if name.startswith("encoder") else 1e-2)
        assert_close(p.detach(), factor * before[name])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
def test_loss_is_a_loop_over_words(smoothing: float) -> None:
    """Mean over the words of all captions, PAD left out; with smoothing e the target is (1 - e) one-hot + e / V."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(1, 7, (2, 3, 5), generator=generator)
    targets[0, 1, 2:] = PAD
    targets[1, 2] = PAD
    total, count = 0.0, 0
    for b in range(2):
        for g in range(3):
            for t in range(5):
                if (target := int(targets[b, g, t])) != PAD:
                    row = logits[b, g, t].tolist()
                    log_sum = math.log(sum(math.exp(x) for x in row))
                    log_probs = [x - log_sum for x in row]
                    total -= (1 - smoothing) * log_probs[target] + smoothing * sum(log_probs) / 7
                    count += 1
    loss, tokens = caption_loss(logits, targets, label_smoothing=smoothing)
    assert tokens == count == 22
    assert float(loss) == pytest.approx(total / count, abs=1e-5)


def test_loss_by_hand() -> None:
    """Three classes, logits (2, 0, 0), the first is right: 0.239545 plain, 0.372878 with smoothing 0.1."""
    logits = torch.tensor([0.0, 2.0, 0.0]).view(1, 1, 1, 3)  # class 0 is PAD here, so the right one stands second
    target = torch.tensor([[[1]]])
    assert float(caption_loss(logits, target)[0]) == pytest.approx(0.239545, abs=1e-6)
    assert float(caption_loss(logits, target, label_smoothing=0.1)[0]) == pytest.approx(0.372878, abs=1e-6)


def test_loss_in_half_precision_is_taken_in_single() -> None:
    logits = torch.tensor([0.0, 9.0, 0.0]).bfloat16().view(1, 1, 1, 3)
    loss, _ = caption_loss(logits, torch.tensor([[[1]]]))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log(1 + 2 * math.exp(-9)), rel=1e-3)


def test_no_gradient_reaches_padding() -> None:
    """Logits at PAD targets get none; the others get (softmax - one-hot) / count."""
    logits = nn.Parameter(torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0)))
    loss, count = caption_loss(logits, torch.tensor([[[2, 3, PAD]]]))
    loss.backward()
    assert logits.grad is not None
    assert count == 2
    assert logits.grad[0, 0, 2].eq(0).all()
    one_hot = torch.eye(4)[torch.tensor([2, 3])]
    assert_close(logits.grad[0, 0, :2], (logits.detach()[0, 0, :2].softmax(-1) - one_hot) / 2)
