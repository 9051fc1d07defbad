"""The proof that the attention shown is the model's: it holds for all kinds of models, and fails for broken ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitcap.decoding
import vitcap.nn.attention
from vitcap import checkpoint
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.cli import main
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy
from vitcap.explain.methods import caption_maps
from vitcap.explain.verify import Verification, verify
from vitcap.models.backbones import TimmEncoder
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.cnn import ConvEncoder
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.text import RnnTextEncoder, TransformerTextEncoder
from vitcap.models.transformer_decoder import TransformerDecoder, TransformerState
from vitcap.models.vit import VisionTransformer
from vitcap.translator import Translator
from vitcap.types import BOS, Memory

TEXTS = ["a red dog runs", "a blue cat sleeps on the red dog", "the cat runs"]
TOKENIZER = Tokenizer.train(TEXTS, min_count=1)
SMALL: dict[str, Any] = {"width": 24, "depth": 2, "heads": 2}
PARTS: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: VisionTransformer(image_size=32, patch_size=8, registers=2, **SMALL),
    "rotary vit": lambda: VisionTransformer(image_size=(16, 32), patch_size=8, position="rotary", **SMALL),
    "timm vit": lambda: TimmEncoder("test_vit", image_size=32),
    "timm cnn": lambda: TimmEncoder("test_resnet", image_size=64),
    "small cnn": lambda: ConvEncoder(image_size=32, channels=(8, 8, 16), width=24),
    "hybrid": lambda: HybridEncoder("test_resnet", image_size=64, **SMALL),
}


def sharpen(model: nn.Module, factor: float, part: str = "") -> None:
    """Random weights attend to everything alike; larger ones choose, and errors show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if part in name and "norm" not in name and parameter.ndim > 1:
                parameter.mul_(factor)


def transformer(width: int, **options: Any) -> nn.Module:
    sizes = {"vocab_size": TOKENIZER.vocab_size, "memory_width": width, "max_length": 12, "dropout": 0.0}
    return TransformerDecoder(**sizes, **SMALL, **options)  # type: ignore[arg-type]


def recurrent(width: int, **options: Any) -> nn.Module:
    sizes = {"vocab_size": TOKENIZER.vocab_size, "memory_width": width, "width": 24, "embed_width": 16}
    return RnnDecoder(**sizes, attention_width=16, dropout=0.0, **options)


def captioner(encoder: str = "vit", make: Callable[..., nn.Module] = transformer, **options: Any) -> Captioner:
    torch.manual_seed(1)
    part: Any = PARTS[encoder]()
    model = CaptionModel(part, make(part.width, **options), mean=(0.5,) * 3, std=(0.25,) * 3)
    sharpen(part, 5.0, "attn")
    sharpen(model.decoder, 6.0 if make is transformer else 3.0)
    preprocess = Preprocess(size=part.preprocess["size"])
    return Captioner(model, TOKENIZER, preprocess, search=Beam(beams=2, max_length=9, min_length=4))


def classifier(encoder: str) -> Classifier:
    torch.manual_seed(1)
    part: Any = PARTS[encoder]()
    model = ImageClassifier(part, classes=4, mean=(0.5,) * 3, std=(0.25,) * 3)
    sharpen(part, 5.0, "attn")
    return Classifier(model, [(str(i), str(i)) for i in range(4)], Preprocess(size=part.preprocess["size"]))


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((140, 100))


def failing(result: Verification) -> set[str]:
    """What is beyond the tolerance, without the numbers."""
    return {problem.partition(" differ by ")[0] for problem in result.problems()}


# models that are what they say


