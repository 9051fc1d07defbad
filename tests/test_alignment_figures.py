"""The drawn alignment matrix, its description, and line charts."""

import numpy as np
import pytest

from vitcap.viz.alignment import alignment_matrix, describe_alignment
from vitcap.viz.curves import length_curves, line_plot
from vitcap.viz.overlay import colours

SOURCE, TARGET = ["the", "European", "Area"], ["la", "zone", "européenne"]
WEIGHTS = np.array([[0.9, 0.05, 0.05], [0.1, 0.2, 0.7], [0.34, 0.33, 0.33]])
LINK = (64, 216, 255)


def pixels(image):
    return np.asarray(image.convert("RGB")).astype(int)


def rgb(weight):
    return colours(weight).round().astype(int)


def cells(image, weight):
    """(x, y) of the pixels that have exactly the colour of a weight, above the colour bar."""
    rows, columns = np.nonzero((pixels(image)[: image.height - 110] == rgb(weight)).all(-1))
    return np.stack([columns, rows], 1)


def margins_are_clean(image, margin=10):
    inner = pixels(image).copy()
    inner[margin:-margin, margin:-margin] = 255
    return (inner == 255).all()


def test_a_cell_has_the_colour_of_its_weight_at_its_place():
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3]])
    image = alignment_matrix(weights, SOURCE, TARGET[:2], cell=30)
    found = {w: cells(image, w).mean(0) for w in (0.9, 0.1, 0.2, 0.5, 0.3)}
    for weight in found:
        assert len(cells(image, weight)) >= 29 * 29
    np.testing.assert_allclose(found[0.1] - found[0.9], [30, 0], atol=1)  # source words go to the right
    np.testing.assert_allclose(found[0.2] - found[0.9], [0, 30], atol=1)  # target words go down
    np.testing.assert_allclose(found[0.3] - found[0.2], [60, 0], atol=1)


def test_top_ends_the_scale():
    image = alignment_matrix([[0.5, 0.25]], ["a", "b"], ["c"], top=0.5)
    assert len(cells(image, 1.0)) > 400
    assert len(cells(image, 0.5)) > 400


def test_links_are_outlined_around_their_cell():
    plain = alignment_matrix(WEIGHTS, SOURCE, TARGET, cell=30)
    linked = alignment_matrix(WEIGHTS, SOURCE, TARGET, cell=30, links={(2, 1)})
    assert not (pixels(plain) == LINK).all(-1).any()
    y, x = np.nonzero((pixels(linked)[: plain.height - 100] == LINK).all(-1))
    centre = cells(plain, 0.7).mean(0)
    np.testing.assert_allclose([(x.min() + x.max()) / 2, (y.min() + y.max()) / 2], centre, atol=1)
    assert x.max() - x.min() == pytest.approx(30, abs=2)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["a"], ["b"]),
        ([f"word{i}" for i in range(60)], [f"mot{i}" for i in range(75)]),
        (["猫", "кошка", "\ud800", "", "עברית"], ["ελληνικά", "x" * 300]),
        (["tabs\tand\nbreaks"] * 3, ["Åpfel", "yj"]),
    ],
)
def test_nothing_is_cut_off(source, target):
    weights = np.full((len(target), len(source)), 1 / len(source))
    image = alignment_matrix(weights, source, target, title="a title that is rather long " * 4, links={(0, 0)})
    assert margins_are_clean(image)
    assert len(cells(image, 1 / len(source))) >= 12 * 12 * (len(source) * len(target) - 1)


def test_column_words_stand_upright_where_they_fit():
    upright = alignment_matrix([[0.5, 0.5]], ["3", "1"], ["4"])
    turned = alignment_matrix([[0.5, 0.5]], ["three", "one"], ["4"])
    assert upright.height < turned.height


def test_description_names_the_strongest_word_and_what_is_known():
    assert describe_alignment(WEIGHTS, SOURCE, TARGET, links={(2, 1), (0, 0), (1, 1)}) == [
        "la (word 1): attends most to the (word 1), 0.90; known: the (word 1)",
        "zone (word 2): attends most to Area (word 3), 0.70; known: European (word 2), Area (word 3)",
        "européenne (word 3): flat, no word stands out (highest weight 0.34); known: none",
    ]
    assert describe_alignment([[1.0]], ["a"], ["b"]) == ["b (word 1): attends most to a (word 1), 1.00"]


