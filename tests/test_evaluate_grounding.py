"""Grounding of a whole captioner: what words name, what is counted, the verdict, and the command."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import CONF, TINY
from hydra import compose, initialize_config_dir
from PIL import Image
from test_evaluate import fails

from vitcap import run
from vitcap.captioner import Captioner
from vitcap.command import evaluate
from vitcap.data.instances import Annotated, CocoInstances, Instance, SceneInstances, open_instances
from vitcap.data.records import CaptionRecord
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.evaluation import grounding as module
from vitcap.evaluation.grounding_report import make_report
from vitcap.evaluation.grounding_table import LEGEND, picture, summary, table
from vitcap.evaluation.grounding_tally import FULL
from vitcap.evaluation.grounding_work import OTHER, RANDOM, Work
from vitcap.evaluation.objects import ObjectReader
from vitcap.metrics.bootstrap import resamples
from vitcap.record import AttentionRecord, View, Word
from vitcap.viz.bars import bars_and_tables
from vitcap.viz.style import colours


def item(shape: str, colour: str, box: tuple[float, float, float, float], size: str = "large") -> Instance:
    def pixels() -> np.ndarray:
        mask = np.zeros((64, 64), bool)
        x0, y0, x1, y1 = map(int, box)
        mask[y0:y1, x0 : (x0 + x1) // 2] = True  # the left half of the box
        return mask

    return Instance(shape, box, pixels, False, {"colour": colour, "size": size, "texture": "solid"})


RED, BLUE, STAR = (
    item("circle", "red", (0, 0, 16, 16), "small"),
    item("circle", "blue", (40, 40, 64, 64)),
    item("star", "red", (0, 48, 16, 64)),
)
SCENE = Annotated((64, 64), (RED, BLUE, STAR))
SCENES = SceneInstances(ShapesSource(train_size=1, val_size=8, test_size=1))


# what words name


@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("a small red circle", [("circle", (RED,))]),
        ("a blue circle and a circle", [("circle", (BLUE,)), ("circle", (RED, BLUE))]),
        ("two circles above a green star", [("circle", (RED, BLUE)), ("star", (STAR,))]),  # the nearest to what is said
        ("we see a circle that is large and solid", [("circle", (BLUE,))]),
        ("a large red circle", [("circle", (RED, BLUE))]),  # each agrees in one of two
        ("a purple cross", [("cross", ())]),
        ("a light background", []),
    ],
)
def test_attributes_choose_the_objects_that_are_meant(caption, named):
    found = ObjectReader(SCENES).named(caption.split(), SCENE)
    assert [(one.category, one.instances) for one in found] == named


def test_attributes_are_judged_only_where_they_are_true():
    one, two = ObjectReader(SCENES).named(["a", "large", "red", "circle", "and", "a", "red", "star"], SCENE)
    assert one.adjectives == ((1, (BLUE,)), (2, (RED,)))
    assert two.adjectives == ((6, (STAR,)),)


def test_function_words_are_no_part_of_names():
    reader = ObjectReader(SimpleNamespace(categories=("wine glass",), attributes=frozenset()))
    words = ["A", "glass", "of", "wine", "on", "the", "left"]
    named = reader.named(words, Annotated((9, 9), ()))
    assert [words[i] for i in reader.functions(words, named)] == ["A", "on", "the"]


# what is counted


def record(caption: str, peaks: dict[int, tuple[int, int]], **changed) -> AttentionRecord:
    """Over an 8 x 8 grid on 64 x 64 pixels, one layer and two heads: head 0 looks at one patch of each word, head 1
    evenly."""
    words = caption.split()
    heat = np.full((len(words), 1, 2, 8, 8), 1 / 64, dtype=np.float32)
    for at, cell in peaks.items():
        heat[at, 0, 0] = 0
        heat[at, 0, 0][cell] = 1
    given = {
        "words": tuple(Word(word, i, i + 1, 0.0) for i, word in enumerate(words)),
        "text": caption,
        "maps": {"attention": heat.reshape(len(words), 1, 2, 64)},
        "shown": View("attention"),
        "grid": (8, 8),
        "size": (64, 64),
        "window": (0.0, 0.0, 64.0, 64.0),
    }
    return AttentionRecord(**given | changed)


def caption_record(image_id: int, *captions: str) -> CaptionRecord:
    return CaptionRecord(image_id, lambda: Image.new("RGB", (64, 64)), captions)


def work(*given: tuple[str, dict[int, tuple[int, int]], tuple[str, ...]], **options) -> tuple[Work, dict]:
    views = {"attention": View("attention"), "attention head 0": View("attention", None, (0,))}
    made = Work(SCENES, views, **{"masks": False} | options)
    for number, (caption, peaks, references) in enumerate(given):
        blank = record(caption, {})
        made.add(caption_record(number, *references), SCENE, record(caption, peaks), blank)
    made.finish()
    facts = {"data": "shapes", "split": "val", "pictures": len(given), "protocol": "p", "regions": "boxes"}
    facts |= {"left_out": {}, "unavailable": {}}
    report = make_report(made.tally, made.captions, views=views, shown="attention head 0", seed=0, facts=facts)
    return made, report


GIVEN = (
    ("a small red circle", {3: (1, 1)}, ("a circle",)),  # on it
    ("a blue circle and a red star", {2: (1, 1), 6: (7, 0)}, ("a star",)),  # on the other circle; on the star
    ("a cross and a diamond", {}, ("a diamond",)),  # neither is there, but people told of one
)


def test_figures_of_words_worked_out_by_hand():
    made, report = work(*GIVEN)
    nouns = report["words"]["nouns"]
    areas = np.array([256, 576, 256]) / 4096
    assert nouns["attention head 0"]["words"] == 3
    assert nouns["attention head 0"]["correctness"]["value"] == pytest.approx(2 / 3)
    assert nouns["attention head 0"]["pointing"]["value"] == pytest.approx(2 / 3)
    assert nouns["attention head 0"]["lift"]["value"] == pytest.approx(2 / areas.sum())
    assert nouns["attention head 0"]["mean_lift"]["value"] == pytest.approx((2 / areas[0] + 0) / 3)
    assert nouns["attention"]["correctness"]["value"] == pytest.approx(((2 + areas.sum()) / 2) / 3)
    assert nouns["uniform"]["lift"]["value"] == pytest.approx(1)
    assert nouns["uniform"]["pointing"]["value"] == pytest.approx(areas.mean())
    assert nouns[RANDOM + "attention"]["correctness"]["value"] == pytest.approx(areas.mean())
    # One patch of 8 x 8 in a box of 16 x 16.
    assert nouns["attention head 0"]["iou"]["value"] == pytest.approx((0.25 + 0 + 0.25) / 3)
    assert made.counts["names of objects that are not in the picture"] == 2
    attributes = report["words"]["attributes"]["uniform"]
    assert attributes["words"] == 4  # small, red; blue; red
    functions = report["words"]["function words"]["attention"]
    assert functions["words"] == 7
    assert functions["lift"]["value"] == pytest.approx(1)


def test_peaks_count_where_the_cells_are():
    peaks = {1: (1, 1)}  # of "circle": at (12, 12), in the box of 16 x 16, and moved by a cell at (20, 12), beside it
    results = []
    for cells in (None, (8.0, 0.0, 72.0, 64.0)):
        made = Work(SCENES, {"attention": View("attention", None, (0,))}, masks=False)
        found = record("red circle", peaks, cells=cells)
        made.add(caption_record(0, "a circle"), SCENE, found, record("red circle", {}))
        (_, _, figures), *_ = made.tally.words["nouns", "attention"]
        results.append(dict(zip(FULL, figures, strict=True)))
    for name, values in {"pointing": [1, 0], "correctness": [1, 0], "iou": [0.25, 0]}.items():
        assert [result[name] for result in results] == values, name
    assert results[0]["rank_accuracy"] - results[1]["rank_accuracy"] == pytest.approx(64 / 256)
    assert results[0]["area"] == results[1]["area"] == 256 / 4096


def test_another_picture_lends_its_maps_in_turn():
    made, _ = work(*GIVEN)
    rows = made.tally.words["nouns", OTHER + "attention head 0"]
    figures = {(picture, category): values[0] for picture, category, values in rows}
    # The second picture is judged by the first one's noun, a circle at (1, 1); the first by the second one's first.
    assert figures == {(1, "circle"): 0, (1, "star"): 0, (0, "circle"): 1}


def test_other_groups_borrow_the_maps_of_their_own_words():
    # Cells up to (1, 1) are on the red circle, (6, 0) and (7, 1) on the star, (3, 3) on nothing.
    made, report = work(
        ("a small red circle", {0: (0, 0), 1: (3, 3), 2: (7, 1), 3: (1, 1)}, ()),
        ("a cross", {1: (3, 3)}, ()),
        ("a blue circle and a red star", {0: (3, 3), 1: (6, 0), 2: (1, 1), 4: (0, 1), 5: (1, 0)}, ()),
    )

    def lent(group):
        rows = made.tally.words[group, OTHER + "attention head 0"]
        return sorted((picture, word, figures[0]) for picture, word, figures in rows)

    # The first of a group by the first that was in the last picture with such words, and so on: "blue" by "small".
    assert lent("attributes") == [(0, "red", 1), (0, "small", 0), (2, "blue", 0), (2, "red", 1)]
    assert lent("any object") == [(0, "circle", 1), (2, "circle", 1), (2, "star", 1)]
    even = (256 + 576 + 256) / 4096  # the map of the "a" of "a cross"
    assert lent("function words") == [(0, "a", 0), (1, "a", 1), (2, "a", even), (2, "a", even), (2, "and", even)]
    for group in ("nouns", "any object", "attributes", "function words"):
        borrowed, own = (made.tally.words[group, row] for row in (OTHER + "attention head 0", "attention head 0"))
        assert sorted((p, w, f[1]) for p, w, f in borrowed) == sorted((p, w, f[1]) for p, w, f in own), "same objects"
        assert OTHER + "attention" in report["words"][group]


def test_intervals_of_categories_boxes_and_mentions_are_those_of_drawn_pictures():
    given = [GIVEN[i % 3] for i in range(30)]
    made, report = work(*given)
    drawn, shown = resamples(30, seed=0), "attention head 0"

    def drawn_means(words, values):
        """The mean over the words of the drawn pictures, of each draw."""
        pictures = [picture for picture, _, _ in words]
        return np.array([np.mean(np.repeat(values, weights[pictures])) for weights in drawn])

    def is_interval(figure, values):
        assert (figure["low"], figure["high"]) == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))

    for row in (shown, "uniform", "centre", OTHER + shown, RANDOM + shown):
        words = made.tally.words["nouns", row]
        circles, stars = ([one for one in words if one[1] == name] for name in ("circle", "star"))
        figures = {name: np.array([f[k] for _, _, f in circles]) for k, name in enumerate(FULL)}
        found = report["categories"]["circle"]["maps"][row]
        for name in ("correctness", "pointing", "iou", "box_hit"):
            is_interval(found[name], drawn_means(circles, figures[name]))
        means = [drawn_means(circles, figures[name]) for name in ("correctness", "area")]
        is_interval(found["lift"], means[0] / means[1])
        hits, hits_of_circles, hits_of_stars = (
            drawn_means(own, [f[FULL.index("iou")] > 0.5 for _, _, f in own]) for own in (words, circles, stars)
        )
        is_interval(report["box_accuracy"][row]["by_word"], hits)
        is_interval(report["box_accuracy"][row]["by_class"], (hits_of_circles + hits_of_stars) / 2)
        told = report["hallucination"][row]
        is_interval(
            told["grounded_given_present"], drawn_means(words, [f[FULL.index("pointing")] for _, _, f in words])
        )
        # Pictures 2, 5, ... mention what is not there once, and twice anything; so do 1, 4, ...; the others once.
        third = drawn[:, 2::3].sum(1)
        is_interval(told["CHAIR_s"], third / 30)
        is_interval(told["CHAIR_i"], third / (drawn[:, 0::3].sum(1) + 2 * drawn[:, 1::3].sum(1) + 2 * third))
    even = report["categories"]["circle"]["maps"]["uniform"]["lift"]
    assert list(even.values()) == pytest.approx([1, 1, 1]), "a constant"
    star, cross = (report["categories"][name] for name in ("star", "cross"))
    assert (star["pictures"], star["maps"][shown]["pointing"]) == (10, {"value": 1, "low": 1, "high": 1})
    assert cross["CHAIR_i"] == {"value": 1, "low": 1, "high": 1}
    fewer = work(*given[:27])[1]["categories"]["star"]
    assert (fewer["pictures"], fewer["maps"][shown]["pointing"]) == (9, {"value": 1, "low": None, "high": None})


def test_the_table_has_categories_and_mentions_beside_their_controls():
    _, report = work(*[GIVEN[i % 3] for i in range(30)])
    blocks = [block.splitlines() for block in table(report).split("\n\n")]
    (lines,) = (block for block in blocks if block[0].startswith("categories under attention head 0"))
    assert "at least 10 pictures" in lines[1]
    assert max(map(len, lines)) <= 120
    lift = report["categories"]["circle"]["maps"]["attention head 0"]["lift"]
    own = f"{lift['value']:.2f} [{lift['low']:.2f}, {lift['high']:.2f}]"
    (circle,) = (line for line in lines if line.startswith("  circle"))
    pointing, boxes = ["50.0", "10.2", "50.0"], ["12.5", "10.2", "10.2"]  # own, uniform, random weights
    assert circle.split() == ["circle", "20", "0", *own.split(), "1.00", "[1.00,", "1.00]", *pointing, *boxes]
    (lines,) = (block for block in blocks if block[0].startswith("objects that captions mention: 50; absent 10"))
    assert "CHAIR_i 20.0 [" in lines[0]
    (uniform,) = (line for line in lines if line.startswith("  uniform"))
    assert uniform.split()[1:4] == ["2.7", "27.3", "8.9"]  # 10 x (256 + 576 + 256) / 4096 of 30


def test_the_summary_has_the_shown_view_its_controls_and_the_other_methods():
    _, report = work(*GIVEN)
    lines = summary(report, "runs/x").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("nouns, against the objects that they name ("))
    assert lines[head + 1].split() == ["lift", "on", "object", "pointing", "box", "IoU"]
    rows = [line for line in lines[head + 2 :] if line.startswith("  ")]
    shown, controls = report["verdict"]["shown"], list(report["verdict"]["gain_over"])
    wanted = [shown, *controls, "attention"]
    for row, name in zip(rows, wanted, strict=False):
        assert row.startswith(f"  {name}  ")
    figures = report["words"]["nouns"][shown]
    numbers = [f"{100 * figures[name]['value']:.1f}" for name in ("correctness", "pointing", "iou")]
    assert rows[0].split()[-3:] == numbers
    explained = rows[len(wanted) :]
    assert [row.split("  ")[1] for row in explained] == ["lift", "on object", "pointing", "box IoU"]
    assert report["verdict"]["text"] in lines
    assert lines[-1].endswith("runs/x/grounding.txt")


def test_a_single_picture_has_no_other():
    made, report = work(GIVEN[0])
    assert ("nouns", OTHER + "attention") not in made.tally.words
    assert OTHER + "attention head 0" not in report["verdict"]["gain_over"]


def test_layers_and_heads_hallucination_and_categories():
    _, report = work(*GIVEN)
    lift = np.array(report["layers_heads"]["attention"]["nouns"]["lift"])
    assert lift.shape == (2, 3)  # one layer and two heads, and their means
    assert lift[0, 0] == pytest.approx(report["words"]["nouns"]["attention head 0"]["lift"]["value"])
    assert lift[0, 1] == pytest.approx(1)
    assert lift[1, 2] == pytest.approx(report["words"]["nouns"]["attention"]["lift"]["value"])
    best = report["best"][0]
    assert (best["method"], best["head"]) == ("attention", 0)
    told = report["hallucination"]["attention head 0"]
    assert [told[state] for state in ("grounded", "ungrounded", "absent", "told")] == [2, 1, 1, 1]
    rows = report["hallucination"]  # beside its controls; evenly spread maps of random weights peak in the first patch
    maps = {p + v for p in ("", RANDOM, OTHER) for v in ("attention", "attention head 0")}
    assert set(rows) == {"uniform", "centre"} | maps
    assert rows["uniform"]["grounded"] == pytest.approx((256 + 576 + 256) / 4096), "the chance that equal peaks hit"
    assert (rows[RANDOM + "attention"]["grounded"], rows[OTHER + "attention head 0"]["grounded"]) == (1, 1)
    assert told["CHAIR_i"]["value"] == pytest.approx(0.2)
    assert told["CHAIR_s"]["value"] == pytest.approx(1 / 3)
    circle = report["categories"]["circle"]
    assert (circle["words"], circle["pictures"], circle["CHAIR_i"]["value"]) == (2, 2, 0)
    own, blank, even = (circle["maps"][p] for p in ("attention head 0", RANDOM + "attention head 0", "uniform"))
    assert (own["pointing"]["value"], own["grounded"], own["ungrounded"]) == (0.5, 1, 1)
    assert own["lift"]["value"] == pytest.approx(1 / (256 + 576) * 4096)
    assert blank["lift"]["value"] == even["lift"]["value"] == pytest.approx(1)
    assert even["pointing"]["value"] == pytest.approx((256 + 576) / 2 / 4096)
    assert own["lift"]["low"] is own["lift"]["high"] is None, "two pictures are too few"
    none = {"low": None, "high": None}
    assert report["categories"]["cross"] == {
        "words": 0,
        "pictures": 0,
        "mentions": 1,
        "absent": 1,
        "told": 0,
        "maps": {},
        "CHAIR_i": {"value": 1} | none,
    }
    json.dumps(report, allow_nan=False)
    text = table(report)
    assert "attention head 0" in text
    assert "cross" in text
    pixels = np.asarray(picture(report))
    assert (pixels == (0, 114, 178)).all(-1).any()


def test_f1_of_boxes():
    # A map that fills each named object's box exactly.
    made = Work(SCENES, {"attention": View("attention")}, masks=False)
    caption = "a small red circle and a blue circle and a cross"
    found = record(caption, {})
    heat = np.zeros((len(caption.split()), 1, 2, 8, 8), np.float32)
    heat[3, ..., :2, :2] = heat[7, ..., 5:, 5:] = heat[10] = 1
    found = record(caption, {}, maps={"attention": heat.reshape(-1, 1, 2, 64)})
    made.add(caption_record(1, "a circle and a diamond"), SCENE, found, record(caption, {}))
    facts = {"left_out": {}}
    f1 = make_report(made.tally, made.captions, views=made.views, shown="attention", seed=0, facts=facts)["f1"]
    # coco: circle and star are wanted; circle named and found, star not named, cross named in vain.
    coco = {name: figure["value"] for name, figure in f1["attention"]["coco"].items() if name != "classes"}
    assert coco["precision_all"] == coco["recall_all"] == coco["F1_all"] == 0.5
    assert coco["F1_all_per_sentence"] == pytest.approx(2 * (2 / 3 * 1 / 2) / (2 / 3 + 1 / 2))
    assert coco["F1_loc_per_sentence"] == 1
    # named: only the circle is wanted.
    assert f1["attention"]["named"]["F1_all"]["value"] == 1
    assert f1["attention"]["named"]["classes"] == 1


def test_masks_in_place_of_boxes():
    _, report = work(*GIVEN, masks=True)
    assert report["words"]["nouns"]["uniform"]["area"]["value"] == pytest.approx((256 + 576 + 256) / 2 / 4096 / 3)


def test_what_the_model_never_saw_is_left_out():
    made = Work(SCENES, {"attention": View("attention")}, masks=False)
    found = record("a red circle and a blue circle", {}, window=(0.0, 0.0, 32.0, 32.0))
    made.add(caption_record(1, "a circle"), SCENE, found, found)
    assert made.nouns == 1
    assert made.counts["names of objects outside the model's view"] == 1
    ((_, _, figures),) = made.tally.words["nouns", "uniform"]
    assert figures[1] == pytest.approx(256 / 1024), "area of what was seen"
    with pytest.raises(ValueError, match="image id 7: the picture has 64x32 pixels, its annotation is of 64x64"):
        made.add(caption_record(7, "a circle"), SCENE, record("a circle", {}, size=(64, 32)), found)


def test_the_verdict_fails_where_training_changed_nothing():
    many = [GIVEN[0]] * 12
    _, report = work(*many)
    assert report["verdict"]["ok"]
    assert report["verdict"]["better_than"] == ["uniform", "centre", RANDOM + "attention head 0"]
    _, report = work(*[(caption, {}, told) for caption, _, told in many])
    assert not report["verdict"]["ok"]
    assert "NO BETTER" in report["verdict"]["text"]
    assert report["verdict"]["text"] in table(report)


def test_the_view_that_is_chosen_is_the_best_layer_unless_training_changed_nothing(monkeypatch, tmp_path):
    def chosen(*given):
        def evaluated(door, data, split, **options):
            if not given:
                raise ValueError("no caption names an object")
            assert (split, options["methods"], options["limit"]) == ("val", ("attention",), 200)
            return "", work(*given)[1]

        monkeypatch.setattr(module, "evaluate_grounding", evaluated)
        return module.choose_view(None, None, "val", out=tmp_path, search=None)

    assert chosen(*[GIVEN[0]] * 12) == View("attention", (0,))
    assert chosen(*[(caption, {}, told) for caption, _, told in [GIVEN[0]] * 12]) is None
    assert chosen() is None


def test_training_keeps_the_view_in_the_model_file(monkeypatch, tmp_path):
    def choose(door, data, split, **options):
        assert (split, options["out"]) == ("val", tmp_path / "run")
        return View("attention", (-1,), (1,))

    monkeypatch.setattr(run, "choose_view", choose)
    short = [*TINY, "trainer.max_steps=1", "trainer.accelerator=cpu", f"out={tmp_path / 'run'}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        run.train(compose("config", overrides=short))
    assert Captioner.load(tmp_path / "run").view == View("attention", (-1,), (1,))


# where objects are


def test_scenes_and_their_export_tell_the_same(tmp_path):
    source = ShapesSource(train_size=1, val_size=6, test_size=1)
    export_coco(source, tmp_path, "val")
    drawn, read = SceneInstances(source), CocoInstances(tmp_path / "annotations" / "instances_val.json")
    assert read.categories == drawn.categories
    assert read.attributes <= drawn.attributes
    for entry in source.split("val"):
        ours, theirs = drawn.find(entry.image_id), read.find(entry.image_id)
        assert ours.size == theirs.size
        for a, b in zip(ours.instances, theirs.instances, strict=True):
            assert (a.category, a.box, a.attributes) == (b.category, b.box, b.attributes)
            assert (a.mask() == b.mask()).all()
    assert read.find(5) is None
    beside = SimpleNamespace(name="coco", annotations={"val": tmp_path / "annotations" / "captions_val.json"})
    assert open_instances(beside, "val").named == "instances_val.json"


def test_coco_masks_are_pycocotools(data_root):
    path = data_root / "coco_mini" / "annotations" / "instances_train2017.json"
    coco = pytest.importorskip("pycocotools.coco").COCO(str(path))
    found = CocoInstances(path)
    crowds = 0
    for image_id in coco.getImgIds()[:12]:
        rows = coco.loadAnns(coco.getAnnIds(image_id))
        for row, one in zip(rows, found.find(image_id).instances, strict=True):
            assert (one.mask() == coco.annToMask(row).astype(bool)).all()
            assert one.box == pytest.approx((*row["bbox"][:2], *np.add(row["bbox"][:2], row["bbox"][2:])))
            crowds += one.crowd
    assert crowds or any(i.crowd for image in coco.getImgIds() for i in found.find(image).instances)


def test_words_of_peoples_captions_are_mostly_annotated(data_root):
    root = data_root / "coco_mini" / "annotations"
    found = CocoInstances(root / "instances_train2017.json")
    rows = json.loads((root / "captions_train2017.json").read_text())["annotations"]
    reader = ObjectReader(found)
    mentions = [(c, row["image_id"]) for row in rows for c in reader.categories([row["caption"]])]
    right = sum(c in {i.category for i in found.find(id_).instances} for c, id_ in mentions)
    assert len(mentions) > 400
    assert right / len(mentions) > 0.94


def test_wrong_instance_files_are_named(tmp_path):
    bad = tmp_path / "bad.json"
    image, category = {"id": 1, "width": 4, "height": 4}, {"id": 1, "name": "dog"}
    for content, message in (
        ([], "no COCO instance file"),
        ({"images": [{}], "annotations": [], "categories": []}, "an image without id"),
        (
            {"images": [image], "annotations": [{"image_id": 1, "caption": "x"}], "categories": [category]},
            "captions file",
        ),
        (
            {"images": [image], "annotations": [{"image_id": 2, "category_id": 1, "bbox": [0, 0, 1, 1]}]}
            | {"categories": [category]},
            "annotation 0 lacks",
        ),
        *(
            (
                {"images": [image], "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, number]}]}
                | {"categories": [category]},
                "annotation 0 lacks",
            )
            for number in (float("nan"), float("inf"))
        ),
        ({"images": [image | {"width": float("inf")}], "annotations": [], "categories": []}, "an image without id"),
    ):
        bad.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message) as error:
            CocoInstances(bad)
        assert str(bad) in str(error.value)
    with pytest.raises(FileNotFoundError, match="instances=FILE"):
        open_instances(
            SimpleNamespace(name="coco", root=tmp_path, annotations={"val": tmp_path / "captions_val.json"}), "val"
        )
    with pytest.raises(ValueError, match="data=flickr does not say: give instances=FILE"):
        open_instances(SimpleNamespace(name="flickr"), "val")


# the command


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("grounded") / "run"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=[*TINY, "trainer.max_epochs=1", "trainer.accelerator=cpu", f"out={out}"])
    run.train(cfg)
    return out


def test_one_command_reports_all_methods_beside_their_baselines(trained, config, tmp_path, capsys):
    # Hardly trained: the verdict is what it is, and the files are there in any case.
    out = tmp_path / "e"
    cfg = config(
        f"checkpoint={trained}",
        "data.source.val_size=12",
        "ground=true",
        "protocol=given",
        "limit=5",
        f"out={out}",
        name="evaluate",
    )
    with suppress(ValueError):
        evaluate(cfg)
    report = json.loads((out / "grounding.json").read_text())
    rows = report["words"]["nouns"]
    methods = ["attention", "rollout", "relevance", "grad-cam"]
    assert list(rows)[:2] == ["uniform", "centre"]
    assert set(rows) == {"uniform", "centre", *(p + m for m in methods for p in ("", RANDOM, OTHER))}
    assert len({row["words"] for row in rows.values()}) == 1
    assert report["facts"]["pictures"] == 5
    for row in rows.values():
        for name, figure in row.items():
            if name != "words" and figure["low"] is not None:
                assert figure["low"] <= figure["value"] + 1e-9
                assert figure["value"] - 1e-9 <= figure["high"]
    told = capsys.readouterr().out
    assert f"{out}/grounding.txt" in told
    assert re.search("\n  pointing +% of words whose map is highest on the object", told)  # the columns are explained
    assert len(told.splitlines()) < 40
    whole = (out / "grounding.txt").read_text()
    assert all(f"\n  {name:<9}  {what}\n" in whole for name, what in LEGEND.items())
    assert Image.open(out / "grounding.png").size[0] > 100


def test_a_map_that_training_did_not_change_ends_in_one_line_and_status_1(
    trained, config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(module, "random_weights", lambda door, seed: door)
    given = [f"checkpoint={trained}", "data.source.val_size=12", "ground=true", "methods=[attention]", "limit=3"]
    line = fails(config(*given, "protocol=given", f"out={tmp_path / 'e'}", name="evaluate"), capsys)
    assert "the trained map (attention) is NO BETTER on nouns than that of random weights" in line
    report = json.loads((tmp_path / "e" / "grounding.json").read_text())
    assert report["verdict"]["ok"] is False
    assert report["verdict"]["gain_over"][RANDOM + "attention"]["value"] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["limit=3"], "limit=3 goes with ground=true or faithful=true"),
        (["ground=maybe"], "ground=maybe: true or false is wanted"),
        (["faithful=true", "instances=i.json"], "instances=i.json goes with ground=true"),
        (["ground=true", "meteor=true"], "meteor= scores captions, and ground=true asks about maps"),
        (["ground=true", "protocol=both"], "protocol=both: choose generated or given"),
        (["ground=true", "regions=dots"], "regions=dots: choose boxes or masks"),
        (["ground=true", "methods=[lrp]"], "'lrp': there is no such method"),
        (["ground=true", "limit=0"], "limit=0"),
        (["ground=true", "instances=none.json"], "none.json: no such file"),
    ],
)
def test_options_that_are_wrong_are_one_line(given, message, trained, config, tmp_path, capsys):
    assert message in fails(config(f"checkpoint={trained}", *given, f"out={tmp_path / 'e'}", name="evaluate"), capsys)
    line = fails(config("results=r.json", "ground=true", name="evaluate"), capsys)
    assert "ground=True goes with checkpoint=RUN" in line


def test_bars_and_cells_share_one_scale():
    page = np.asarray(bars_and_tables("t", {"a": (1.0, 0.5, 2.0), "b": (4.0, None, None)}, {"c": [[8.0, 0.0]]}))
    blue = (page == (0, 114, 178)).all(-1).sum(1)
    lengths = sorted(set(blue[blue > 0]), reverse=True)
    assert lengths[0] > 3.5 * lengths[-1]
    assert (page == colours(1.0).round().astype(np.uint8)).all(-1).any(), "the largest value has the last colour"
    for bad in (-1.0, np.nan):
        with pytest.raises(ValueError, match="finite values of 0 or more"):
            bars_and_tables("t", {"a": (bad, None, None)}, {})


def test_pictures_that_cannot_be_read_are_the_reason_that_is_told(trained, tmp_path):
    record = CaptionRecord(3, tmp_path / "none.png", ("a circle",))
    source = SimpleNamespace(name="shapes", annotations={})
    data = SimpleNamespace(source=source, records=lambda split: [record], on_bad="skip", bad={"val": {}})
    known = {"images": [{"id": 3, "width": 4, "height": 4}], "categories": [], "annotations": []}
    (tmp_path / "i.json").write_text(json.dumps(known))
    with pytest.raises(ValueError, match="split val: none of 1 pictures can be read"):
        module.evaluate_grounding(Captioner.load(trained), data, "val", out=tmp_path, instances=tmp_path / "i.json")
    assert "does not exist" in data.bad["val"][3]


@pytest.mark.parametrize("question", ["ground", "faithful"])
def test_several_processes_are_refused_before_anything_is_loaded(question, config, tmp_path, monkeypatch):
    from vitcap import processes

    monkeypatch.setattr(processes, "share", lambda: (1, 2))
    with pytest.raises(ValueError, match=r"run in one process, and 2 were started: start it alone"):
        evaluate(config("checkpoint=nothing", f"{question}=true", f"out={tmp_path / 'e'}", name="evaluate"))
    assert not (tmp_path / "e").exists()
