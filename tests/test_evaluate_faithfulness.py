"""Faithfulness of whole models: scores are the model's own, removal is what it says, controls and verdicts are true."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.image_folder import ImageFolderSource
from vitcap.data.pictures import CaptionData
from vitcap.data.shapes import ShapesSource
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy
from vitcap.evaluation.controls import centre_map, random_weights
from vitcap.evaluation.faithfulness import evaluate_faithfulness, measure
from vitcap.evaluation.faithfulness_report import CENTRE, FIGURES, OCCLUSION, OTHER, RANDOM, UNTRAINED, summarise, table
from vitcap.evaluation.perturbation import Removal, score_kept
from vitcap.evaluation.subjects import Subject, Target, choose_views, shown_view
from vitcap.metrics.faithfulness import road_impute
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.published import PublishedClassifier
from vitcap.models.rnn_decoder import RnnDecoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.models.vit import VisionTransformer
from vitcap.record import View, Word
from vitcap.types import Batch

SCALE = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
PREPROCESS = Preprocess(size=(32, 48), mode="squash", **SCALE)
W = np.array([0.1, 0.4, 0.2, 0.3])


def encoder(**options):
    return VisionTransformer(image_size=(32, 48), patch_size=16, width=16, depth=2, heads=2, **SCALE, **options)


@pytest.fixture(scope="module")
def shapes():
    data = CaptionData(lambda: ShapesSource(train_size=20, val_size=6), captions_per_image=1, min_count=1)
    data.preprocess = PREPROCESS
    return data


@pytest.fixture(scope="module")
def captioner(shapes):
    torch.manual_seed(0)
    vocabulary = Tokenizer.train([c for r in shapes.records("train") for c in r.captions], kind="bpe", vocab_size=60)
    decoder = TransformerDecoder(
        vocab_size=vocabulary.vocab_size, memory_width=16, width=16, depth=2, heads=2, max_length=20
    )
    model = CaptionModel(encoder(registers=1), decoder, **SCALE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return Captioner(model, vocabulary, PREPROCESS, search=Greedy(max_length=8, min_length=6))


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(1)
    model = ImageClassifier(encoder(), classes=3, **SCALE)
    torch.nn.init.normal_(model.head.weight, std=2.0)
    return Classifier(model, [("a", "apple"), ("b", "bee"), ("c", "cat")], PREPROCESS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split, count in (("train", 1), ("val", 2)):
        for name in "abc":
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


# pictures without some of their patches


def test_removal_takes_exactly_the_patches():
    image = torch.randn(3, 32, 48, generator=torch.Generator().manual_seed(0))
    kept = np.ones((2, 6), dtype=bool)
    kept[0, [1, 5]] = kept[1, 0] = False
    removal = Removal(image, (2, 3), generator=np.random.default_rng(0))
    cells = torch.ones(2, 32, 48, dtype=torch.bool)
    cells[0, :16, 16:32] = cells[0, 16:, 32:] = cells[1, :16, :16] = False
    plain, road = removal.on_substrate(kept), removal.imputed(kept)
    for k in range(2):
        assert torch.equal(plain[k][:, cells[k]], image[:, cells[k]])
        assert torch.equal(road[k][:, cells[k]], image[:, cells[k]])
        assert not plain[k][:, ~cells[k]].any()
        assert (road[k] != image)[:, ~cells[k]].all()
    again = Removal(image, (2, 3), generator=np.random.default_rng(0)).imputed(kept)
    assert torch.equal(again, road)
    with pytest.raises(ValueError, match="substrate=black: choose mean or blur"):
        Removal(image, (2, 3), substrate="black", generator=np.random.default_rng(0))


def test_removal_takes_patches_where_the_model_reads_them():
    """A convolution's cells may lie beside the input's own grid: here 7.5 and 8 pixels."""
    image = torch.randn(3, 32, 48, generator=torch.Generator().manual_seed(0))
    kept = np.ones((2, 6), dtype=bool)
    kept[0, 1] = kept[1, 5] = False
    removal = Removal(image, (2, 3), box=(7.5, 8.0, 55.5, 40.0), generator=np.random.default_rng(0))
    cells = torch.ones(2, 32, 48, dtype=torch.bool)
    cells[0, :24, 23:39] = cells[1, 24:, 39:] = False  # the outermost end with the input
    plain, road = removal.on_substrate(kept), removal.imputed(kept)
    for k in range(2):
        assert torch.equal(plain[k][:, cells[k]], image[:, cells[k]])
        assert torch.equal(road[k][:, cells[k]], image[:, cells[k]])
        assert not plain[k][:, ~cells[k]].any()
        assert (road[k] != image)[:, ~cells[k]].all()
    hidden = image.clone()
    hidden[:, ~cells[0]] = 9  # what is removed plays no part in what takes its place
    again = Removal(hidden, (2, 3), box=(7.5, 8.0, 55.5, 40.0), generator=np.random.default_rng(0)).imputed(kept)
    assert torch.equal(again[0], road[0])


def test_imputation_of_a_smooth_picture_is_the_picture():
    """A plane is the weighted mean of its neighbours everywhere, so a hole inside is filled with the plane itself."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 40), torch.linspace(-1, 1, 60), indexing="ij")
    image = torch.stack([x, y, x + y])
    kept = np.ones((1, 20), dtype=bool)
    kept[0, [6, 7, 12]] = False  # inside the grid of 4 x 5
    beside = Removal(image, (4, 5), box=(5.0, 4.0, 65.0, 44.0), noise=0, generator=np.random.default_rng(0))
    assert (beside.imputed(kept)[0] - image).abs().max() < 0.1  # patches of two sizes: the system is of equal ones
    road = Removal(image, (4, 5), noise=0, generator=np.random.default_rng(0)).imputed(kept)[0]
    assert (road - image).abs().max() < 0.02
    noisy = Removal(image, (4, 5), noise=0.1, generator=np.random.default_rng(0)).imputed(kept)[0]
    hole = (road != image).all(0)
    assert (noisy - road)[:, hole].std().item() == pytest.approx(0.1, rel=0.1)
    assert torch.equal(noisy[:, ~hole], road[:, ~hole])


