"""Synthetic scenes: drawing, captions that are true, a reader that catches false ones, export in COCO's format."""

import itertools
import json
import math
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from vitcap.data.scene_drawing import box, draw, mask
from vitcap.data.scene_language import PLURALS, describe
from vitcap.data.scene_truth import VOCABULARY, CaptionError, check, read
from vitcap.data.scenes import COLOURS, HELD_OUT, SHAPES, SIZES, TEXTURES, Background, Scene, SceneObject, sample_scene
from vitcap.data.shapes import ShapesSource

GREY = Background("plain", "light", (200, 200, 200), (200, 200, 200), 0.0, 0)


def scenes(count: int, *, seed: int = 0) -> list[Scene]:
    return [sample_scene(Random(f"{seed}/{i}"), held_out=i % 4 == 3) for i in range(count)]


def small_scene(*objects: SceneObject, tone: str = "light") -> Scene:
    return Scene(objects, Background("plain", tone, (200,) * 3, (200,) * 3, 0.0, 0), twins=False, variant=0)


RED_CIRCLE = SceneObject("circle", "red", "large", "striped", 0.25, 0.30, 0.19)
BLUE_SQUARE = SceneObject("square", "blue", "small", "solid", 0.75, 0.35, 0.115)
GREEN_CROSS = SceneObject("cross", "green", "small", "dotted", 0.30, 0.80, 0.115)
GREEN_CROSS_2 = SceneObject("cross", "green", "small", "dotted", 0.75, 0.80, 0.115)


# --- scenes and pictures ---------------------------------------------------------------------------------------------


def test_scenes_follow_the_documented_rules():
    counts = [0] * 5
    for i, scene in enumerate(scenes(3000)):
        objects = scene.objects
        counts[len(objects)] += 1
        pairs = [(o.colour, o.shape) for o in objects]
        assert any(p in HELD_OUT for p in pairs) == (i % 4 == 3) == scene.held_out
        assert len(set(pairs)) == len(pairs) - scene.twins
        for o in objects:
            assert o.radius == SIZES[o.size]
            assert o.radius <= min(o.x, o.y, 1 - o.x, 1 - o.y)
        sizes = [o.size for o in objects]
        if len(objects) > 2:
            assert sizes == ["large"] + ["small"] * (len(objects) - 1)
            assert [o.x for o in objects[1:]] == sorted(o.x for o in objects[1:])
        elif len(objects) == 2 and sizes[0] == sizes[1]:
            a, b = objects
            assert (a.x < b.x) if abs(a.x - b.x) > abs(a.y - b.y) else (a.y < b.y)
        elif len(objects) == 2:
            assert sizes == ["large", "small"]
    assert np.allclose(np.array(counts[1:]) / 3000, [0.30, 0.45, 0.15, 0.10], atol=0.03)
    assert SIZES["large"] > 1.4 * SIZES["small"]


def test_every_colour_and_shape_is_seen_with_others():
    assert len({c for c, _ in HELD_OUT}) == len(HELD_OUT) == len({s for _, s in HELD_OUT})
    assert len(HELD_OUT) / (len(COLOURS) * len(SHAPES)) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("size", [64, 224])
def test_masks_are_apart_and_boxes_are_tight(size):
    for scene in scenes(150):
        masks = [mask(o, size) for o in scene.objects]
        assert np.sum(masks, 0).max() == 1
        for o, m in zip(scene.objects, masks, strict=True):
            x, y, w, h = box(o, size)
            assert m[y : y + h, x : x + w].sum() == m.sum() > 0
            assert m[y].any()
            assert m[y + h - 1].any()
            assert m[:, x].any()
            assert m[:, x + w - 1].any()
            assert min(x, y, size - x - w, size - y - h) >= 0
            assert abs(x + w / 2 - o.x * size) <= 1.5
            assert max(w, h) <= 2 * o.radius * size + 2


