"""Records of whole models: their maps are the model's own, and they say truly where everything comes from."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import vitcap
from vitcap import checkpoint, door
from vitcap.captioner import Captioner
from vitcap.checkpoint import CheckpointError
from vitcap.classifier import Classifier
from vitcap.data.images import ImageError, load_image
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.explain import explain, explain_all
from vitcap.explain.methods import caption_maps
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.record import AttentionRecord, View
from vitcap.translator import Translator
from vitcap.types import BOS, EOS, UNK, Batch

CAPTIONS = ["a red square left of a blue circle", "two green stars on a grey ground", "nothing at all"]
SIZE, GRID, PREFIX = (16, 24), (2, 3), 2
ENCODER: dict[str, Any] = {"_target_": "vitcap.models.vit.VisionTransformer", "image_size": list(SIZE), "patch_size": 8}
ENCODER |= {"width": 16, "depth": 2, "heads": 2, "registers": 1}
CNN = {"_target_": "vitcap.models.cnn.ConvEncoder", "image_size": list(SIZE), "channels": [8, 8], "width": 16}
TRANSFORMER = {"_target_": "vitcap.models.transformer_decoder.TransformerDecoder", "depth": 2, "heads": 2}
RNN = {"_target_": "vitcap.models.rnn_decoder.RnnDecoder", "embed_width": 8, "attention_width": 8}
DECODERS: dict[str, dict[str, Any]] = {
    "transformer": TRANSFORMER | {"max_length": 24},
    "rnn": RNN,
    "fixed": RNN | {"attention": "none", "initial": "pooled"},
}
SEARCH = Greedy(max_length=9, no_repeat_ngram=2)
VIEW = View("relevance", layers=(-1,))


def loud(model: Any) -> Any:
    """Weights so large that pictures and positions matter to the words."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model.eval()


def captioner(
    decoder: str = "transformer", *, mode: str = "crop", kind: str = "word", view: View | None = None
) -> Captioner:
    tokenizer = Tokenizer.train(CAPTIONS, kind=kind, min_count=1, vocab_size=280)
    preprocess = Preprocess(size=SIZE, mode=mode, crop_pct=0.9, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
    config = DECODERS[decoder] | {"vocab_size": tokenizer.vocab_size, "memory_width": 16, "width": 16}
    encoder = checkpoint.build(ENCODER), checkpoint.build(config)
    model = loud(CaptionModel(*encoder, mean=preprocess.mean, std=preprocess.std))
    parts: dict[str, Any] = {"encoder": ENCODER, "decoder": config, "tokenizer": tokenizer, "preprocess": preprocess}
    parts["decode"] = {"_target_": "vitcap.decoding.Greedy", "max_length": 9, "no_repeat_ngram": 2}
    description = checkpoint.describe(**parts, view=view)
    return Captioner(model, tokenizer, preprocess, search=SEARCH, description=description)


def classifier(encoder: dict[str, Any] = ENCODER) -> Classifier:
    scale: dict[str, Any] = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    model = loud(ImageClassifier(checkpoint.build(encoder), classes=6, **scale))
    names = ("circle", "square", "crane", "star", "crane", "ring")
    return Classifier(model, [(f"n{i}", name) for i, name in enumerate(names)], Preprocess(size=SIZE, **scale))


def translator(kind: str = "space") -> Translator:
    sources = ["the cat sleeps", "a dog eats the bone", "the small cat eats", "the dog sleeps in the house"]
    targets = ["le chat dort", "un chien mange l' os", "le petit chat mange", "le chien dort dans la maison"]
    source, target = (Tokenizer.train(texts, kind=kind, min_count=1, vocab_size=280) for texts in (sources, targets))
    encoder = {"_target_": "vitcap.models.text.TransformerTextEncoder", "width": 16, "depth": 1, "heads": 2}
    encoder |= {"vocab_size": source.vocab_size}
    decoder = TRANSFORMER | {"width": 16, "memory_width": 16, "vocab_size": target.vocab_size, "max_length": 40}
    model = CaptionModel(checkpoint.build(encoder), checkpoint.build(decoder))
    return Translator(loud(model), source, target, search=Greedy(max_length=9))


def picture(width: int = 31, height: int = 20, seed: int = 0) -> Image.Image:
    """A few coarse blocks of colour, so that no two pictures look alike to the model."""
    pixels = np.random.default_rng(seed).choice(np.array([0, 255], dtype=np.uint8), (3, 4, 3))
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST)