def test_imputation_is_near_that_of_all_pixels():
    noise = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    image = torch.nn.functional.interpolate(noise, size=(64, 64), mode="bicubic")[0]
    kept = np.random.default_rng(1).random((6, 16)) < 0.5
    kept[:, 5] = True
    known = kept.reshape(-1, 4, 4).repeat(16, 1).repeat(16, 2)
    exact = road_impute(image.numpy(), known)
    found = Removal(image, (4, 4), noise=0, generator=np.random.default_rng(0)).imputed(kept).numpy()
    missing = ~np.repeat(known[:, None], 3, 1)
    error, change = (np.sqrt((d[missing] ** 2).mean()) for d in (found - exact, image.numpy() - exact))
    assert error < 0.15 * change


def test_blur_keeps_the_colour_and_loses_the_detail():
    image = torch.rand(3, 32, 48, generator=torch.Generator().manual_seed(0)) + 1
    ground = Removal(image, (2, 3), substrate="blur", generator=np.random.default_rng(0)).ground
    assert ground.mean().item() == pytest.approx(image.mean().item(), rel=0.02)
    assert ground.std() < 0.1 * image.std()


def test_every_mask_is_scored_once():
    seen = []

    def score(images):
        seen.append(len(images))
        return images.double().mean((1, 2, 3)).numpy()[:, None] * [1, 2]

    image = torch.randn(3, 32, 48)
    removal = Removal(image, (2, 3), generator=np.random.default_rng(0))
    kept = np.random.default_rng(0).random((40, 6)) > 0.7
    found = score_kept(score, removal.on_substrate, kept, batch_size=5)
    assert sum(seen) == len({tuple(k) for k in kept.tolist()}) < 40
    assert max(seen) == 5
    assert found == pytest.approx(score(removal.on_substrate(kept)))


# figures


