"""Measures of grounding against published worked values, brute force over pixels, and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from vitcap.data.transforms import Preprocess
from vitcap.evaluation.controls import centre_map
from vitcap.metrics.coco_words import FUNCTION_WORDS, CategoryWords
from vitcap.metrics.grounding import (
    area,
    correctness,
    hallucination,
    hallucination_parts,
    hits,
    localisation,
    map_box,
    phrase_correctness,
    pointing,
    rank_accuracy,
    segmentation,
    sights,
    spread,
)
from vitcap.metrics.grounding_f1 import GroundedF1, Sentence
from vitcap.metrics.regions import EMPTY, Region, box_iou, clip_box, coverage, seen, union
from vitcap.record import word_map
from vitcap.viz.heatmap import to_photo

SIZE, WINDOW, GRID = (48, 32), (0.0, 0.0, 48.0, 32.0), (2, 3)
HEAT = np.array([[0.1, 0.3, 0.05], [0.05, 0.4, 0.1]])
BOX, SECOND = (8, 4, 32, 24), (24, 10, 44, 26)
PEAKED = np.array(
    [[0.02, 0.03, 0.02, 0.01], [0.03, 0.16, 0.14, 0.02], [0.02, 0.18, 0.20, 0.03], [0.09, 0.02, 0.02, 0.01]]
)


# one map and one region: worked values


def test_attention_correctness_of_a_box():
    region = Region.of_boxes([BOX])
    cover = coverage(region, WINDOW, GRID)
    np.testing.assert_allclose(cover, [[0.375, 0.75, 0], [0.25, 0.5, 0]])
    assert correctness(HEAT, cover) == pytest.approx(0.475)
    assert area(cover) == pytest.approx(0.3125)
    assert correctness(HEAT, cover) / area(cover) == pytest.approx(1.52)
    assert correctness(7 * HEAT, cover) == pytest.approx(0.475), "only the shares count"
    upsampled = spread(HEAT, WINDOW, SIZE)
    assert (upsampled * region.raster(*SIZE)).sum() / upsampled.sum() == pytest.approx(0.475)


def test_several_instances_are_a_union_and_never_a_sum():
    both = Region.of_boxes([BOX, SECOND])
    cover = coverage(both, WINDOW, GRID)
    assert correctness(HEAT, cover) == pytest.approx(0.5609375)
    assert area(cover) == pytest.approx(0.4479167, abs=1e-7)
    naive = sum(float(correctness(HEAT, coverage(Region.of_boxes([b]), WINDOW, GRID))) for b in (BOX, SECOND))
    assert naive == pytest.approx(0.7171875)
    assert union([Region.of_boxes([BOX]), Region.of_boxes([SECOND])]).area == both.area == 688


def test_a_phrase_has_the_largest_correctness_of_its_words():
    assert phrase_correctness([0.12, 0.55, 0.31]) == 0.55
    np.testing.assert_allclose(phrase_correctness([[0.1, 0.4], [0.3, 0.2]]), [0.3, 0.4])


def test_pointing_game_and_its_tolerance():
    assert pointing(HEAT, hits(Region.of_boxes([BOX]), WINDOW, GRID)) == 0  # y = 24 is the first row outside
    small = Region.of_boxes([(10, 4, 16, 14)])
    assert np.sqrt(small.squared_distance(24, 24)) == pytest.approx(12.806248, abs=1e-6)
    assert pointing(HEAT, hits(small, WINDOW, GRID, tolerance=15)) == 1
    assert pointing(HEAT, hits(small, WINDOW, GRID, tolerance=12.806)) == 0
    assert pointing(HEAT, hits(small, WINDOW, GRID)) == 0


def test_equal_peaks_take_the_first_in_row_major_order_or_their_mean():
    hit = np.array([[False, True], [True, True]])
    tied = np.array([[0.1, 0.4], [0.4, 0.1]])
    assert pointing(tied, hit) == 1
    assert pointing(tied[:, ::-1], hit) == 0
    assert pointing(np.ones((2, 2)), hit, ties="mean") == 0.75
    assert pointing(np.zeros((2, 2)), hit, ties="mean") == pointing(np.zeros((2, 2)), ~hit) == 0, "no mass, no peak"
    assert pointing(centre_map((8, 8)), np.arange(64).reshape(8, 8) == 27, ties="mean") == 0.25
    with pytest.raises(ValueError, match="ties is 'last'"):
        pointing(tied, hit, ties="last")


def test_relevance_rank_accuracy():
    inside = Region.of_boxes([BOX]).raster(*SIZE)
    assert inside.sum() == 480
    assert rank_accuracy(spread(HEAT, WINDOW, SIZE), inside) == pytest.approx(0.6)
    assert np.isnan(rank_accuracy(HEAT, np.zeros(GRID)))
    assert rank_accuracy([[3.0, np.nan], [2.0, 1.0]], [[1, 1], [1, 0]]) == 1.0, "what was not seen is left out"


def test_box_from_a_map():
    box = map_box(PEAKED, (0, 0, 64, 64))
    assert box == (16, 16, 48, 48)
    assert box_iou(box, (12, 10, 52, 44)) == pytest.approx(0.602151, abs=1e-6)
    assert box_iou(box, (0, 0, 32, 32)) == pytest.approx(0.142857, abs=1e-6)
    assert map_box(np.zeros((2, 2)), (0, 0, 4, 4)) is None
    diagonal = np.array([[0.9, 0, 0], [0, 1.0, 0], [0, 0, 0.8]])
    assert map_box(diagonal, (0, 0, 3, 3)) == (1, 1, 2, 2), "corners do not connect; of equal parts the heavier"
    assert map_box(np.array([[1.0, 0, 0.6, 0.6]]), (10, 0, 50, 5)) == (30, 0, 50, 5), "the largest part, not the peak's"


def test_segmentation_by_the_mean():
    found = segmentation([[0.1, 0.2], [0.6, 0.9]], [[0, 1], [1, 1]])
    assert found["foreground_iou"] == pytest.approx(0.666667, abs=1e-6)
    assert found["background_iou"] == 0.5
    assert found["mean_iou"] == pytest.approx(0.583333, abs=1e-6)
    assert found["accuracy"] == 0.75
    assert found["average_precision"] == 1


def test_average_precision_is_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    values, truth = rng.random((6, 7)), rng.random((6, 7)) < 0.3
    expected = sklearn.average_precision_score(truth.ravel(), values.ravel())
    assert segmentation(values, truth)["average_precision"] == pytest.approx(expected)
    expected = sklearn.jaccard_score(truth.ravel(), (values > values.mean()).ravel())
    assert segmentation(values, truth)["foreground_iou"] == pytest.approx(expected)


def test_segmentation_of_patches_is_that_of_their_pixels_where_the_region_fills_them():
    rng = np.random.default_rng(1)
    heat, cells = rng.random((3, 4)), rng.random((3, 4)) < 0.4
    window, size = (0.0, 0.0, 40.0, 30.0), (40, 30)
    of_pixels = segmentation(spread(heat, window, size), np.kron(cells, np.ones((10, 10))))
    of_cells = segmentation(heat, cells, np.full((3, 4), 100.0))
    for name in ("foreground_iou", "mean_iou", "accuracy"):
        assert of_cells[name] == pytest.approx(of_pixels[name])


# grids, pixels and the window


def test_grid_to_pixels():
    np.testing.assert_array_equal(spread([[0, 1]], (0, 0, 4, 1), (4, 1)), [[0, 0, 1, 1]])
    smooth, _ = to_photo([[0, 1]], (0, 0, 4, 1), 4, 1)
    np.testing.assert_allclose(smooth, [[0, 0.25, 0.75, 1]])
    smooth, _ = to_photo([[0.1, 0.3, 0.05], [0.05, 0.4, 0.1]], (0, 0, 6, 4), 6, 4)
    np.testing.assert_allclose(smooth[0], [0.1, 0.15, 0.25, 0.2375, 0.1125, 0.05])
    np.testing.assert_allclose(smooth[1], 0.75 * smooth[0] + 0.25 * smooth[3])
    assert smooth.sum() == pytest.approx(4.0)


def test_a_crop_is_seen_in_the_pixels_of_the_photo():
    # 640 x 480, the shorter side to 256, 224 from the middle.
    window = Preprocess(size=(224, 224), crop_pct=0.875).window(640, 480)
    assert window == pytest.approx((108.856305, 30, 529.266862, 450), abs=1e-6)
    assert clip_box((100, 80, 300, 280), window) == pytest.approx((108.856305, 80, 300, 280))
    region = Region.of_boxes([(100, 80, 300, 280)]).clip(seen(window, (640, 480)))
    # In the input the box is (-4.71875, 26.666667, 101.84375, 133.333333), of which 0 .. 101.84375 is seen.
    share = 101.84375 * (133.333333 - 26.666667) / 224**2
    assert coverage(region, window, (14, 14)).mean() == pytest.approx(share, abs=1e-6)
    assert np.isnan(spread(np.ones((2, 2)), window, (640, 480))[:, :108]).all()


def test_padding_is_no_part_of_the_photo():
    # A letterbox of a 40 x 20 photo: a quarter of the window above it, a quarter below.
    window, size, heat = (0.0, -10.0, 40.0, 30.0), (40, 20), np.arange(1.0, 17).reshape(4, 4)
    cover, sight = sights(Region.of_boxes([(0, 0, 10, 20)]), window, (4, 4), size)
    assert sight[:, 0].tolist() == [0, 1, 1, 0]
    assert correctness(heat, cover, sight) == pytest.approx((5 + 9) / heat[1:3].sum())
    assert area(cover, sight) == 0.25
    assert correctness(np.zeros((3, 4, 4)), cover, sight).tolist() == [0.25] * 3, "no mass is worth a uniform map"


@pytest.mark.parametrize("seed", range(4))
def test_coverage_and_distance_are_those_of_all_pixels(seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((23, 31)) < 0.2
    region = Region.of_mask(mask)
    window, grid = (3.0, 2.0, 27.0, 20.0), (3, 4)  # patches of 6 x 6 pixels
    expected = mask[2:20, 3:27].reshape(3, 6, 4, 6).mean((1, 3))
    np.testing.assert_allclose(coverage(region, window, grid), expected, atol=1e-12)
    assert (region.raster(31, 23) == mask).all()
    assert region.area == mask.sum()
    rows, columns = np.nonzero(mask)
    x, y = rng.random(2) * 20
    gap_x, gap_y = (np.maximum(np.maximum(edge - at, at - edge - 1), 0) for edge, at in ((columns, x), (rows, y)))
    assert region.squared_distance(x, y) == pytest.approx((gap_x**2 + gap_y**2).min())
    assert region.contains(x, y) == mask[int(y), int(x)]
    cut = region.clip((4, 3, 20.5, 18))
    assert cut.area == pytest.approx(mask[3:18, 4:20].sum() + 0.5 * mask[3:18, 20].sum())
    joined = union([region, Region.of_boxes([(0.0, 0.0, 5.0, 4.0)])])
    together = mask.copy()
    together[:4, :5] = True
    assert (joined.raster(31, 23) == together).all()
    assert (region.scale(2, 3).raster(62, 69) == np.kron(mask, np.ones((3, 2)))).all()


@pytest.mark.parametrize("cells", [(1.0, 2.0, 25.0, 20.0), (6.0, 5.0, 30.0, 23.0), (-3.0, 8.0, 33.0, 17.0)])
def test_cells_that_are_not_the_window_are_measured_where_they_are(cells):
    """Against all pixels: each belongs to the cell that it lies in, or to the nearest."""
    rng = np.random.default_rng(0)
    window, size, grid = (3.0, 2.0, 27.0, 20.0), (31, 23), (3, 4)
    heat, mask = rng.random(grid), rng.random((23, 31)) < 0.2
    region, (x0, y0, x1, y1) = Region.of_mask(mask), cells
    wide, high = (x1 - x0) / 4, (y1 - y0) / 3
    column = np.clip(np.floor((np.arange(31) + 0.5 - x0) / wide), 0, 3).astype(int)
    row = np.clip(np.floor((np.arange(23) + 0.5 - y0) / high), 0, 2).astype(int)
    there = np.zeros_like(mask)
    there[2:20, 3:27] = True
    values = np.where(there, heat[row][:, column], np.nan)
    np.testing.assert_array_equal(spread(heat, window, size, cells=cells), values)
    cover, sight = sights(region, window, grid, size, cells=cells)
    assert correctness(heat, cover, sight) == pytest.approx(np.nansum(values * mask) / np.nansum(values))
    assert area(cover, sight) == pytest.approx(mask[there].mean())
    expected = np.zeros(grid)
    np.add.at(expected, np.ix_(row, column), mask & there)
    np.testing.assert_allclose(cover, expected / (wide * high), atol=1e-12)
    inside = np.divide(cover, sight, out=np.zeros(grid), where=sight > 0)
    of_cells = segmentation(np.where(sight > 0, heat, np.nan), inside, sight)
    assert of_cells["accuracy"] == pytest.approx(segmentation(values[there], mask[there])["accuracy"])

    assert hits(Region.of_boxes([(x0 + wide, y0, x0 + 2 * wide, y0 + high)]), cells, grid).tolist()[0] == [0, 1, 0, 0]
    corner = np.zeros(grid)
    corner[0, 0] = 1
    assert map_box(corner, window, cells=cells) == (min(x0, 3), min(y0, 2), x0 + wide, y0 + high)
    corner = np.flip(corner)
    assert map_box(corner, window, cells=cells) == (x1 - wide, y1 - high, max(x1, 27), max(y1, 20))


def test_nothing_is_an_empty_region():
    for region in (Region.of_boxes([]), Region.of_mask(np.zeros((3, 3))), Region.of_boxes([BOX]).clip((40, 0, 48, 9))):
        assert region is EMPTY
    assert EMPTY.area == 0
    assert EMPTY.squared_distance(1, 1) == np.inf
    assert not EMPTY.contains(0, 0)
    assert not EMPTY.raster(3, 2).any()
    assert not coverage(EMPTY, WINDOW, GRID).any()
    with pytest.raises(ValueError, match="rows and columns"):
        Region.of_mask(np.zeros(3))


# figures over many words


def test_noun_localisation():
    found = localisation([0.475, 0.6, 0.1, 0.3], [0.3125, 0.2, 0.25, 0.1], [0, 1, 0, 1])
    assert found["correctness"] == pytest.approx(0.36875)
    assert found["mean_lift"] == pytest.approx(1.98)
    assert found["lift"] == pytest.approx(1.710145, abs=1e-6)
    assert found["pointing"] == 0.5
    assert found["above_area"] == 0.75
    with pytest.raises(ValueError, match="no word"):
        localisation([], [], [])


def test_hallucination_against_grounding():
    captions = [["grounded"] * 5, ["ungrounded"] * 3 + ["absent"], ["absent"], []]
    found = hallucination(captions)
    assert found["grounded_given_present"] == 0.625
    assert found["CHAIR_i"] == 0.2
    assert found["present_and_grounded"] == 0.5
    assert found["CHAIR_s"] == 0.5
    assert hallucination([["told"], ["absent", "told"]])["CHAIR_i"] == pytest.approx(1 / 3), "what people tell is there"
    assert hallucination([])["CHAIR_s"] is None
    with pytest.raises(ValueError, match="states wrong"):
        hallucination([["wrong"]])


def test_chances_stand_for_objects_whose_peak_may_be_anywhere():
    found = hallucination([[0.25, "absent"], [0.5, "grounded"], ["told"]])
    assert (found["grounded"], found["ungrounded"], found["absent"], found["told"]) == (1.75, 1.25, 1, 1)
    assert found["grounded_given_present"] == pytest.approx(1.75 / 3)
    assert hallucination([[1.0, 0.0, 1.0]]) == hallucination([["grounded", "ungrounded", "grounded"]])
    with pytest.raises(ValueError, match=r"states 1\.5: a chance"):
        hallucination([[1.5]])


def test_shares_of_drawn_captions_are_those_of_their_repetition():
    captions = [["grounded", 0.25], ["ungrounded", "absent", "absent"], ["told"], [], ["absent"]]
    weights = np.array([3, 1, 0, 2, 1])
    again = hallucination([caption for caption, n in zip(captions, weights, strict=True) for _ in range(n)])
    for name, (top, bottom) in hallucination_parts(captions).items():
        assert weights @ top / (weights @ bottom) == pytest.approx(again[name]), name


TOLD = [
    Sentence([("dog", 0.7), ("cat", None)], ["dog", "ball"], ["grass"]),
    Sentence([("man", 0.4), ("hat", 0.6), ("dog", None)], ["man", "hat"]),
    Sentence([("dog", 0.9), ("tree", None)], ["dog"], ["tree"]),
]


def test_f1_of_grounded_words():
    f1 = GroundedF1(TOLD)
    found = f1.scores()
    assert f1.classes == ["ball", "dog", "hat", "man"]
    assert found["precision_all"] == pytest.approx(0.416667, abs=1e-6)
    assert found["recall_all"] == 0.5
    assert found["F1_all"] == pytest.approx(0.454545, abs=1e-6)
    assert f1.per_sentence["all"] == pytest.approx([0.5, 0.4, 1])
    assert found["F1_all_per_sentence"] == pytest.approx(0.633333, abs=1e-6)
    assert found["precision_loc"] == found["recall_loc"] == found["F1_loc"] == 0.5
    assert f1.per_sentence["loc"] == pytest.approx([1, 0.5, 1])
    assert found["F1_loc_per_sentence"] == pytest.approx(0.833333, abs=1e-6)


def test_f1_asks_the_first_mention_and_leaves_sentences_without_objects_out():
    f1 = GroundedF1([Sentence([("dog", 0.2), ("dog", 0.9)], ["dog"]), Sentence([("cat", None)], [])])
    assert f1.per_sentence["all"] == [0.0, None]
    assert f1.scores()["precision_all"] == 0.5
    assert f1.scores()["recall_all"] == 0
    assert f1.scores()["F1_all_per_sentence"] == 0
    assert np.isnan(GroundedF1([Sentence([], [])]).scores()["F1_all"])


def test_weights_of_f1_are_repeated_sentences():
    weighted = GroundedF1(TOLD).scores([2, 0, 1])
    again = GroundedF1([TOLD[0], TOLD[0], TOLD[2]], classes=["ball", "dog", "hat", "man"]).scores()
    assert weighted == pytest.approx(again)


def test_pieces_of_a_word_are_merged():
    pieces = np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]]).reshape(2, 1, 1, 3)
    np.testing.assert_allclose(word_map(pieces, (0, 2), grid=(1, 3))[0], [0.3, 0.5, 0.2])
    largest = word_map(pieces, (0, 2), grid=(1, 3), merge="max")[0]
    np.testing.assert_allclose(largest, [0.357143, 0.5, 0.142857], atol=1e-6)


# words


@pytest.mark.parametrize(
    ("caption", "found"),
    [
        ("a man eating a hot dog with his dog", "man=person, hot dog=hot dog, dog=dog"),
        ("two teddy bears and a bear", "teddy bears=teddy bear, bear=bear"),
        ("Women, children and people on buses", "women=person, children=person, people=person, buses=bus"),
        ("the man's wives sharpen knives", "man's=person, wives=person, knives=knife"),
        ("an orange cat and two oranges", "cat=cat, oranges=orange"),
        ("an orange and white bus next to an orange", "bus=bus, orange=orange"),
        ("a sliced orange on a plate", "orange=orange"),
        ("a baby elephant and a baby polar bear watch a baby", "elephant=elephant, polar bear=bear, baby=person"),
        ("a couple of dogs with a couple", "dogs=dog, couple=person"),
        ("glasses of wine on tables", "glasses of wine=wine glass, tables=dining table"),
        ("a train at the train station near a bus stop", "train=train"),
        ("a microwave oven and an oven", "microwave oven=microwave, oven=oven"),
        (
            "a tv remote control by a keyboard and a mouse",
            "tv=tv, remote control=remote, keyboard=keyboard, mouse=mouse",
        ),
        ("geese, mice and a pair of scissors", "geese=bird, mice=mouse, scissors=scissors"),
        ("cowboys catch a calf", "cowboys=person, calf=cow"),
        ("a category of dogma", ""),
    ],
)
def test_words_name_categories(caption, found):
    words = caption.replace(",", "").split()
    mentions = CategoryWords().find(words)
    assert ", ".join(f"{' '.join(words[m.start : m.stop]).lower()}={m.category}" for m in mentions) == found


def test_every_category_is_named_by_its_own_name_and_no_name_twice():
    reader = CategoryWords()
    assert len(reader.categories) == 80
    for category in reader.categories:
        assert [m.category for m in reader.find(category.split())] == [category]
    assert not [word for word in FUNCTION_WORDS if reader.find([word])]


def test_categories_of_other_data_are_their_own_names():
    reader = CategoryWords(["circle", "cross", "dog"])
    words = ["two", "crosses", "and", "circles", "with", "a", "hot", "dog", "and", "a", "dog"]
    assert [(m.start, m.category) for m in reader.find(words)] == [(1, "cross"), (3, "circle"), (10, "dog")]