def equal(a: AttentionRecord, b: AttentionRecord, tolerance: float = 1e-5) -> None:
    assert a.text == b.text
    assert [(w.text, w.start, w.stop) for w in a.words] == [(w.text, w.start, w.stop) for w in b.words]
    np.testing.assert_allclose([w.log_prob for w in a.words], [w.log_prob for w in b.words], atol=1e-4)
    assert list(a.maps) == list(b.maps)
    for method in a.maps:
        scale = max(np.abs(a.maps[method]).max(), 1)
        np.testing.assert_allclose(a.maps[method] / scale, b.maps[method] / scale, atol=tolerance)


def step_by_step(model: CaptionModel, batch: Batch, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (T,) and cross-attention (T, L, H, N) of given tokens by the decoder's own steps."""
    log_probs, attention = [], []
    with torch.no_grad():
        state = model.decoder.start(model.encode(batch), 1)
        for before, token in zip([BOS, *tokens[:-1]], tokens, strict=True):
            logits, weights, state = model.decoder.step(torch.tensor([[before]]), state, True)
            log_probs.append(logits[0, 0].log_softmax(-1)[token])
            attention.append(weights[0, 0])
    return torch.stack(log_probs), torch.stack(attention)


# captions


@pytest.mark.parametrize("decoder", ["transformer", "rnn"])
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_words_written_and_given_have_the_models_own_maps(decoder: str, kind: str) -> None:
    model = captioner(decoder, kind=kind)
    written = explain(model, picture(), search=Beam(beams=3, max_length=9))
    tokens = written.facts["tokens"]
    assert (written.grid, written.prefix) == (GRID, PREFIX)
    assert (written.facts["kind"], written.facts["words"]) == ("caption", "generated")
    assert written.facts["decoding"]["search"] == "beam"

    caption = model.caption(picture(), need_attention=True, search=Beam(beams=3, max_length=9))
    assert list(caption.tokens) == tokens
    assert written.text == caption.text
    log_probs, attention = step_by_step(model.model, model.batch([picture()]), tokens)
    assert_close(torch.from_numpy(written.maps["attention"]), attention, atol=1e-5, rtol=0)
    for word in written.words:
        assert word.log_prob == pytest.approx(log_probs[word.start : word.stop].sum().item(), abs=1e-4)

    equal(written, explain(model, picture(), caption=caption))
    given = explain(model, picture(), caption=replace(caption, attention=None))
    equal(written, given)
    assert given.facts["words"] == "given"
    assert "decoding" not in given.facts


def test_pieces_of_words_are_merged_and_the_end_is_no_word() -> None:
    model = captioner(kind="bpe")
    record = explain(model, picture(), caption="Two purple circles")
    assert [word.text for word in record.words] == ["two", "purple", "circles"]
    tokens = record.facts["tokens"]
    assert tokens[-1] == EOS
    assert record.words[0].start == 0
    assert all(a.stop == b.start for a, b in zip(record.words, record.words[1:], strict=False))
    assert record.words[-1].stop == len(tokens) - 1 == len(record.maps["attention"]) - 1
    assert max(w.stop - w.start for w in record.words) > 1
    ids = model.tokenizer.encode("two purple circles")
    log_probs, attention = step_by_step(model.model, model.batch([picture()]), [*ids, EOS])
    word = record.words[1]
    mean = attention[word.start : word.stop].mean((0, 1, 2))[PREFIX:].view(GRID)
    np.testing.assert_allclose(record.map(1), mean.numpy(), atol=1e-6)
    assert word.log_prob == pytest.approx(log_probs[word.start : word.stop].sum().item(), abs=1e-4)


def test_unknown_words_keep_their_spelling_and_are_named() -> None:
    model = captioner()
    record = explain(model, picture(), caption="A Red zebra, left of a yak!")
    assert record.text == "a red zebra left of a yak"
    assert [word.text for word in record.words] == record.text.split()
    assert record.facts["unknown_words"] == ["yak", "zebra"]
    assert record.facts["tokens"].count(UNK) == 2
    assert "unknown_words" not in explain(model, picture(), caption="a red square").facts


def test_a_text_is_written_as_the_same_caption_reads() -> None:
    model = captioner()
    options: dict[str, Any] = {"methods": "all", "search": Sample(max_length=20)}
    drawn = (explain(model, picture(), seed=seed, **options) for seed in range(30))
    written = next(record for record in drawn if record.facts["finished"] and len(record.words) > 1)
    equal(written, explain(model, picture(), caption=written.text, methods="all"), 1e-4)
    assert set(written.maps) == {"attention", "rollout", "relevance", "grad-cam"}
    assert written.shown == View("attention")
    assert list(explain(model, picture(), methods=["grad-cam", "attention", "grad-cam"]).maps) == [
        "grad-cam",
        "attention",
    ]
    assert explain(model, picture(), methods="rollout").shown == View("rollout")


def test_a_sampling_search_draws_from_the_seed() -> None:
    model, search = captioner(), Sample(max_length=9)
    records = [explain(model, picture(), search=search, seed=seed) for seed in (1, 1, 2)]
    assert records[0].facts["tokens"] == records[1].facts["tokens"] != records[2].facts["tokens"]
    assert (records[0].facts["seed"], records[0].facts["decoding"]["search"]) == (1, "sample")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"caption": "zebra yaks"}, "'zebra yaks': none of its words is in the model's vocabulary"),
        ({"caption": " ... "}, "' ... ': no words"),
        ({"caption": "a red square " * 9}, "28 tokens, the end included: this model reads at most 24"),
        ({"methods": "gradcam"}, "method 'gradcam': there is no such method; this model has attention, rollout"),
        ({"methods": ()}, "no method is chosen"),
        ({"classes": ["star"]}, "classes: a Captioner has no such option"),
        ({"photo_side": 0}, "photo_side=0: a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        explain(captioner(), picture(), **options)
    assert "\n" not in str(error.value)


def test_a_decoder_without_attention_says_so() -> None:
    model = captioner("fixed")
    with pytest.raises(ValueError, match=r"method 'attention': this RnnDecoder reads one fixed vector.*has grad-cam"):
        explain(model, picture())
    assert list(explain(model, picture(), methods="all").maps) == ["grad-cam"]


# pictures


def replay(image: Image.Image, steps: tuple[dict[str, Any], ...]) -> Image.Image:
    """What a record says was done, done with Pillow alone."""
    for step in steps:
        match step["name"]:
            case "turn":
                image = image.transpose(Image.Transpose[step["turn"]]) if step["turn"] else image
            case "resize":
                image = image.resize(step["size"], Image.Resampling[step["interpolation"].upper()])
            case "crop":
                image = image.crop(step["box"])
            case "pad":
                left, top, right, bottom = step["by"]
                canvas = Image.new(
                    "RGB", (left + image.width + right, top + image.height + bottom), tuple(step["fill"])
                )
                canvas.paste(image, (left, top))
                image = canvas
            case other:
                raise AssertionError(other)
    return image


@pytest.mark.parametrize("mode", ["crop", "squash", "letterbox"])
@pytest.mark.parametrize("size", [(61, 20), (20, 61), (48, 32), (24, 16)])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_the_steps_lead_from_the_file_to_the_models_input(
    mode: str, size: tuple[int, int], orientation: int, tmp_path: Path
) -> None:
    model, exif = captioner(mode=mode), Image.Exif()
    exif[0x0112] = orientation
    stored = picture(*size)
    stored.save(tmp_path / "photo.png", exif=exif)
    record = explain(model, tmp_path / "photo.png", caption="a red square")
    upright = load_image(tmp_path / "photo.png")

    expected = model.preprocess(upright)
    assert_close(torch.from_numpy(np.array(replay(stored, record.transforms))).permute(2, 0, 1), expected)
    assert record.transforms[0]["orientation"] == orientation
    assert record.source == "photo.png"
    assert record.size == upright.size == (size if orientation < 5 else size[::-1])
    np.testing.assert_array_equal(np.asarray(record.photo), np.asarray(upright))
    equal(record, explain(model, upright, caption="a red square"))

    # The window is what the steps after the turn leave of the photo, on the photo.
    x0, y0, x1, y1, scale = 0.0, 0.0, *map(float, upright.size), [1.0, 1.0]
    for step in record.transforms:
        if step["name"] == "resize":
            scale = [now / was for now, was in zip(step["size"], upright.size, strict=True)]
            x1, y1 = map(float, step["size"])
        elif step["name"] == "crop":
            x0, y0, x1, y1 = map(float, step["box"])
        elif step["name"] == "pad":
            left, top, right, bottom = step["by"]
            x0, y0, x1, y1 = x0 - left, y0 - top, x1 + right, y1 + bottom
    assert record.window == pytest.approx((x0 / scale[0], y0 / scale[1], x1 / scale[0], y1 / scale[1]))


def test_a_picture_already_open_is_turned_once() -> None:
    image, exif = picture(), Image.Exif()
    exif[0x0112] = 6
    image.info["exif"] = exif.tobytes()
    record = explain(captioner(), image)
    assert record.transforms[0] == {"name": "turn", "orientation": 6, "turn": "ROTATE_270"}
    assert record.size == (image.height, image.width)
    assert record.source == ""


def test_formats_that_turn_by_themselves_are_turned_once(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "photo.tif", exif=exif)
    record = explain(captioner(), tmp_path / "photo.tif")
    assert record.size == (20, 31)
    assert record.photo is not None
    assert record.photo.shape == (31, 20, 3)


def test_the_photo_is_kept_smaller_and_the_window_stays_in_its_own_pixels(tmp_path: Path) -> None:
    photo, model = picture(310, 200), captioner()
    large, small = explain(model, photo), explain(model, photo, photo_side=62)
    assert large.photo is not None
    assert small.photo is not None
    assert (large.photo.shape, small.photo.shape) == ((200, 310, 3), (40, 62, 3))
    assert (large.size, large.window) == (small.size, small.window) == ((310, 200), model.preprocess.window(310, 200))
    equal(large, small)


def test_cells_lie_where_the_encoder_reads(tmp_path: Path) -> None:
    photo = picture(300, 200)
    assert explain(captioner(), photo).cells is None, "patches are the window"
    model = captioner()
    model.model.encoder = checkpoint.build(CNN)
    record = explain(model, photo)
    assert record.window is not None
    with torch.no_grad():
        for parameter in model.model.encoder.stages.parameters():
            parameter.fill_(1)
    # Two stages of stride 2 around every second pixel: the first cell of 4 pixels lies around the first pixel.
    model.preprocess = replace(model.preprocess, crop_pct=1.0, mode="squash")
    even = explain(model, photo)
    assert even.window == (0, 0, 300, 200)
    across, down = 300 / 24, 200 / 16
    assert even.cells == pytest.approx((-1.5 * across, -1.5 * down, 22.5 * across, 14.5 * down))
    assert record.cells != even.cells
    even.save(tmp_path / "record")
    assert AttentionRecord.load(tmp_path / "record").grid_window == even.cells
    with torch.no_grad():
        model.model.encoder.stages[0][0].weight[:, :, :, 0] = 9
    heavier = explain(model, photo)
    assert heavier.cells is not None
    assert even.cells is not None
    assert heavier.cells[0] < even.cells[0] - 0.9 * across, "the weights changed"
    assert heavier.cells[1] == even.cells[1]


def test_a_jpeg_decoded_at_a_fraction_keeps_its_true_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    picture(640, 400).save(tmp_path / "big.jpg", exif=exif)
    model = captioner()
    monkeypatch.setattr(door, "load_image", partial(load_image, max_pixels=20_000))
    record = explain(model, tmp_path / "big.jpg")
    assert record.photo is not None
    assert record.photo.shape == (160, 100, 3)
    assert record.size == (400, 640)
    assert record.window == pytest.approx(model.preprocess.window(400, 640), abs=4)
    assert record.transforms[1] == {"name": "resize", "size": [100, 160], "interpolation": "decoder"}


def test_a_record_of_a_model_comes_back_from_disk(tmp_path: Path) -> None:
    record = explain(captioner(), picture(61, 20), methods="all")
    record.save(tmp_path / "record")
    again = AttentionRecord.load(tmp_path / "record")
    assert again.words == record.words
    np.testing.assert_array_equal(np.asarray(again.photo), np.asarray(record.photo))
    assert all((again.maps[method] == record.maps[method]).all() for method in record.maps)
    rest = ("text", "shown", "grid", "prefix", "places", "size", "window", "transforms", "source", "facts")
    assert {name: getattr(again, name) for name in rest} == {name: getattr(record, name) for name in rest}


# many


@pytest.mark.parametrize("search", [None, Beam(max_length=9, no_repeat_ngram=2), Sample(max_length=9)])
def test_many_at_once_are_as_each_alone(search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, photos = captioner(), [picture(31 + 5 * seed, 20, seed) for seed in range(5)]
    hashed: list[str] = []

    def digest(*_: Any) -> str:
        hashed.append("0" * 64)
        return hashed[-1]

    monkeypatch.setattr(door, "fingerprint", digest)
    (tmp_path / "text.jpg").write_text("no picture")
    pictures: list[Any] = [*photos[:2], tmp_path / "text.jpg", *photos[2:]]
    skipped: list[Any] = []
    found = list(
        explain_all(model, pictures, skip=lambda p, e: skipped.append((p, str(e))), batch_size=2, search=search, seed=7)
    )
    assert [path for path, _ in skipped] == [tmp_path / "text.jpg"]
    assert len(found) == len(photos)
    assert len({record.text for record in found}) > 1
    for photo, record in zip(photos, found, strict=True):
        equal(record, explain(model, photo, search=search, seed=7))
    assert len(hashed) == 1
    with pytest.raises(ImageError, match=r"text\.jpg"):
        list(explain_all(model, pictures))


def test_the_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    model = captioner()
    first = explain(model, picture()).facts["model"]
    model.save(tmp_path / "model.safetensors")
    assert vitcap.load(tmp_path / "model.safetensors").fingerprint == first
    with torch.no_grad():
        model.model.decoder.embed.weight[5, 0] += 1.0
    assert explain(model, picture()).facts["model"] != first


# the view of the model file


def test_a_model_file_brings_its_view(tmp_path: Path) -> None:
    captioner(view=VIEW).save(tmp_path / "model.safetensors")
    model = vitcap.load(tmp_path / "model.safetensors")
    assert isinstance(model, Captioner)
    assert model.view == VIEW
    record = explain(model, picture())
    assert list(record.maps) == ["attention", "relevance"]
    assert record.shown == VIEW
    model.save(tmp_path / "again.safetensors")
    assert vitcap.load(tmp_path / "again.safetensors").view == VIEW
    assert captioner().view is None


@pytest.mark.parametrize(
    "view",
    [
        *("attention", {}, {"method": 3}, {"method": "attention", "layer": [1]}, {"method": "attention", "layers": 1}),
        *({"method": "attention", "heads": []}, {"method": "attention", "heads": [0.5]}),
    ],
)
def test_a_view_that_is_none_is_refused_by_the_files_name(view: Any, tmp_path: Path) -> None:
    model = captioner()
    model.description["view"] = view
    model.save(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: view .*a method, and layers and heads"):
        vitcap.load(tmp_path / "model.safetensors")


def test_a_view_of_what_the_model_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="view shows layers 2 of attention, which has 2"):
        explain(captioner(view=View("attention", layers=(0, 2))), picture())
    with pytest.raises(ValueError, match=r"file's view shows method 'magic': there is no such method; to do without"):
        explain(captioner(view=View("magic")), picture(), methods="rollout")


# input of another kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"caption": 5}, "caption=5: a text, a Caption or None"),
        ({"caption": ["a", "red"]}, "caption="),
        ({"methods": None}, "methods=None: one or more names"),
        ({"methods": [{}]}, "methods="),
        ({"search": "beam"}, "search='beam': a search"),
        ({"seed": "x"}, "seed=x: a whole number"),
        ({"photo_side": 2.5}, "photo_side=2.5: a whole number"),
    ],
)
def test_options_of_another_kind_are_one_clear_error(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain(captioner(), picture(), **options)


def test_pictures_classes_and_captions_of_another_kind_are_one_clear_error() -> None:
    model = captioner()
    for wrong in (None, np.zeros((4, 4, 3), np.uint8), [picture()], b"x"):
        with pytest.raises(ValueError, match=f"{type(wrong).__name__}: a picture is wanted"):
            explain(model, wrong)  # type: ignore[arg-type]
    for classes in ([1.5], [None], [True]):
        with pytest.raises(ValueError, match="a list of names or indices"):
            explain(classifier(), picture(), classes=classes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"top=2\.5: a whole number"):
        explain(classifier(), picture(), top=2.5)  # type: ignore[arg-type]
    given = model.caption(picture())
    for tokens in ((), (9999,)):
        with pytest.raises(ValueError, match="its tokens are not all of this model's vocabulary"):
            explain(model, picture(), caption=replace(given, tokens=tokens))


# classes


@pytest.mark.parametrize("token", [True, False])
def test_classes_are_words(token: bool) -> None:
    encoder = ENCODER if token else ENCODER | {"class_token": False, "registers": 0, "pool": "mean"}
    model = classifier(encoder)
    record = explain(model, picture(), methods="all", top=3)
    predictions = model.classify(picture(), top=3)
    assert [word.text for word in record.words] == [p.name for p in predictions]
    assert [w.log_prob for w in record.words] == pytest.approx(
        [float(np.log(p.probability)) for p in predictions], abs=1e-5
    )
    assert [(w.start, w.stop) for w in record.words] == [(0, 1), (1, 2), (2, 3)]
    assert record.text == predictions[0].name
    assert (record.facts["kind"], record.facts["words"]) == ("classify", "likeliest")
    assert (record.grid, record.prefix) == (GRID, 2 if token else 0)

    with torch.no_grad():
        layers = model.model.encode(model.batch([picture()]), need_attention=True).attentions
    assert layers is not None
    rows = torch.stack([layer[0, :, 0] if token else layer[0].mean(1) for layer in layers])  # (L, H, N)
    for values in record.maps["attention"]:
        np.testing.assert_allclose(values, rows.numpy(), atol=1e-5)
    assert len(explain(model, picture(), top=50).words) == 6


def test_classes_by_name() -> None:
    model = classifier()
    record = explain(model, picture(), classes=["Star", "n4", 0], methods="all")
    assert [word.text for word in record.words] == ["star", "crane", "circle"]
    assert record.facts["classes"] == [3, 4, 0]
    best = explain(model, picture(), top=6, methods="all")
    for word in record.words[::2]:
        other = next(w for w in best.words if w.text == word.text)
        np.testing.assert_allclose(
            record.maps["relevance"][word.start], best.maps["relevance"][other.start], rtol=1e-4, atol=1e-6
        )
        assert word.log_prob == pytest.approx(other.log_prob)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["crane"]}, r"class 'crane': 2 classes have this name; give the index of one: 2 \(n2\), 4 \(n4\)"),
        ({"classes": ["yak"]}, "class 'yak': this model has none of that name; its classes are circle, square"),
        ({"classes": [6]}, "class 6: this model has 6 classes, 0 to 5"),
        ({"classes": "star"}, "classes='star': a list"),
        ({"caption": "a star"}, "caption: a Classifier has no such option"),
        ({"top": 0}, "top=0"),
    ],
)
def test_classes_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain(classifier(), picture(), **options)


