"""Grounding of a whole captioner: what words name, what is counted, the verdict, and the command."""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import CONF, TINY
from hydra import compose, initialize_config_dir
from PIL import Image
from test_evaluate import fails

from vitcap import run
from vitcap.command import evaluate
from vitcap.data.instances import Annotated, CocoInstances, Instance, SceneInstances, open_instances
from vitcap.data.records import CaptionRecord
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.evaluation import grounding as module
from vitcap.evaluation.grounding_report import make_report
from vitcap.evaluation.grounding_table import picture, table
from vitcap.evaluation.grounding_work import OTHER, RANDOM, Work
from vitcap.evaluation.objects import ObjectReader
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


def test_another_picture_lends_its_maps_in_turn():
    made, _ = work(*GIVEN)
    rows = made.tally.words["nouns", OTHER + "attention head 0"]
    figures = {(picture, category): values[0] for picture, category, values in rows}
    # The second picture is judged by the first one's noun, a circle at (1, 1); the first by the second one's first.
    assert figures == {(1, "circle"): 0, (1, "star"): 0, (0, "circle"): 1}


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
    assert told["CHAIR_i"] == pytest.approx(0.2)
    assert told["CHAIR_s"] == pytest.approx(1 / 3)
    circle = report["categories"]["circle"]
    assert (circle["words"], circle["pointing"], circle["CHAIR_i"]) == (2, 0.5, 0)
    assert report["categories"]["cross"] == {"words": 0} | {
        "mentions": 1,
        "grounded": 0,
        "ungrounded": 0,
        "absent": 1,
        "told": 0,
        "grounded_given_present": None,
        "present_and_grounded": 0,
        "CHAIR_i": 1,
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
    assert (out / "grounding.txt").read_text().strip() in capsys.readouterr().out
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