@pytest.mark.parametrize("shape", SHAPES)
def test_mask_area_and_colour(shape):
    """Areas by the geometry of each outline; colour of the pixels inside and outside the mask."""
    size, radius = 224, 0.2
    item = SceneObject(shape, "blue", "large", "solid", 0.5, 0.5, radius)
    unit = {
        "circle": math.pi * 0.95**2,
        "square": 1.68**2,
        "triangle": 0.5 * 1.96 * 1.82,
        "star": 5 * 1.04 * 0.46 * math.sin(math.pi / 5),
        "cross": 2 * 1.92 * 0.68 - 0.68**2,
        "diamond": 2 * 0.76,
    }[shape]
    inside = mask(item, size)
    assert inside.sum() == pytest.approx(unit * (radius * size) ** 2, rel=0.03)
    pixels = np.asarray(draw(Scene((item,), GREY, False, 0), size)).astype(int)
    steps = range(-2, 3)  # pixels that the antialiased border may reach further
    grown = np.pad(inside, 2)
    grown = np.any([np.roll(grown, (y, x), (0, 1)) for y in steps for x in steps], 0)[2:-2, 2:-2]
    assert (pixels[~grown] == 200).all()
    assert not (pixels[inside] == 200).all(-1).any()
    blue = (pixels == COLOURS["blue"]).all(-1)
    assert not (blue & ~inside).any()
    assert blue.sum() > 0.4 * inside.sum()


def test_textures_differ_and_keep_the_silhouette():
    drawn = {}
    for texture in TEXTURES:
        item = SceneObject("square", "red", "small", texture, 0.5, 0.5, 0.115)
        pixels = np.asarray(draw(Scene((item,), GREY, False, 0), 64)).astype(int)
        drawn[texture] = pixels, mask(item, 64)
    assert all((drawn[t][1] == drawn["solid"][1]).all() for t in TEXTURES)
    white = {t: (p.min(-1) > 205).sum() for t, (p, _) in drawn.items()}
    assert white["solid"] == 0
    assert white["striped"] > 10
    assert white["dotted"] >= 4
    assert np.abs(drawn["striped"][0] - drawn["dotted"][0]).sum() > 2000


def test_background_tone_is_what_the_caption_says():
    for scene in scenes(300):
        pixels = np.asarray(draw(scene, 64)).mean(-1)
        outside = ~np.any([mask(o, 64) for o in scene.objects], 0)
        assert (pixels[outside].mean() > 128) == (scene.background.tone == "light")


def test_drawing_is_fast():
    todo = scenes(300)
    for scene in todo:
        draw(scene, 64)
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        for scene in todo:
            draw(scene, 64)
        best = min(best, (time.process_time() - start) / len(todo))
    assert best < 0.6e-3, f"{best * 1e3:.2f} ms a scene"


# --- captions and their truth ----------------------------------------------------------------------------------------


def test_every_caption_is_true_and_together_they_name_everything():
    words, lengths, covered = set(), [], []
    for scene in scenes(2500):
        captions = describe(scene)
        assert len(set(captions)) == 5
        named = set()
        for caption in captions:
            truth = check(scene, caption)
            assert truth.ok, (caption, truth)
            assert truth.claims == truth.true_claims >= 2
            assert any(c in caption for c in COLOURS)
            words |= set(caption.split())
            lengths.append(len(caption.split()))
            statement = read(caption)
            named |= {o for o in scene.objects for p in statement.phrases if p.matches(o)}
            if len(scene.objects) <= 2:
                covered.append(truth.coverage)
        assert named == set(scene.objects)
    assert words == VOCABULARY
    assert 50 <= len(words) <= 80
    assert min(lengths) >= 5
    assert max(lengths) <= 16
    assert np.mean(np.array(covered) == 1) > 0.85