class Linear:
    """f of a word is a weighted sum of the patches' means."""

    def __init__(self, weights, side):
        self.weights, self.side = np.array(weights, dtype=float), side

    def scores(self, images, target):
        cells = torch.nn.functional.avg_pool2d(images.mean(1, keepdim=True), self.side).flatten(1).double().numpy()
        return cells @ self.weights.T


def target(count):
    return Target((1,) * count, tuple(Word("x", i, i + 1, 0.0) for i in range(count)))


def test_worked_values_come_through():
    """The linear score of the worked example, on a picture of ones; the second word's map is the best."""
    removal = Removal(torch.ones(3, 8, 8), (2, 2), noise=0, generator=np.random.default_rng(0))
    subject, ones = Linear([W], 4), target(1)
    rows = {"map": np.array([[0.2, 0.5, 0.1, 0.4]]), "oracle": W[None], "zero": np.zeros((1, 4))}
    found, ends = measure(subject, ones, removal, rows, 4, np.random.default_rng(0), 64)
    assert set(found) == {*rows, RANDOM, CENTRE, OCCLUSION}
    pick = lambda row, *names: [found[row][name] for name in names]  # noqa: E731
    assert pick("map", "deletion", "insertion") == pytest.approx([0.4, 0.6])
    assert pick("oracle", "deletion", "insertion") == pytest.approx([0.375, 0.625])
    assert pick("map", "comprehensiveness", "sufficiency") == pytest.approx([0.4, 0.6])
    assert found[OCCLUSION] == pytest.approx(found["oracle"])  # of a linear score, one at a time is all there is
    assert pick(RANDOM, "deletion", "insertion") == pytest.approx([0.5, 0.5])  # an order and its reverse
    assert ends == pytest.approx((1, 0))
    two, _ = measure(Linear([W, W], 4), target(2), removal, {"both": np.stack([rows["map"][0], W])}, 4,
                     np.random.default_rng(0), 64)  # fmt: skip
    assert two["both"]["deletion"] == pytest.approx((0.4 + 0.375) / 2)


def test_road_finds_the_patch_that_matters_and_an_empty_map_scores_nothing():
    image = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1)).abs()
    image[:, 4:8, 8:12] += 5  # patch 6 of 4 x 4
    weights = np.zeros((1, 16))
    weights[0, 6] = 1
    rows = {"truth": weights, "wrong": 1 - weights, "zero": 0 * weights, "flat": 0 * weights + 0.3}
    removal = Removal(image, (4, 4), generator=np.random.default_rng(0))
    found, _ = measure(Linear(weights, 4), target(1), removal, rows, 8, np.random.default_rng(0), 64)
    assert found["truth"]["road"] > 1
    assert found["wrong"]["road"] < -1
    assert found["zero"]["road"] == found["flat"]["road"] == found[RANDOM]["road"] == 0
    assert found["truth"]["road"] == pytest.approx(found[OCCLUSION]["road"], rel=1e-3)
    assert found["truth"]["deletion"] < found["zero"]["deletion"] == found["flat"]["deletion"]


# scores and maps of models


@pytest.mark.parametrize("search", [Greedy(max_length=8, min_length=6), Beam(beams=3, max_length=8)])
def test_scores_of_words_are_those_that_the_search_gave(captioner, shapes, search):
    images = torch.stack([PREPROCESS(r.open()) for r in shapes.records("val")[:3]])
    subject = Subject(captioner, search=search)
    found = subject.see(images[0], 0)
    caption = captioner.write(Batch(ids=(0,), images=images[:1]), search=search)[0]
    assert found.ids == caption.tokens
    assert any(word.stop - word.start > 1 for word in found.words)  # pieces of words
    scores = subject.scores(captioner.model.normalise(images), found)
    assert scores.shape == (3, len(found.words))
    assert scores[0] == pytest.approx([word.log_prob for word in caption.words], abs=1e-4)
    assert np.abs(scores[1] - scores[0]).max() > 1e-3


