"""Methods on whole models: against decoding step by step, finite differences, loops, and another library's Grad-CAM."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from test_relevance import by_hand
from torch import Tensor, nn

from vitcap.decoding import Beam, Greedy
from vitcap.explain.methods import CAPTION_METHODS, CLASS_METHODS, available, caption_maps, class_maps, unavailable
from vitcap.models.attention_maps import recorded_attention
from vitcap.models.backbones import TimmEncoder
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.cnn import ConvEncoder
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder, TransformerTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.models.vit import VisionTransformer
from vitcap.nn import alignment, attention
from vitcap.types import BOS, EOS, Batch
from vitcap.viz.rollout import rollout

VOCAB, SIZE = 11, 32
SMALL: dict[str, Any] = {"width": 24, "depth": 2, "heads": 2}
STATS = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
TOKENS = (5, 9, 4, EOS)

ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: VisionTransformer(image_size=SIZE, patch_size=16, registers=1, **SMALL),
    "rotary vit, no class token": lambda: VisionTransformer(
        image_size=SIZE, patch_size=16, class_token=False, pool="mean", position="rotary", **SMALL
    ),
    "timm vit": lambda: TimmEncoder("test_vit", image_size=SIZE, trainable=1),
    "timm register, mean": lambda: TimmEncoder("test_vit2", image_size=SIZE),
    "timm register, learned": lambda: TimmEncoder("test_vit3", image_size=SIZE),
    "timm distilled": lambda: TimmEncoder("deit_tiny_distilled_patch16_224", image_size=SIZE, layer=1),
    "timm eva": lambda: TimmEncoder("eva02_tiny_patch14_224", image_size=28, layer=1),
    "timm cnn": lambda: TimmEncoder("test_efficientnet", image_size=2 * SIZE, layer="final"),
    "small cnn": lambda: ConvEncoder(image_size=16, channels=(8, 16), width=24),
    "hybrid": lambda: HybridEncoder("test_resnet", image_size=2 * SIZE, **SMALL),
    "recurrent text": lambda: RnnTextEncoder(vocab_size=VOCAB, width=24, embed_width=8),
    "transformer text": lambda: TransformerTextEncoder(vocab_size=VOCAB, max_length=9, **SMALL),
}


def recurrent(**options: Any) -> Callable[[int], nn.Module]:
    return lambda m: RnnDecoder(vocab_size=VOCAB, memory_width=m, width=m, embed_width=8, attention_width=8, **options)


DECODERS: dict[str, Callable[[int], nn.Module]] = {
    "transformer": lambda m: TransformerDecoder(vocab_size=VOCAB, memory_width=m, kv_heads=1, max_length=9, **SMALL),
    "post-norm, rotary": lambda m: TransformerDecoder(
        vocab_size=VOCAB, memory_width=m, norm="post", position="rotary", **SMALL
    ),
    "additive": recurrent(gate="scalar"),
    "dot": recurrent(attention="dot"),
    "scaled dot": recurrent(attention="scaled_dot"),
    "general": recurrent(attention="general"),
    "hard": recurrent(hard=True),
}


def randomise(model: nn.Module) -> None:
    """Weights large enough that attention is far from uniform."""
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = 1.5 / parameter.shape[1:].numel() ** 0.5
                parameter.copy_(torch.randn(parameter.shape, generator=random) * scale)


def captioner(encoder: str, decoder: str = "transformer") -> tuple[CaptionModel, dict[str, Tensor]]:
    """A model and its input, as keywords of `caption_maps` (images may be None)."""
    part = ENCODERS[encoder]()
    model = CaptionModel(part, DECODERS[decoder](part.width), **STATS)  # type: ignore[arg-type]
    randomise(model)
    if "text" in encoder:
        return model, {"source": torch.tensor([[4, 7, 5, 8, 10]])}
    return model, {"images": picture(part)}


def classifier(encoder: str) -> tuple[ImageClassifier, Tensor]:
    part = ENCODERS[encoder]()
    model = ImageClassifier(part, classes=4, **STATS)
    randomise(model)
    return model, picture(part)


def picture(encoder: Any) -> Tensor:
    size = encoder.preprocess["size"]
    return torch.randint(0, 256, (1, 3, *size), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)


def maps_of(model: CaptionModel, given: dict[str, Tensor], *methods: str, **options: Any) -> dict[str, np.ndarray]:
    return caption_maps(model, given.get("images"), TOKENS, methods=methods, source=given.get("source"), **options)


def memory_of(model: Any, given: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        return model.encode(Batch(ids=(0,), **given))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ["vit", "recurrent text"])
def test_attention_of_one_pass_is_that_of_decoding_step_by_step(encoder, decoder):
    model, given = captioner(encoder, decoder)
    model.eval()
    memory = memory_of(model, given)
    for search in (Greedy(max_length=6), Beam(max_length=6, beams=3)):
        found = search(model.decoder, memory, need_attention=True)
        tokens = [t for t in found.tokens[0, 0].tolist() if t]
        expected = found.attention[0, 0, : len(tokens)].numpy()
        maps = caption_maps(model, given.get("images"), tokens, methods=["attention"], source=given.get("source"))
        np.testing.assert_allclose(maps["attention"], expected, atol=1e-5)
        np.testing.assert_allclose(maps["attention"].sum(-1), 1, atol=1e-5)
        assert maps["attention"].std() > 1e-3


@pytest.mark.parametrize("decoder", ["transformer", "additive"])
@pytest.mark.parametrize("encoder", ["vit", "timm vit", "timm eva", "hybrid", "transformer text"])
def test_rollout_goes_through_decoder_and_encoder(encoder, decoder):
    model, given = captioner(encoder, decoder)
    model.eval()
    with torch.no_grad():
        layers = model.encode(Batch(ids=(0,), **given), need_attention=True).attentions
    maps = maps_of(model, given, "attention", "rollout", rollout={"fusion": "max", "discard": 0.3})
    inner = rollout([a[0].numpy() for a in layers], fusion="max", discard=0.3)
    expected = np.einsum("tlhn,nm->tlhm", maps["attention"], inner)
    np.testing.assert_allclose(maps["rollout"], expected, atol=1e-5)
    np.testing.assert_allclose(maps["rollout"].sum(-1), 1, atol=1e-5)
    assert list(maps) == ["attention", "rollout"]


@contextmanager
def nudged(monkeypatch: Any, call: int, entry: tuple[int, ...], amount: float) -> Iterator[None]:
    """Within the context entry `entry` of the weights of attention call number `call` is changed on its way."""
    calls = iter(range(10**6))

    def nudge(weights: Tensor) -> Tensor:
        if next(calls) != call:
            return weights
        changed = weights.clone()
        changed[entry] += amount
        return changed

    def explicit(q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, *_: Any) -> tuple[Tensor, Tensor]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
        weights = nudge((scores if mask is None else scores.masked_fill(~mask, -1e30)).softmax(-1))
        return weights @ v, weights

    def weigh(scores: Tensor, values: Tensor, _: Any) -> tuple[Tensor, Tensor]:
        weights = nudge(scores.softmax(-1))
        return weights @ values, weights

    with monkeypatch.context() as patch:
        patch.setattr(attention, "_explicit", explicit)
        patch.setattr(alignment, "_weigh", weigh)
        yield


def differences(monkeypatch: Any, model: Any, score: Callable[[], Tensor]) -> list[tuple[str, Tensor, Tensor]]:
    """Of every attention call: its kind, weights, and gradient (S, ...) of the scores (S,) by finite differences."""
    with torch.no_grad(), recorded_attention(model) as record:
        score()
        kinds = [("encoder", a) for a in record.encoder]
        if record.queries:  # a block of the decoder attends to itself first, then across
            for queries, cross in zip(record.queries, record.cross, strict=True):
                kinds += [("queries", queries), ("cross", cross)]
        else:
            kinds += [("cross", a) for a in record.cross]
    found, step = [], 1e-5
    for call, (name, weights) in enumerate(kinds):
        gradient = torch.zeros(len(score()), *weights.shape, dtype=torch.float64)
        for entry in np.ndindex(*weights.shape):
            ends = []
            for amount in (step, -step):
                with torch.no_grad(), nudged(monkeypatch, call, entry, amount), recorded_attention(model):
                    ends.append(score())
            gradient[(slice(None), *entry)] = (ends[0] - ends[1]) / (2 * step)
        found.append((name, weights, gradient))
    return found


def weighed(found: list[tuple[str, Tensor, Tensor]], kind: str, word: int) -> list[np.ndarray]:
    """(A * dA)+ of each layer of a kind, as the mean over its heads."""
    products = [(a * g[word]).clamp(min=0) for name, a, g in found if name == kind]
    return [p.reshape(-1, *p.shape[-2:]).mean(0).numpy() for p in products]


def chain(layers: list[np.ndarray], count: int) -> np.ndarray:
    """(1 + A_L) ... (1 + A_1)"""
    result = np.eye(count)
    for layer in layers:
        result = (np.eye(count) + layer) @ result
    return result


@pytest.mark.parametrize("decoder", ["transformer", "additive"])
@pytest.mark.parametrize("encoder", ["vit", "hybrid", "transformer text", "small cnn"])
def test_relevance_of_words_equals_finite_differences_and_loops(encoder, decoder, monkeypatch):
    model, given = captioner(encoder, decoder)
    model.double().eval()
    tokens = TOKENS[:2] if encoder == "small cnn" else TOKENS[:3]
    ids = torch.tensor([BOS, *tokens])
    given = {"source": given["source"][:, 1:]} if "source" in given else given
    batch = Batch(ids=(0,), **given)
    if "images" in given:
        with torch.no_grad():  # there is nothing to nudge in a trunk
            batch = Batch(ids=(0,), features=model.encoder.trunk(model.normalise(given["images"])))

    def score() -> Tensor:
        memory = model.encode(batch)
        log_probs = (
            model.decoder(memory, ids[None, None, :-1]).logits[0, 0].log_softmax(-1)[range(len(tokens)), ids[1:]]
        )
        return log_probs - torch.log1p(-log_probs.exp())

    found = differences(monkeypatch, model, score)
    maps = caption_maps(model, given.get("images"), tokens, methods=["relevance"], source=given.get("source"))
    count = maps["relevance"].shape[-1]
    for word in range(len(tokens)):
        inner = chain(weighed(found, "encoder", word), count)
        cross, queries = weighed(found, "cross", word), weighed(found, "queries", word)
        expected = by_hand(inner, cross, queries)[word] if queries else by_hand(inner, [cross[word]], None)[0]
        np.testing.assert_allclose(maps["relevance"][word, 0, 0], expected, rtol=1e-4, atol=1e-8)
    assert maps["relevance"].max() > 1e-3


@pytest.mark.parametrize("encoder", ["vit", "rotary vit, no class token"])
def test_relevance_of_classes_equals_finite_differences(encoder, monkeypatch):
    model, images = classifier(encoder)
    model.double().eval()
    found = differences(monkeypatch, model, lambda: model(Batch(ids=(0,), images=images))[0])
    maps = class_maps(model, images, [2, 0], methods=["relevance"])["relevance"]
    for row, label in enumerate((2, 0)):
        relevance = chain(weighed(found, "encoder", label), maps.shape[-1]) - np.eye(maps.shape[-1])
        expected = relevance[0] if encoder == "vit" else relevance.mean(0)
        assert expected.max() > 1e-4
        np.testing.assert_allclose(maps[row, 0, 0], expected, rtol=1e-4, atol=1e-8)


VITS = [name for name in ENCODERS if name.startswith(("vit", "rotary", "timm")) and name != "timm cnn"]


@pytest.mark.parametrize("encoder", VITS)
def test_class_attention_and_rollout_read_what_is_classified(encoder):
    model, images = classifier(encoder)
    model.eval()
    inner, ends = model.encoder, []
    last = (inner.model if isinstance(inner, TimmEncoder) else inner).blocks[-1]
    hook = last.register_forward_hook(lambda _, __, out: ends.append(out if isinstance(out, Tensor) else out[0]))
    memory = model.encode(Batch(ids=(0,), images=images.float().requires_grad_()), need_attention=True)
    hook.remove()
    # Which tokens is the pooled vector made of? Those that have a gradient.
    (gradient,) = torch.autograd.grad(memory.pooled.square().sum(), ends[0])
    rows = gradient[0].abs().sum(-1).nonzero().squeeze(-1).numpy()
    layers = [a[0].detach().numpy() for a in memory.attentions]

    maps = class_maps(model, images.float(), [3, 1], methods=["attention", "rollout"])
    assert maps["attention"].shape == (2, len(layers), *layers[0].shape[:2])
    for label in range(2):
        for layer, weights in enumerate(layers):
            np.testing.assert_allclose(maps["attention"][label, layer], weights[:, rows].mean(1), atol=1e-6)
        np.testing.assert_allclose(maps["rollout"][label, 0, 0], rollout(layers)[rows].mean(0), atol=1e-6)


@pytest.mark.parametrize("encoder", ["vit", "timm vit", "timm eva", "timm cnn", "small cnn", "hybrid"])
def test_frozen_models_have_the_same_maps_in_inference_mode_too(encoder):
    for decoder in ("transformer", "additive"):
        model, given = captioner(encoder, decoder)
        methods = [m for m in CAPTION_METHODS if m in available(model)]
        model.requires_grad_(True)
        expected = maps_of(model, given, *methods)
        with torch.inference_mode():
            normalised = {"images": model.normalise(given["images"])}
            trained = maps_of(model, normalised, *methods)
            model.requires_grad_(False)
            found = maps_of(model, normalised, *methods)
        for method in methods:
            assert expected[method].max() > 0
            np.testing.assert_allclose(trained[method], expected[method], rtol=1e-4, atol=1e-7)
            np.testing.assert_allclose(found[method], expected[method], rtol=1e-4, atol=1e-7)
            alone = maps_of(model, given, method)
            np.testing.assert_allclose(alone[method], expected[method], rtol=1e-4, atol=1e-7)


def state(model: nn.Module) -> list[Any]:
    modules = list(model.modules())
    parts = [(m.training, getattr(m, "fused_attn", None), m._forward_hooks, m._forward_pre_hooks) for m in modules]
    values = [(p.requires_grad, p.grad, p.double().sum().item()) for p in model.parameters()]
    return [[(a, b, len(c), len(d)) for a, b, c, d in parts], values]


def test_what_is_recorded_is_what_the_output_is_made_of():
    for encoder, blocks, places in (("timm vit", 6, 5), ("hybrid", 2, 4), ("small cnn", 0, 16)):
        for decoder in ("transformer", "additive", "hard"):
            model, given = captioner(encoder, decoder)
            model.eval().requires_grad_(False)
            ids = torch.tensor([[[BOS, *TOKENS[:-1]]]])
            with torch.no_grad():
                expected = model.decoder(model.encode(Batch(ids=(0,), **given)), ids, need_attention=True)
            with recorded_attention(model, gradients=True) as record:
                output = model.decoder(model.encode(Batch(ids=(0,), **given)), ids)
                torch.testing.assert_close(output.logits, expected.logits, atol=1e-5, rtol=1e-4)
                assert [a.shape[-2:] for a in record.encoder] == [(places, places)] * blocks
                assert [tuple(a.shape) for a in record.queries] == [(1, 2, 4, 4)] * (
                    2 if decoder == "transformer" else 0
                )
                if decoder == "transformer":
                    shown = torch.stack([a[0] for a in record.cross]).permute(
                        2, 0, 1, 3
                    )  # (L, H, T, N) -> (T, L, H, N)
                    torch.testing.assert_close(shown, expected.attention[0, 0], atol=1e-5, rtol=1e-4)
                elif decoder == "additive":
                    torch.testing.assert_close(torch.cat(record.cross)[:, 0], expected.attention[0, 0, :, 0, 0])
                if decoder != "hard":
                    parts = [*record.encoder, *record.queries, *record.cross]
                    found = torch.autograd.grad(output.logits[0, 0, -1, 4], parts)
                    assert all(g.abs().max() > 0 for g in found)
            assert record.encoder == record.queries == record.cross == []


@pytest.mark.parametrize("encoder", ["vit", "timm vit", "timm cnn", "hybrid"])
def test_the_model_is_left_as_it_was(encoder, monkeypatch):
    model, given = captioner(encoder)
    methods = [m for m in CAPTION_METHODS if m in available(model)]
    model.train()
    model.decoder.blocks[1].eval()
    before = state(model)
    seen: list[Any] = []
    attend = attention._explicit

    def watched(*args: Any) -> tuple[Tensor, Tensor | None]:
        out, weights = attend(*args)
        seen.extend(weakref.ref(x) for x in (out, weights) if x is not None)
        return out, weights

    monkeypatch.setattr(attention, "_explicit", watched)
    maps_of(model, given, *methods)
    assert state(model) == before
    gc.collect()
    assert seen
    assert not any(ref() is not None for ref in seen)  # no graph is left
    calls = iter((False, False, False, True))  # in the midst of the decoder, or of the encoder
    monkeypatch.setattr(attention, "_explicit", lambda *args: 1 / 0 if next(calls) else attend(*args))
    with pytest.raises(ZeroDivisionError):
        maps_of(model, given, *methods)
    assert state(model) == before
    assert torch.is_grad_enabled()


def test_each_word_has_its_own_backward_pass_and_no_other():
    """The maps of a word do not depend on which words follow, and those of a class not on which others are asked."""
    for encoder in ("vit", "small cnn"):
        model, given = captioner(encoder)
        methods = ["relevance", "grad-cam"]
        whole = maps_of(model, given, *methods)
        start = caption_maps(model, given["images"], TOKENS[:2], methods=methods)
        for method in methods:
            np.testing.assert_allclose(whole[method][:2], start[method], rtol=1e-4, atol=1e-7)
            assert not np.allclose(whole[method][0], whole[method][1], rtol=1e-2)
    model, images = classifier("vit")
    together, alone = (class_maps(model, images, c, methods=["relevance", "grad-cam"]) for c in ([0, 2], [2]))
    for method, values in alone.items():
        np.testing.assert_allclose(together[method][1], values[0], rtol=1e-4, atol=1e-7)
        assert not np.allclose(together[method][0], values[0], rtol=1e-2)


def test_what_a_model_lacks_has_a_reason():
    cnn = classifier("timm cnn")[0]
    assert list(available(cnn)) == ["grad-cam"]
    assert unavailable(cnn)["rollout"] == (
        "test_efficientnet has no global self-attention, so there is nothing to roll out"
    )
    swin = ImageClassifier(TimmEncoder("swin_tiny_patch4_window7_224", image_size=64), classes=4, **STATS)
    assert list(available(swin)) == ["grad-cam"]
    assert class_maps(swin, torch.rand(1, 3, 64, 64), [0], methods=["grad-cam"])["grad-cam"].shape == (1, 1, 1, 4)
    channels = ImageClassifier(TimmEncoder("xcit_nano_12_p16_224", image_size=32), classes=4, **STATS)
    assert list(available(channels)) == ["grad-cam"]
    with pytest.raises(ValueError, match="method 'attention': swin_tiny_patch4_window7_224 has no global"):
        class_maps(swin, torch.rand(1, 3, 64, 64), [0], methods=["attention"])
    for encoder in VITS:
        assert list(available(classifier(encoder)[0])) == list(CLASS_METHODS), encoder

    assert list(available(captioner("hybrid")[0])) == list(CAPTION_METHODS)
    assert list(available(captioner("small cnn")[0])) == ["attention", "relevance", "grad-cam"]
    hard, given = captioner("small cnn", "hard")
    assert list(available(hard)) == ["attention", "grad-cam"]
    assert "no gradient passes through the choice" in unavailable(hard)["relevance"]
    assert list(available(captioner("transformer text")[0])) == ["attention", "rollout", "relevance"]
    text, sentence = captioner("recurrent text", "additive")
    assert list(available(text)) == ["attention", "relevance"]
    assert "reads sentences" in unavailable(text)["grad-cam"]
    with pytest.raises(ValueError, match="RnnTextEncoder has no global self-attention"):
        maps_of(text, sentence, "rollout")
    part = ENCODERS["small cnn"]()
    blind = CaptionModel(part, recurrent(attention="none")(24), **STATS)
    assert list(available(blind)) == ["grad-cam"]
    assert maps_of(blind, given, "grad-cam")["grad-cam"].max() > 0
    with pytest.raises(ValueError, match="method 'attention': this RnnDecoder reads one fixed vector"):
        maps_of(blind, given, "attention")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["attention", "lrp"]}, "'lrp' given; choose from attention, rollout, relevance, grad-cam"),
        ({"methods": []}, "none given"),
        ({"tokens": []}, r"tokens \[\]: one or more ids from 0 to 10"),
        ({"tokens": [4, 11]}, r"tokens \[4, 11\]"),
        ({"images": torch.zeros(2, 3, SIZE, SIZE)}, "2 pictures or sentences: exactly one"),
        ({"images": None}, "0 pictures"),
        ({"rollout": {"discard_ratio": 0.9}}, "rollout has no option discard_ratio"),
        ({"rollout": {"fusion": "sum"}}, "fusion='sum'"),
    ],
)
def test_input_that_does_not_fit(change, message):
    model, given = captioner("vit")
    with pytest.raises(ValueError, match=message):
        caption_maps(model, **({**given, "tokens": TOKENS, "methods": ["rollout"]} | change))
    with pytest.raises(ValueError, match=r"classes \[4\]: one or more indices from 0 to 3"):
        class_maps(*classifier("vit"), [4], methods=["attention"])