def test_a_cnn_has_grad_cam_and_says_why_no_more() -> None:
    model = classifier(CNN)
    record = explain(model, picture(), methods="all")
    assert (list(record.maps), record.shown) == (["grad-cam"], View("grad-cam"))
    with pytest.raises(ValueError, match=r"method 'attention': ConvEncoder has no global self-attention.*has grad-cam"):
        explain(model, picture())


# sentences


@pytest.mark.parametrize("kind", ["space", "bpe"])
def test_a_translation_attends_to_words_of_its_source(kind: str) -> None:
    model, source = translator(kind), "the dog eats the small bone"
    record = explain(model, source)
    assert (record.grid, record.photo, record.window, record.source) == (None, None, None, source)
    assert record.places == tuple(source.split())
    assert record.facts["kind"] == "translate"
    assert "preprocess" not in record.facts
    given = explain(model, source, caption="le chat mange un os")
    np.testing.assert_allclose(given.maps["attention"].sum(-1), 1, atol=1e-5)
    weights = np.stack([given.maps["attention"][w.start : w.stop].mean((0, 1, 2)) for w in given.words])
    np.testing.assert_allclose(weights, model.align([source], ["le chat mange un os"])[0], atol=1e-5)
    if record.words:
        equal(record, explain(model, source, caption=model.translate(source, need_attention=True)))