def test_scores_of_classes(classifier):
    image = PREPROCESS(Image.fromarray(np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)))
    best = classifier.logits(Batch(ids=(0,), images=image[None]))[0]
    for probability, values in ((True, best.softmax(-1)), (False, best)):
        subject = Subject(classifier, probability=probability)
        found = subject.see(image, 0)
        assert found.ids == (int(best.argmax()),)
        assert found.words[0].text == classifier.class_names[found.ids[0]]
        assert subject.scores(classifier.model.normalise(image[None]), found)[0, 0] == pytest.approx(
            values.max().item(), rel=1e-5
        )


def test_views_choose_layers_and_leave_prefix_tokens_out(captioner, shapes):
    image = PREPROCESS(shapes.records("val")[0].open())
    views = choose_views(captioner, ["attention", View("attention", (-1,), (0,)), "relevance"])
    assert list(views) == ["attention", "attention layer -1 head 0", "relevance"]
    assert shown_view(captioner, views) == "attention"
    subject = Subject(captioner)
    found = subject.see(image, 0)
    maps = subject.maps(image, found, views)
    memory = captioner.model.encode(Batch(ids=(0,), images=image[None]))
    ids = torch.tensor([1, *found.ids])[None, None]
    weights = captioner.model.decoder(memory, ids[:, :, :-1], True).attention[0, 0].detach().numpy()
    for w, word in enumerate(found.words):
        mean = weights[word.start : word.stop].mean(0)[..., 2:]  # after class token and register
        assert maps["attention"][w] == pytest.approx(mean.mean((0, 1)), abs=1e-6)
        assert maps["attention layer -1 head 0"][w] == pytest.approx(mean[-1, 0], abs=1e-6)


def test_the_view_of_the_model_file_is_measured_too(captioner):
    door = Captioner(captioner.model, captioner.tokenizer, PREPROCESS,
                     description={"view": {"method": "attention", "layers": [1], "heads": None}})  # fmt: skip
    views = choose_views(door, ["rollout"])
    assert list(views) == ["rollout", "attention layer 1"]
    assert shown_view(door, views) == "attention layer 1"
    for plain, message in (
        ({"method": "attention", "layers": [7]}, "file's view shows layers 7 of attention, which has 2; to do without"),
        ({"method": "magic"}, "file's view shows method 'magic': there is no such method; to do without"),
    ):
        door.description["view"] = plain
        image = torch.zeros(3, *PREPROCESS.size, dtype=torch.uint8)
        with pytest.raises(ValueError, match=message):
            Subject(door).maps(image, Target((5,), (Word("a", 0, 1, 0.0),)), choose_views(door, ["rollout"]))


def test_random_weights_are_seeded_and_change_nothing_else(captioner, classifier):
    options = {"image_size": [32, 48], "patch_size": 16, "width": 16, "depth": 2, "heads": 2, "registers": 1}
    part = {"_target_": "vitcap.models.vit.VisionTransformer", **options}
    described = Captioner(captioner.model, captioner.tokenizer, PREPROCESS, description={"encoder": part})
    for door in (captioner, classifier, described):
        before = {name: value.clone() for name, value in door.model.state_dict().items()}
        state = torch.get_rng_state()
        one, same, other = (random_weights(door, seed) for seed in (0, 0, 1))
        assert torch.equal(torch.get_rng_state(), state)
        for name, value in door.model.state_dict().items():
            assert torch.equal(value, before[name])
            drawn = one.model.state_dict()[name]
            assert torch.equal(drawn, same.model.state_dict()[name])
            if value.ndim > 1:
                assert not torch.equal(drawn, value), name
                assert not torch.equal(drawn, other.model.state_dict()[name]), name
        assert not one.model.training
        assert one.preprocess == door.preprocess


def test_centre_map_is_a_symmetric_distribution():
    values = centre_map((4, 5))
    assert values.sum() == pytest.approx(1)
    assert values == pytest.approx(values[::-1, ::-1])
    assert values.argmax() in (7, 12)
    assert values[0, 2] / values[1, 2] == pytest.approx(np.exp(-0.5 * (1.5**2 - 0.5**2)))


# whole evaluations