@pytest.mark.parametrize("function", [alignment_matrix, describe_alignment])
def test_alignments_that_do_not_fit(function):
    with pytest.raises(ValueError, match=r"shape \(3, 3\); 2 target and 3 source words need \(2, 3\)"):
        function(WEIGHTS, SOURCE, TARGET[:2])
    with pytest.raises(ValueError, match=r"weights lie in 0..1; got 0.05 to 2"):
        function([[2, 0.05]], ["a", "b"], ["c"])
    with pytest.raises(ValueError, match=r"weights lie in 0..1; got nan"):
        function([[np.nan]], ["a"], ["c"])
    with pytest.raises(ValueError, match=r"link \(3, 0\) between 3 source and 3 target words"):
        function(WEIGHTS, SOURCE, TARGET, links={(3, 0)})
    with pytest.raises(ValueError, match="at least one of each"):
        function(np.zeros((0, 0)), [], [])


def test_options_of_the_matrix():
    with pytest.raises(ValueError, match="cell=5: a whole number of at least 12"):
        alignment_matrix(WEIGHTS, SOURCE, TARGET, cell=5)
    with pytest.raises(ValueError, match="top=0: a weight above 0"):
        alignment_matrix(WEIGHTS, SOURCE, TARGET, top=0)


# charts

BLUE, RED = (0, 114, 178), (213, 94, 0)


def spots(image, colour):
    """Places of a colour in the plotting area, the legend at the top left out."""
    y, x = np.nonzero((pixels(image)[70:] == colour).all(-1))
    return x, y + 70


def test_a_line_goes_through_its_points():
    image = line_plot({"up": [(0, 0), (10, 100)]}, xlabel="x", ylabel="y")
    x, y = spots(image, BLUE)
    start, end = x.argmin(), x.argmax()
    assert y[start] > y[end]
    slope = (y[end] - y[start]) / (x[end] - x[start])
    np.testing.assert_allclose(y, y[start] + slope * (x - x[start]), atol=8)  # within a marker's size of one line


def test_higher_values_are_drawn_higher_to_scale():
    rows = [(4, 9, 10), (10, 15, 20), (16, 30, 30)]
    series = {
        "attention": [(low, high, 0.9, count) for low, high, count in rows],
        "fixed": [(low, high, 0.5, count) for low, high, count in rows],
    }
    image = length_curves(series, ylabel="BLEU-4", title="The bottleneck")
    high, low = (np.median(spots(image, colour)[1]) for colour in (BLUE, RED))
    zero = np.nonzero((pixels(image) == (108, 112, 120)).all(-1).sum(1) > 300)[0].max()  # the axis
    grid = np.nonzero((pixels(image) == (226, 228, 232)).all(-1).sum(1) > 300)[0]  # 1, 0.8, ..., 0.2
    assert [(zero - y) / (zero - grid[0]) for y in (high, low)] == pytest.approx([0.9, 0.5], abs=0.01)
    assert margins_are_clean(image)


def test_scores_of_other_sentences_do_not_share_a_chart():
    with pytest.raises(ValueError, match="'a' and 'b' are of other sentences"):
        length_curves({"a": [(1, 2, 0.5, 10)], "b": [(1, 2, 0.5, 11)]}, ylabel="BLEU-4")
    with pytest.raises(ValueError, match="no lines to draw"):
        length_curves({}, ylabel="BLEU-4")


@pytest.mark.parametrize(
    "series",
    [
        {"one point": [(5, 0.0)]},
        {"flat": [(0, 3.0), (1, 3.0)]},
        {"negative": [(-5, -2e-5), (3, -1e-5)]},
        {f"a line with a long name {i}": [(x, x * i * 1e6) for x in range(60)] for i in range(9)},
        {"猫": [(0, 1), (1, 2)]},
    ],
)
def test_charts_of_any_size_stay_inside_their_page(series):
    assert margins_are_clean(line_plot(series, xlabel="N", ylabel="milliseconds", title="time " * 40, values=True))


def test_points_must_be_finite():
    with pytest.raises(ValueError, match="finite"):
        line_plot({"a": [(0, float("nan"))]}, xlabel="x", ylabel="y")


def test_a_picture_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3 target and \d source words in cells of 1000000 pixels make a picture of"):
        alignment_matrix(np.full((3, 2), 0.5), ["a", "b"], ["c", "d", "e"], cell=1_000_000)
    with pytest.raises(ValueError, match=r"cell=20\.5: a whole number"):
        alignment_matrix(np.full((1, 1), 0.5), ["a"], ["c"], cell=20.5)  # type: ignore[arg-type]