def render(attributes: dict[str, str], *, count: int = 1) -> str:
    words = [attributes[k] for k in ("size", "texture", "colour") if k in attributes]
    words.append(attributes["shape"] if count == 1 else PLURALS[attributes["shape"]])
    article = ("an" if words[0][0] in "aeiou" else "a") if count == 1 else ("", "", "two", "three", "four")[count]
    return " ".join([article, *words])


def fits(attributes: dict[str, str], item: SceneObject) -> bool:
    return all(getattr(item, k) == v for k, v in attributes.items())


def bearing_within_60_degrees(name: str, a: SceneObject, b: SceneObject) -> bool:
    straight = {"left of": 180, "right of": 0, "above": 90, "below": -90}[name]
    angle = math.degrees(math.atan2(b.y - a.y, a.x - b.x))
    turned = abs((angle - straight + 180) % 360 - 180)
    return turned <= 60 and math.dist((a.x, a.y), (b.x, b.y)) * math.cos(math.radians(turned)) >= 0.1


def random_description(rng: Random, scene: Scene) -> dict[str, str]:
    """Attributes of a random object, some left out, each changed with some probability."""
    item = rng.choice(scene.objects)
    values = {"size": list(SIZES), "texture": TEXTURES, "colour": list(COLOURS), "shape": SHAPES}
    kept = {k: getattr(item, k) for k in values if k == "shape" or rng.random() < 0.6}
    return {k: rng.choice(values[k]) if rng.random() < 0.12 else v for k, v in kept.items()}


def test_reader_agrees_with_brute_force_on_random_claims():
    """Random one- to three-phrase claims, many of them false: judged by trying all assignments."""
    rng = Random(1)
    outcomes = {True: 0, False: 0}
    for scene in scenes(4000, seed=1):
        n = rng.choice((1, 2, 2, 3))
        parts = [random_description(rng, scene) for _ in range(n)]
        names = [rng.choice(("left of", "right of", "above", "below", "and")) for _ in range(n - 1)]
        shared = n == 3 and names[1] != "and" and rng.random() < 0.5
        caption = render(parts[0])
        relations = []
        for i, name in enumerate(names):
            caption += (" and " if i and shared else " ") + f"{name} {render(parts[i + 1])}"
            if name != "and":
                start = 0 if i and shared and names[0] != "and" else i
                relations.append((start, name, i + 1))
        expected = any(
            all(fits(p, o) for p, o in zip(parts, chosen, strict=True))
            and all(bearing_within_60_degrees(name, chosen[i], chosen[j]) for i, name, j in relations)
            for chosen in itertools.permutations(scene.objects, n)
        )
        truth = check(scene, caption)
        assert truth.ok == expected, (caption, scene.objects, truth)
        assert (truth.true_claims == truth.claims) == expected == (not truth.problems)
        outcomes[expected] += 1
    assert min(outcomes.values()) > 500, outcomes


def test_reader_agrees_with_brute_force_on_counts():
    rng = Random(2)
    outcomes = {True: 0, False: 0}
    for scene in [s for s in scenes(3000, seed=2) if s.twins or len(s.objects) == 4]:
        description = random_description(rng, scene)
        count = rng.choice((2, 2, 3))
        expected = sum(fits(description, o) for o in scene.objects) == count
        assert check(scene, f"there are {render(description, count=count)}").ok == expected
        outcomes[expected] += 1
        total = rng.choice((2, 3, 4))
        word = ("two", "three", "four")[total - 2]
        assert check(scene, f"{word} objects").ok == (total == len(scene.objects))
    assert min(outcomes.values()) > 50, outcomes


WORD_FAMILIES = [
    list(COLOURS), list(SHAPES), list(PLURALS.values()), list(SIZES), list(TEXTURES), ["light", "dark"],
    ["left", "right"], ["above", "below"], ["two", "three", "four"],
]  # fmt: skip