def test_a_captioner_on_shapes(captioner, shapes, tmp_path):
    steps = []
    options = {"limit": 3, "steps": 3, "words": 2}
    text, report = evaluate_faithfulness(
        captioner, shapes, "val", out=tmp_path / "new", facts={"x": 1}, progress=lambda *a: steps.append(a), **options
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]
    written = json.loads((tmp_path / "new" / "faithfulness.json").read_text(encoding="utf-8"))
    images = written.pop("per_image")
    assert written == json.loads(json.dumps(report))
    assert len(images) == 3
    methods = ("attention", "rollout", "relevance", "grad-cam")
    assert set(report["ranking"]) == {*methods, RANDOM, CENTRE, OCCLUSION} | {
        f"{m}, {c}" for m in methods for c in (UNTRAINED, OTHER)
    }
    roads = [row["figures"]["road"]["mean"] for row in report["ranking"].values()]
    assert roads == sorted(roads, reverse=True)
    for name, row in report["ranking"].items():
        for figure in FIGURES:
            values = [image[name][figure] for image in images.values()]
            assert row["figures"][figure]["mean"] == pytest.approx(np.mean(values))
            inside = [
                min(values) - 1e-9,
                row["figures"][figure]["low"],
                row["figures"][figure]["high"],
                max(values) + 1e-9,
            ]
            assert inside == sorted(inside)
    assert report["ranking"][RANDOM]["figures"]["road"] == {"mean": 0, "low": 0, "high": 0}
    above = report["ranking"]["attention"]["above"]["centre"]["mean"]
    assert above == pytest.approx(np.mean([i["attention"]["road"] - i["centre"]["road"] for i in images.values()]))
    assert report["facts"]["x"] == 1
    assert report["facts"]["images"] == 3
    assert report["facts"]["decoding"]["search"] == "greedy"
    assert "3 of 6 images" in text
    assert "only 3 images" in text
    assert "nats" in text
    again = evaluate_faithfulness(captioner, shapes, "val", out=tmp_path, **options)[1]
    assert again["ranking"] == report["ranking"]
    other = evaluate_faithfulness(captioner, shapes, "val", out=tmp_path, seed=1, **options)[1]
    assert other["ranking"] != report["ranking"]


def test_a_decoder_without_attention_says_so(shapes, captioner, tmp_path):
    size = captioner.tokenizer.vocab_size
    decoder = RnnDecoder(vocab_size=size, memory_width=16, width=16, embed_width=8, attention="none", initial="pooled")
    door = Captioner(CaptionModel(encoder(), decoder, **SCALE), captioner.tokenizer, PREPROCESS,
                     search=Greedy(max_length=5, min_length=4))  # fmt: skip
    text, report = evaluate_faithfulness(door, shapes, "val", out=tmp_path, limit=2, steps=2, words=1)
    assert [name for name in report["ranking"] if name in ("attention", "grad-cam")] == ["grad-cam"]
    assert "attention: not available, " in text
    with pytest.raises(ValueError, match=r"method 'attention': .*no attention; this model has grad-cam"):
        evaluate_faithfulness(door, shapes, "val", out=tmp_path, methods=["attention"])


def test_a_classifier_on_a_folder(classifier, folders, tmp_path):
    data = CaptionData(lambda: ImageFolderSource(folders), tokenizer=None, on_bad="skip")
    data.preprocess = PREPROCESS
    (folders / "val" / "a" / "1.png").write_bytes(b"no picture")
    text, report = evaluate_faithfulness(
        classifier, data, "val", out=tmp_path, methods=("rollout", "grad-cam"), limit=None, steps=3, substrate="blur"
    )
    assert report["facts"]["images"] == 5
    assert report["facts"]["unreadable_images"] == 1
    assert [*data.bad["val"]]
    assert report["facts"]["f"].startswith("probability")
    assert "blur" in report["facts"]["substrate"]
    assert 0 < report["facts"]["f_of_the_picture"] <= 1
    assert {"rollout", "grad-cam", f"rollout, {OTHER}"} < set(report["ranking"])
    assert report["verdict"]["shown"] == "rollout"
    assert "5 of 6 images" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0"),
        ({"words": 0}, "words=0"),
        ({"steps": 1}, "steps=1"),
        ({"noise": -1}, "noise=-1"),
        ({"methods": ["lrp"]}, "method 'lrp': there is no such method; this model has attention, "),
        ({"limit": 1}, "limit=1: a whole number of at least 2"),
        ({"methods": []}, r"methods=\[\]: one or more of attention"),
        ({"methods": [1]}, r"methods=\[1\]: one or more of attention"),
        ({"substrate": "black"}, "substrate=black"),
    ],
)
def test_what_a_user_can_do_wrong(options, message, captioner, shapes, tmp_path):
    with pytest.raises(ValueError, match=message):
        evaluate_faithfulness(captioner, shapes, "val", out=tmp_path, **({"limit": 2} | options))