@pytest.mark.parametrize(
    ("encoder", "make", "options", "layers", "prefix"),
    [
        ("vit", transformer, {"kv_heads": 1}, 2 + 4, 3),
        ("rotary vit", transformer, {"position": "alibi", "norm": "post"}, 2 + 4, 1),
        ("hybrid", recurrent, {}, 2 + 1, 0),
        ("timm vit", recurrent, {"attention": "general"}, 6 + 1, 1),
        ("timm vit", transformer, {"position": "rotary"}, 6 + 4, 1),
        ("timm cnn", transformer, {}, 4, 0),
        ("small cnn", recurrent, {"hard": True}, 1, 0),
    ],
)
def test_maps_of_a_captioner_are_its_own(photo, encoder, make, options, layers, prefix):
    door = captioner(encoder, make, **options)
    result = verify(door, photo)
    assert result.ok, result.problems()
    assert result.tolerance == 1e-5
    assert len(result.layers) == layers
    assert (result.prefix, result.places) == (prefix, prefix + door.grid[0] * door.grid[1])
    assert [(one.search, one.rank) for one in result.replays] == [("beam", 1), ("beam", 2), ("beam", 3), ("greedy", 1)]
    assert len({one.text for one in result.replays[:3]}) == 3
    assert all(one.map_error is not None for one in result.replays)
    for layer in result.layers:
        assert layer.row_error is not None
        assert (layer.path_error is None) == (make is recurrent and layer.name.startswith("decoder."))
        assert (layer.prefix is None) == layer.name.endswith("self_attn")
    assert any("one path only" in note for note in result.notes) == (make is recurrent)
    assert any("no global self-attention" in n or "no self-attention" in n for n in result.notes) == ("cnn" in encoder)


@pytest.mark.parametrize(("encoder", "layers"), [("vit", 2), ("timm vit", 6), ("hybrid", 2), ("timm cnn", 0)])
def test_maps_of_a_classifier_are_its_own(photo, encoder, layers):
    result = verify(classifier(encoder), photo)
    assert result.ok, result.problems()
    assert len(result.layers) == layers
    assert result.replays == ()
    assert 0 <= result.logit_error < 1e-5 * result.logit_scale + 1e-5
    assert [note for note in result.notes if "has no global self-attention" in note] == list(result.notes)
    assert bool(result.notes) == (layers == 0)


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
def test_maps_of_a_translator_are_its_own(encoder):
    torch.manual_seed(0)
    make: Any = RnnTextEncoder if encoder == "recurrent" else TransformerTextEncoder
    sizes = {"width": 24, "embed_width": 8} if encoder == "recurrent" else SMALL
    model = CaptionModel(make(vocab_size=TOKENIZER.vocab_size, **sizes), transformer(24))
    sharpen(model.decoder, 6.0)
    door = Translator(model, TOKENIZER, TOKENIZER, search=Greedy(max_length=8))
    result = verify(door, TEXTS[1])
    assert result.ok, result.problems()
    assert (result.source, result.places) == (TEXTS[1], 8)
    assert len(result.layers) == (4 if encoder == "recurrent" else 6)
    assert bool(result.notes) == (encoder == "recurrent")


def test_decoder_without_attention_is_said_so(photo):
    result = verify(captioner("vit", recurrent, attention="none", gate="none"), photo)
    assert result.ok
    assert [one.map_error for one in result.replays] == [None] * 4
    assert all(one.log_prob_error < 1e-5 for one in result.replays)
    assert any("no attention" in note for note in result.notes)


@pytest.mark.parametrize("encoder", ["vit", "timm vit"])
def test_bfloat16_is_within_its_tolerance(photo, encoder):
    door = captioner(encoder)
    sharpen(door.model.decoder, 1 / 4)  # scores of tens, in bfloat16, are good for whole numbers only
    door.model.bfloat16()
    result = verify(door, photo)
    assert (result.dtype, result.tolerance) == ("bfloat16", 2e-2)
    assert result.ok, result.problems()
    assert max(layer.path_error for layer in result.layers) > 1e-5, "float32 was compared"
    assert not replace(result, tolerance=1e-5).ok