def test_one_changed_word_is_caught():
    """Captions name every object by colour and shape, which no other kind of object of the scene has in common: so any
    other word of the same family is false, except a colour or shape that turns one name into another object's."""
    singular = {p: s for s, p in PLURALS.items()}
    caught = 0
    for scene in scenes(120, seed=3):
        names = {(o.colour, o.shape) for o in scene.objects}
        for caption in describe(scene):
            words = caption.split()
            for at, family in itertools.product(range(len(words)), WORD_FAMILIES):
                for other in set(family) - {words[at]} if words[at] in family else ():
                    changed = [*words[:at], other, *words[at + 1 :]]
                    pairs = {(c, singular.get(s, s)) for c, s in itertools.pairwise(changed) if c in COLOURS}
                    if words[at] in (*COLOURS, *SHAPES, *singular) and pairs <= names:
                        continue
                    if "another" in words and words[at] in ("left", "right", "above", "below"):
                        continue  # of two alike, each stands on its own side of the other
                    text = re.sub(
                        r"\ban? (\w)", lambda m: ("an " if m[1] in "aeiou" else "a ") + m[1], " ".join(changed)
                    )
                    truth = check(scene, text)
                    assert not truth.ok, (caption, text, scene.objects)
                    assert truth.true_claims < truth.claims
                    assert truth.problems
                    caught += 1
    assert caught > 10_000


@pytest.mark.parametrize(
    "caption",
    [
        "a red circle left of a blue square",
        "A red circle, left of a blue square.",
        "there is a large striped red circle and a small square on a light background",
        "a blue square to the right of a circle and above a dotted cross",
        "we see a circle above a green cross left of another green cross",
        "two small dotted green crosses side by side",
        "two crosses under a red circle",
        "a red circle with a blue square to its right",
        "four objects including a circle that is large and striped",
        "four objects namely a red circle and two green crosses and a blue square",
        "here are two crosses and one square",
        "nothing but a circle and a square and two crosses",
        "four objects",
    ],
)
def test_true_captions_in_other_words(caption):
    truth = check(small_scene(RED_CIRCLE, BLUE_SQUARE, GREEN_CROSS, GREEN_CROSS_2), caption)
    assert truth.ok, truth


@pytest.mark.parametrize(
    ("caption", "problem"),
    [
        ("a red circle right of a blue square", "is not right of"),
        ("a red circle above a blue square", "is not above"),
        ("a red square", "colour is not red|shape is not square"),
        ("a small red circle", "size is not small"),
        ("a dotted red circle", "texture is not dotted"),
        ("a red circle and a red circle", "no object is left|is not"),
        ("three green crosses", "there are 2"),
        ("one green cross", "there are 2"),
        ("two green crosses one above the other", "not one above the other"),
        ("a red circle that is large and dotted", "texture is not dotted"),
        ("three objects namely a red circle and two green crosses", "there are 4 objects, not 3"),
        ("nothing but a red circle", "names 1"),
        ("a red circle on a dark background", "the background is light"),
        ("", "empty"),
        ("   .", "empty"),
        ("a red hexagon", "unknown word 'hexagon'"),
        ("a red <unk>", "unknown word '<unk>'"),
        ("there is", "expected an object after 'there is', found the end"),
        ("a red", "expected a shape"),
        ("a red blue circle", "two words for colour"),
        ("a red red circle", "two words for colour"),
        ("left of a blue square", "expected an object"),
        ("a red circle left of", "expected an object after 'a red circle left of'"),
        ("a red circle left of left of a blue square", "expected an object"),
        ("a red circle and", "expected an object"),
        ("a red circle a blue square", "cannot read 'a blue square'"),
        ("a red circle with a blue square", "expected a place"),
        ("a red circle on a", "expected 'light background'"),
        ("a orange circle", "article"),
        ("an blue square", "article"),
        ("two red circle", "number"),
        ("a red circles", "number"),
        ("there is two green crosses", "does not agree"),
        ("there are a red circle", "does not agree"),
        ("another red circle", "none was named before"),
        ("red circle", "expected an object"),
        ("circle circle circle circle", "expected an object"),
        ("the the the", "expected an object"),
        ("a red circle that is", "expected a size"),
        ("a red circle on a light background on a light background", "cannot read"),
    ],
)
def test_false_or_unreadable_captions_name_the_problem(caption, problem):
    truth = check(small_scene(RED_CIRCLE, BLUE_SQUARE, GREEN_CROSS, GREEN_CROSS_2), caption)
    assert not truth.ok
    assert truth.true_claims < truth.claims
    assert any(part in text for part in problem.split("|") for text in truth.problems), truth.problems