def test_whole_classifiers_of_timm_have_no_grid(tmp_path):
    model = PublishedClassifier.__new__(PublishedClassifier)
    torch.nn.Module.__init__(model)
    with pytest.raises(ValueError, match="a whole classifier of timm gives no grid"):
        choose_views(Classifier(model, [("a", "a")], PREPROCESS), "all")


# verdicts


def images_of(**roads):
    """Per-image figures of the rows: road as given, all else 0."""
    count = len(next(iter(roads.values())))
    blank = dict.fromkeys(FIGURES, 0.0)
    return {str(i): {row.replace("_", " "): blank | {"road": v[i]} for row, v in roads.items()} for i in range(count)}


def report_of(a, b, a_random, b_random):
    rng = np.random.default_rng(0)
    noisy = {"a": a, "b": b, "a, random weights": a_random, "b, random weights": b_random}
    noisy |= {"a, another picture": 0, "b, another picture": 0, CENTRE: 0.1, OCCLUSION: 2}
    roads = {row: (mean + 0.1 * rng.standard_normal(30)).tolist() for row, mean in noisy.items()}
    look = dict.fromkeys(("entropy", "patches", "gini", "hoyer", "top_tenth", UNTRAINED, OTHER, "empty"), 0.5)
    images = images_of(**roads, **{RANDOM: [0.0] * 30})
    report = summarise(images, [{"a": look, "b": look | {OTHER: float("nan")}}] * 30, ["a", "b"], "a", seed=0)
    facts = {"data": "d", "split": "val", "images": 30, "images_of_split": 40, "f": "f", "patches": "2x2", "steps": 4}
    facts |= {"f_of_the_picture": -1.0, "f_of_the_substrate_alone": -2.0}
    return report | {"facts": facts, "unavailable": {}}


def test_verdict_of_a_good_map():
    report = report_of(1, 0.5, 0, 0)
    assert report["verdict"]["ok"]
    assert report["verdict"]["text"].endswith("(a) is better than random order and random weights")
    assert report["verdict"]["best"] == "a"
    assert report["verdict"]["better_than"] == {control: ["a", "b"] for control in (RANDOM, CENTRE, UNTRAINED, OTHER)}
    assert list(report["ranking"])[:3] == [OCCLUSION, "a", "b"]
    text = table(report)
    assert "NO METHOD" not in text
    assert "FAILED" not in text
    assert "only" not in text
    assert report["ranking"]["b"]["looks"][OTHER] is None


def test_it_says_plainly_that_no_method_beats_random_order():
    report = report_of(-0.2, -0.3, 0, 0)
    assert not report["verdict"]["ok"]
    assert report["verdict"]["better_than"][RANDOM] == []
    text = table(report)
    assert "NO METHOD IS BETTER THAN RANDOM ORDER" in text
    assert "FAILED: the map that is shown by default (a) is not better than random order and random weights" in text


def test_a_map_no_better_than_with_random_weights_fails():
    report = report_of(1, 0.5, 1, 0)
    assert not report["verdict"]["ok"]
    assert report["verdict"]["better_than"][UNTRAINED] == ["b"]
    text = table(report)
    assert "FAILED: the map that is shown by default (a) is not better than random weights" in text
    assert "NO METHOD" not in text