def test_prefix_share_is_that_of_the_maps(photo):
    door = captioner("vit")
    result = verify(door, photo)
    with torch.inference_mode():
        memory = door.model.encode(door.batch([photo]), need_attention=True)
    shares = {layer.name: layer.prefix for layer in result.layers}
    for i, weights in enumerate(memory.attentions or ()):
        assert shares[f"encoder.blocks.{i}.attn"] == pytest.approx(float(weights[..., :3].sum(-1).mean()), abs=1e-5)
    best = door.caption(photo, search=Beam(beams=3, max_length=9, min_length=4), need_attention=True)
    assert best.text == result.replays[0].text
    for i in range(2):
        share = best.attention[:, i, :, :3].sum(-1).mean()
        assert shares[f"decoder.blocks.{i}.cross_attn"] == pytest.approx(float(share), abs=1e-5)


@pytest.mark.parametrize("make", [transformer, recurrent])
def test_maps_of_given_captions_are_those_of_the_search(photo, make):
    """What `explain` draws of a caption, generated or given, is one and the same."""
    door = captioner("vit", make)
    found = door.caption(photo, search=Beam(beams=3, n_best=3, max_length=9), n_best=3, need_attention=True)
    images = door.batch([photo]).images
    for one in (found, *found.alternatives):
        maps = caption_maps(door.model, images, one.tokens, methods=["attention"])["attention"]
        np.testing.assert_allclose(maps, one.attention, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2"])
def test_published_weights(data_root, photo, name):
    """Trained attention is sharp, with scores far from 0: a harder case than random weights."""
    weights = data_root / "weights" / "vit_small_patch14_dinov2_saliency.safetensors"
    part = TimmEncoder(name, weights=weights, image_size=112)
    model = ImageClassifier(part, classes=2, mean=(0.5,) * 3, std=(0.25,) * 3)
    result = verify(Classifier(model, [("a", "a"), ("b", "b")], Preprocess(size=(112, 112))), photo)
    assert result.ok, result.problems()
    assert len(result.layers) == 12
    assert max(layer.scale for layer in result.layers) > 1


# models that are broken


def explicit(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """The explicit path with its scores changed."""

    def broken(q, k, v, mask, bias, dropout, need_weights):
        return ORIGINAL(change(q), k, v, mask, bias, dropout, need_weights)

    return broken


ORIGINAL = vitcap.nn.attention._explicit


def test_a_temperature_in_the_explicit_path_is_caught(photo, monkeypatch):
    monkeypatch.setattr(vitcap.nn.attention, "_explicit", explicit(lambda q: 1.05 * q))
    names = failing(verify(captioner("vit"), photo))
    assert {"logits", "encoder.blocks.0.attn: output", "decoder.blocks.1.cross_attn: output"} <= names
    assert not any("row sums" in name for name in names), "they still sum to 1"


def test_weights_that_are_scaled_when_shown_are_caught(photo, monkeypatch):
    def broken(*inputs):
        out, weights = ORIGINAL(*inputs)
        return out, None if weights is None else 1.001 * weights

    monkeypatch.setattr(vitcap.nn.attention, "_explicit", broken)
    names = failing(verify(captioner("vit"), photo))
    assert {"encoder.blocks.0.attn: output", "encoder.blocks.0.attn: row sums"} <= names
    assert "logits" not in names, "what the model says is as it was"


@pytest.mark.parametrize("axis", ["layers", "heads", "places"])
def test_maps_in_another_order_are_caught(photo, monkeypatch, axis):
    forward, place = TransformerDecoder.forward, {"layers": 3, "heads": 4, "places": 5}[axis]

    def broken(self, *inputs, **options):
        output = forward(self, *inputs, **options)
        return replace(output, attention=None if output.attention is None else output.attention.flip(place))

    monkeypatch.setattr(TransformerDecoder, "forward", broken)
    names = failing(verify(captioner("vit"), photo))
    assert {"decoder.blocks.0.cross_attn: map", "beam caption 1: map", "greedy caption 1: map"} <= names
    assert not any("log-prob" in name or "output" in name for name in names)


def test_maps_of_the_encoder_in_reverse_are_caught(photo, monkeypatch):
    door = classifier("timm vit")
    encode = door.model.encode

    def broken(batch, need_attention=False):
        memory = encode(batch, need_attention)
        return replace(memory, attentions=memory.attentions[::-1]) if need_attention else memory

    monkeypatch.setattr(door.model, "encode", broken)
    assert failing(verify(door, photo)) == {f"encoder.model.blocks.{i}.attn: map" for i in range(6)}


def test_a_timm_layer_of_two_formulas_is_caught(photo):
    door = classifier("timm vit")
    door.model.encoder.model.blocks[1].attn.scale *= 1.05  # the fused path has a scale of its own
    assert failing(verify(door, photo)) == {"encoder.model.blocks.1.attn: output", "logits"}


def test_a_cache_that_does_not_follow_its_beam_is_caught(photo, monkeypatch):
    select = TransformerState.select

    def broken(self, index):
        return select(self, index) if self.groups == 1 else replace(self, groups=index.shape[1])

    monkeypatch.setattr(TransformerState, "select", broken)
    names = failing(verify(captioner("vit"), photo))
    assert any(name.startswith("beam") and name.endswith(": map") for name in names)
    assert any(name.startswith("beam") and name.endswith("log-probabilities") for name in names)
    assert not any("beam" not in name for name in names), "greedy search has one sequence"


@pytest.mark.parametrize("make", [transformer, recurrent])
def test_maps_that_do_not_follow_their_beam_are_caught(photo, monkeypatch, make):
    """The words and log-probabilities are right, the maps are those of the beam's last place."""
    generated = vitcap.decoding._generated

    def broken(tokens, log_probs, scores, trace, slots):
        first = [weights.shape[1] for _, weights in trace]
        stay = torch.arange(tokens.shape[1])[None, :, None].expand(slots.shape).clone()
        for step, width in enumerate(first):
            stay[:, :, step].clamp_(max=width - 1)
        return generated(tokens, log_probs, scores, trace, stay)

    monkeypatch.setattr(vitcap.decoding, "_generated", broken)
    names = failing(verify(captioner("vit", make), photo))
    assert names
    assert all(name.startswith("beam") and name.endswith(": map") for name in names)


def test_recurrent_weights_that_do_not_sum_to_one_are_caught(photo, monkeypatch):
    door = captioner("vit", recurrent)
    look = door.model.decoder._look
    monkeypatch.setattr(
        door.model.decoder, "_look", lambda *inputs: replace(found := look(*inputs), weights=0.99 * found.weights)
    )
    assert failing(verify(door, photo)) == {"decoder.attention (AdditiveAttention): row sums"}


def test_numbers_that_are_none_are_no_agreement(photo):
    door = classifier("vit")
    with torch.no_grad():
        door.model.encoder.blocks[1].attn.qkv.bias[0] = torch.nan
    result = verify(door, photo)
    assert not result.ok
    assert {"logits", "encoder.blocks.1.attn: output", "encoder.blocks.1.attn: row sums"} <= failing(result)
    assert "encoder.blocks.0.attn: output" not in failing(result)


def test_the_check_leaves_the_model_as_it_was(photo):
    door = captioner("timm vit")
    before = door.caption(photo)
    verify(door, photo)
    modules = list(door.model.modules())
    assert all(m.fused_attn for m in modules if hasattr(m, "fused_attn"))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
    assert door.caption(photo) == before
    tokens = torch.tensor([[[BOS, *before.tokens[:-1]]]])
    memory = door.model.encode(door.batch([photo]))
    assert isinstance(memory, Memory)
    assert door.model.decoder(memory, tokens).attention is None


# the command


@pytest.fixture(scope="module")
def files(tmp_path_factory, photo) -> tuple[Path, Path]:
    """A captioner's file and a photo."""
    folder = tmp_path_factory.mktemp("verify")
    encoder = {"_target_": "vitcap.models.vit.VisionTransformer", "image_size": 32, "patch_size": 8, **SMALL}
    decoder = {"_target_": "vitcap.models.transformer_decoder.TransformerDecoder", "memory_width": 24, **SMALL}
    decoder |= {"vocab_size": TOKENIZER.vocab_size, "max_length": 24}
    preprocess = Preprocess(size=(32, 32))
    parts = {"encoder": encoder, "decoder": decoder, "tokenizer": TOKENIZER, "preprocess": preprocess}
    description = checkpoint.describe(**parts, decode={"_target_": "vitcap.decoding.Beam"})
    torch.manual_seed(0)
    model = CaptionModel(checkpoint.build(encoder), checkpoint.build(decoder), mean=preprocess.mean, std=preprocess.std)
    sharpen(model.decoder, 6.0)
    photo.save(folder / "photo.png")
    return checkpoint.write(folder / "model.safetensors", model, description), folder / "photo.png"


def test_the_command_prints_a_table_and_a_verdict(files, tmp_path, capsys):
    model, picture = map(str, files)
    report = tmp_path / "new" / "numbers.json"
    assert main(["verify", picture, "--model", model, "--json", str(report), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"{picture}: float32 on cpu, tolerance 1e-05, 1 of 17 places are prefix tokens"
    rows = {line.split()[0]: line.split() for line in lines[1:] if "blocks" in line}
    assert len(rows) == 6
    assert rows["decoder.blocks.0.self_attn"][-3:] == ["-"] * 3
    assert rows["encoder.blocks.1.attn"][-1].endswith("%")
    assert "  verdict: all within the tolerance" in lines
    (checked,) = json.loads(report.read_text())["checked"]
    assert checked["ok"] is True
    assert checked["problems"] == []
    assert [layer["name"] for layer in checked["layers"]] == list(rows)
    assert all(float(rows[one["name"]][1]) == pytest.approx(one["path_error"], rel=0.06) for one in checked["layers"])
    assert main(["verify", picture, "--model", model, "--json", str(report)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_command_fails_for_a_broken_model(files, tmp_path, capsys, monkeypatch):
    model, picture = map(str, files)
    monkeypatch.setattr(vitcap.nn.attention, "_explicit", explicit(lambda q: torch.full_like(q, torch.nan)))
    report = tmp_path / "numbers.json"
    monkeypatch.setattr(vitcap.decoding.Search, "_check", lambda *_: None)
    assert main(["verify", picture, "--model", model, "--json", str(report), "--quiet"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "  verdict: NOT within the tolerance"
    assert any(line.startswith("  FAILED: encoder.blocks.0.attn: output differ by nan") for line in out)
    checked = json.loads(report.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))["checked"]
    assert checked[0]["layers"][0]["path_error"] == "nan"


def test_the_command_line_is_checked(files, tmp_path, capsys):
    model, picture = map(str, files)
    assert main(["verify", picture, "--model", str(tmp_path / "none.safetensors")]) == 2
    assert "none.safetensors" in capsys.readouterr().err
    (tmp_path / "text.jpg").write_text("no picture")
    assert main(["verify", str(tmp_path / "text.jpg"), picture, "--model", model, "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert "text.jpg" in err
    assert "verdict: all within" in out, "the other picture is checked all the same"


def test_the_report_takes_any_name_and_its_folder_is_made_first(files, tmp_path, capfdbinary, monkeypatch):
    model, picture = map(str, files)
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.png")
    try:
        shutil.copy(picture, name)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only UTF-8 names")
    assert main(["verify", name, "--model", model, "--json", "r.json", "--quiet"]) == 0
    assert json.loads(Path("r.json").read_text(encoding="utf-8"))["checked"][0]["source"] == name
    capfdbinary.readouterr()
    assert main(["verify", name, "--model", model, "--json", f"{picture}/r.json"]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b"", "before any work"
    assert b"--json" in err
    assert b"cannot be made" in err


def test_a_translator_is_checked_on_sentences_only(files, tmp_path, capsys, monkeypatch):
    door = Translator(
        CaptionModel(TransformerTextEncoder(vocab_size=TOKENIZER.vocab_size, **SMALL), transformer(24)),
        TOKENIZER,
        TOKENIZER,
    )
    monkeypatch.setattr("vitcap.cli.verify.load", lambda *_: door)
    assert main(["verify", str(files[1]), "--model", "m"]) == 2
    assert "photo.png: a file, and m translates; give sentences" in capsys.readouterr().err