def test_random_word_salad_is_never_an_error_other_than_unreadable():
    rng, words = Random(4), sorted(VOCABULARY)
    scene = small_scene(RED_CIRCLE, BLUE_SQUARE)
    accepted = 0
    for _ in range(3000):
        caption = " ".join(rng.choice(words) for _ in range(rng.randint(1, 10)))
        try:
            read(caption)
        except CaptionError:
            assert check(scene, caption).claims == 1
        else:
            accepted += 1
    assert accepted < 30
    long = " and ".join(["a red circle"] * 40)
    start = time.process_time()
    assert not check(small_scene(RED_CIRCLE, BLUE_SQUARE, GREEN_CROSS, GREEN_CROSS_2), long).ok
    assert time.process_time() - start < 2


def test_coverage_counts_objects_named_truly():
    scene = small_scene(RED_CIRCLE, BLUE_SQUARE, GREEN_CROSS, GREEN_CROSS_2)
    for caption, share in [
        ("a circle", 0.25),
        ("two green crosses", 0.5),
        ("a red circle and a blue cross", 0.25),
        ("a red circle left of a blue square and above a green cross", 0.75),
        ("four objects", 0),
        ("no sense", 0),
    ]:
        assert check(scene, caption).coverage == share, caption


# --- the source ------------------------------------------------------------------------------------------------------


def test_source_is_deterministic_and_splits_differ():
    a, b = ShapesSource(train_size=50, val_size=40, test_size=40), ShapesSource(train_size=90, val_size=40)
    assert a.splits() == ("train", "val", "test")
    for split in ("train", "val"):
        for x, y in zip(a.split(split), b.split(split), strict=False):
            assert (x.image_id, x.captions, x.label) == (y.image_id, y.captions, y.label)
            assert x.open().tobytes() == y.open().tobytes()
            assert x.open().size == (64, 64)
            assert x.open().mode == "RGB"
    ids = [r.image_id for s in a.splits() for r in a.split(s)]
    assert len(set(ids)) == len(ids)
    assert [r.captions for r in a.split("val")] != [r.captions for r in a.split("test")]
    assert [r.captions for r in a.split("val")] != [r.captions for r in ShapesSource(seed=1).split("val")[:40]]


def test_records_can_be_pickled_and_drawn_at_another_size():
    record = ShapesSource(val_size=3, image_size=224).split("val")[2]
    copy = pickle.loads(pickle.dumps(record))
    assert copy.open().tobytes() == record.open().tobytes()
    assert record.open().size == (224, 224)
    small = ShapesSource(val_size=3).split("val")[2]
    assert small.captions == record.captions
    difference = np.asarray(record.open().resize((64, 64), Image.Resampling.BOX)).astype(int) - np.asarray(small.open())
    assert np.abs(difference).mean() < 12


def test_training_never_shows_held_out_pairs():
    source = ShapesSource(train_size=2000, val_size=400)
    assert not any(f"{c} {s}" in t for r in source.split("train") for t in r.captions for c, s in HELD_OUT)
    held_out = [source.held_out(r) for r in source.split("val")]
    assert sum(held_out) == 100
    for record, held in zip(source.split("val"), held_out, strict=True):
        assert held == any(f"{c} {s}" in t for t in record.captions for c, s in HELD_OUT)
        assert held == source.held_out(record.image_id)