def test_translations_together_lose_the_padding() -> None:
    model, sources = translator(), ["the cat", "the dog sleeps in the house", "a bone"]
    together = model.translate(sources, need_attention=True)
    for source, record, caption in zip(sources, explain_all(model, sources), together, strict=True):
        alone = explain(model, source)
        assert record.places == tuple(source.split())
        equal(record, alone)
        equal(explain(model, source, caption=caption), alone)


def test_unknown_words_of_a_source_are_named() -> None:
    record = explain(translator(), "the zebra sleeps", methods="all")
    assert record.places == ("the", "zebra", "sleeps")
    assert record.facts["unknown_source_words"] == ["zebra"]
    assert "grad-cam" not in record.maps
    with pytest.raises(ValueError, match="no word is left of the sentence"):
        explain(translator(), "  ")
    with pytest.raises(ValueError, match="Image: a Translator reads a source sentence"):
        explain(translator(), picture())


def test_options_of_rollout_reach_the_maps_and_are_told():
    model = captioner()
    plain = explain(model, picture(), methods="rollout")
    harsh = explain(model, picture(), methods="rollout", rollout={"fusion": "max", "discard": 0.5})
    tokens = plain.facts["tokens"]
    images = model.batch([picture()]).images
    wanted = caption_maps(model.model, images, tokens, methods=["rollout"], rollout={"fusion": "max", "discard": 0.5})
    np.testing.assert_allclose(harsh.maps["rollout"], wanted["rollout"], atol=1e-6)
    assert abs(harsh.maps["rollout"] - plain.maps["rollout"]).max() > 1e-3
    assert harsh.facts["rollout"] == {"fusion": "max", "discard": 0.5}
    assert "rollout" not in plain.facts
    with pytest.raises(ValueError, match="fusion='median': choose one of mean, max, min"):
        explain(model, picture(), methods="rollout", rollout={"fusion": "median"})
    with pytest.raises(ValueError, match="rollout='max'"):
        explain(model, picture(), methods="rollout", rollout="max")