def test_source_truth_and_labels():
    source = ShapesSource(val_size=200)
    labels = set()
    for record in source.split("val"):
        for caption in record.captions:
            assert source.truth(record, caption).ok
            assert source.truth(record.image_id, caption).ok
        assert source.coverage(record, record.captions[0]) >= 0.75
        assert source.classes[record.label] in record.captions[0].replace("crosses", "cross")
        labels.add(record.label)
    assert labels == set(range(len(source.classes)))


def test_records_are_cheap():
    source = ShapesSource(train_size=3000)
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        source.split("train")
        best = min(best, time.process_time() - start)
    assert best < 0.4, f"{best:.2f} s for 3000 records"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "photos"}, "data.root"),
        ({"train_size": 0}, "data.source.train_size"),
        ({"val_size": -1}, "data.source.val_size"),
        ({"image_size": 8}, "data.image_size"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ShapesSource(**options)


def test_unknown_split_and_id():
    source = ShapesSource(val_size=5)
    with pytest.raises(ValueError, match="no split 'valid'"):
        source.split("valid")
    with pytest.raises(ValueError, match="not in the shapes"):
        source.scene(10_000_006)


# --- export ----------------------------------------------------------------------------------------------------------


def prepare(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "scripts" / "prepare.py"
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)


def test_export_equals_the_scenes(tmp_path):
    from pycocotools.coco import COCO

    from vitcap.data.coco import CocoSource

    done = prepare("shapes", "--out", str(tmp_path / "my shapes"), "--split", "val", "--val-size", "24", "--seed", "5")
    assert done.returncode == 0, done.stderr
    root = tmp_path / "my shapes"
    captions = COCO(str(root / "annotations" / "captions_val.json"))
    instances = COCO(str(root / "annotations" / "instances_val.json"))
    source = ShapesSource(seed=5, val_size=24)
    assert sorted(captions.getImgIds()) == [r.image_id for r in source.split("val")]
    assert [c["name"] for c in instances.loadCats(instances.getCatIds())] == list(source.classes)
    for record in source.split("val"):
        info = captions.loadImgs(record.image_id)[0]
        with Image.open(root / "val" / info["file_name"]) as image:
            assert image.format == "PNG"
            assert image.tobytes() == record.open().tobytes()
        assert info["held_out"] == source.held_out(record)
        assert [a["caption"] for a in captions.imgToAnns[record.image_id]] == list(record.captions)
        found = instances.imgToAnns[record.image_id]
        objects = source.scene(record).objects
        assert len(found) == len(objects)
        for annotation, item in zip(found, objects, strict=True):
            assert source.classes[annotation["category_id"] - 1] == item.shape
            expected = mask(item, 64)
            assert (instances.annToMask(annotation).astype(bool) == expected).all()
            assert annotation["area"] == expected.sum()
            assert tuple(annotation["bbox"]) == box(item, 64)
    read_back = CocoSource(root).split("val")
    assert [(r.image_id, r.captions) for r in read_back] == [(r.image_id, r.captions) for r in source.split("val")]
    assert read_back[7].open().tobytes() == source.split("val")[7].open().tobytes()


def test_export_as_jpeg(tmp_path):
    done = prepare("shapes", "--out", str(tmp_path), "--split", "test", "--test-size", "3", "--format", "jpg")
    assert done.returncode == 0, done.stderr
    record = ShapesSource(test_size=3).split("test")[1]
    name = json.loads((tmp_path / "annotations" / "captions_test.json").read_text())["images"][1]["file_name"]
    with Image.open(tmp_path / "test" / name) as image:
        assert image.format == "JPEG"
        assert np.abs(np.asarray(image).astype(int) - np.asarray(record.open())).mean() < 8


def test_export_errors_are_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = prepare("shapes", "--out", str(tmp_path / "file"), "--val-size", "2", "--split", "val")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "file" in done.stderr
    done = prepare("shapes", "--out", str(tmp_path / "new"), "--val-size", "0", "--split", "val")
    assert done.returncode == 1
    assert "val_size" in done.stderr
