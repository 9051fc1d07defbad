"""Pictures of a record: the unit of each method, single maps, layers by heads, the animation, and the files of them."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image, ImageChops

from vitcap.drawing import draw_record, find_word
from vitcap.record import AttentionRecord, View, Word
from vitcap.viz.alignment import alignment_matrix, describe_record_alignment, record_alignment
from vitcap.viz.animation import animation
from vitcap.viz.figures import describe_heads, head_grid, highest_word, word_figure
from vitcap.viz.overlay import Scale, sheet
from vitcap.viz.shown import describe_record, show

WORDS = ("a", "red", "dog")


def make(*, prefix=1, words=WORDS, facts=None):
    """A record of 3 x 4 patches, 2 layers and 3 heads: attention, and a gradient method with values below 0."""
    rng = np.random.default_rng(0)
    tokens = len(words) + 1
    attention = rng.random((tokens, 2, 3, prefix + 12)) ** 6
    attention /= attention.sum(-1, keepdims=True)
    return AttentionRecord(
        tuple(Word(text, i, i + 1, -0.1 * (i + 1)) for i, text in enumerate(words)),
        " ".join(words),
        {
            "attention": attention.astype("f4"),
            "relevance": rng.normal(0.1, 3, (tokens, 1, 1, prefix + 12)).astype("f4"),
        },
        View("attention"),
        grid=(3, 4),
        prefix=prefix,
        photo=np.kron(rng.integers(0, 256, (3, 4, 3)), np.ones((20, 20, 1))).astype(np.uint8),
        size=(160, 120),
        window=(20.0, 0.0, 140.0, 120.0),
        facts=facts or {},
    )


def differing(one, other):
    """Box of the pixels in which two pictures differ."""
    return ImageChops.difference(one.convert("RGB"), other.convert("RGB")).getbbox()


# the unit


def test_attention_counts_in_multiples_of_uniform_attention():
    record = make()
    found = show(record)
    weights = record.maps["attention"][:3].astype(float).mean((1, 2))
    np.testing.assert_allclose(found.lifts[:, 0].reshape(3, 12), weights[:, 1:] * 12, rtol=1e-6)
    assert found.rest == pytest.approx(weights[:, 0].mean(), rel=1e-5)
    assert (found.unit, found.clamped) == ("uniform attention", False)
    assert f"{100 * found.rest:.0f} % of the attention went to 1 token beside the patches" in describe_record(record)[1]


def test_gradient_methods_count_in_multiples_of_the_mean_over_all_words():
    record = make()
    found = show(record, View("relevance"))
    positive = np.maximum(record.maps["relevance"][:3, 0, 0, 1:].astype(float), 0)
    np.testing.assert_allclose(found.lifts[:, 0].reshape(3, 12), positive / positive.mean(), rtol=1e-6)
    assert found.lifts.mean() == pytest.approx(1)
    assert (found.unit, found.clamped, found.rest) == ("the mean of all maps", True, 0)
    lines = describe_record(record, View("relevance"))
    assert lines[1] == "Gradient-weighted relevance; 3 x 4 patches; negative values count as 0"
    row, column = divmod(int(positive[2].argmax()), 4)
    assert lines[4].startswith(f"dog: peak {positive[2].max() / positive.mean():.1f} times the mean of all maps at x ")
    assert lines[4].endswith(f"patch row {row + 1} of 3, column {column + 1} of 4")


def test_the_unit_does_not_change_with_the_units_of_the_score():
    record = make()
    scaled = dataclasses.replace(record, maps={"relevance": 1e-4 * record.maps["relevance"]}, shown=View("relevance"))
    np.testing.assert_allclose(show(scaled).lifts, show(record, View("relevance")).lifts, rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(sheet(scaled)), np.asarray(sheet(record, View("relevance"))))


def test_maps_without_anything_positive_are_said_to_be_empty():
    record = make()
    nothing = dataclasses.replace(record, maps={"relevance": -abs(record.maps["relevance"])}, shown=View("relevance"))
    assert describe_record(nothing)[2:] == [f"{word}: empty map, 0 everywhere" for word in WORDS]
    assert sheet(nothing).width > 480


def test_end_of_the_scale_holds_the_peak_in_round_steps():
    for peak in (0.3, 3.9, 4.1, 17.2, 20.0, 212.0):
        found = dataclasses.replace(show(make()), lifts=np.array([[[[peak]]]]))
        scale = Scale.of(found, None)
        assert scale.end >= max(peak, 4) - 1e-9
        assert scale.end < max(peak, 4) + scale.step
        assert f"{scale.step:e}"[0] in "125"


def test_classes_are_called_classes():
    record = make(facts={"kind": "classify"})
    same = dataclasses.replace(record, maps={"attention": np.repeat(record.maps["attention"][:1], 4, 0)})
    assert describe_record(record)[0] == "class: a red dog"
    assert "for every class" not in describe_record(record)[1]
    assert "; the same for every class;" in describe_record(same)[1]


# one word


def test_figures_of_one_caption_share_scale_and_layout():
    record = make()
    first, last = word_figure(record, 0, side=300), word_figure(record, 2, side=300)
    assert first.size == last.size
    assert differing(first, last)[1] < 60, "the marked word moves"
    bar = first.height - 110
    assert (
        differing(first.crop((0, bar, first.width, first.height)), last.crop((0, bar, first.width, first.height)))
        is None
    )
    lines = [np.asarray(page)[30:50, 24:34].mean() for page in (first, last)]
    assert lines[0] < lines[1] - 60, "the first word is white on dark where it is marked"


def test_words_that_are_not_there():
    record = make()
    for index in (-1, 3):
        with pytest.raises(ValueError, match=f"word {index}: the caption has 3 words, numbered from 0"):
            word_figure(record, index)
        with pytest.raises(ValueError, match=f"word {index}: the caption has 3 words"):
            head_grid(record, index)
    assert find_word(record, "dog") == find_word(record, 2) == find_word(record, "2") == 2
    assert find_word(make(words=("1", "0")), "0") == 1, "a text before a number"
    with pytest.raises(ValueError, match=r"word 'cat' is not there: 'a red dog' has 0 a, 1 red, 2 dog"):
        find_word(record, "cat")
    with pytest.raises(ValueError, match="no words"):
        highest_word(make(words=()))


def test_the_word_with_the_highest_peak():
    record = make()
    record.maps["attention"][1, :, :, :] = 0
    record.maps["attention"][1, :, :, 7] = 1
    assert highest_word(record) == find_word(record, None) == 1


# layers and heads


def test_grid_has_a_cell_for_each_layer_and_head_and_their_means():
    record = make()
    lines = describe_heads(record, 2)
    assert len(lines) == (2 + 1) * (3 + 1)
    assert lines[0].startswith("layer 0, head 0: dog: peak ")
    assert lines[3].startswith("layer 0, mean of heads: dog: ")
    assert lines[11].startswith("mean of layers, mean of heads: dog: ")
    lifts = record.maps["attention"][2, 1, 2, 1:].max() * 12
    assert f"peak {lifts:.1f} times uniform attention" in lines[6]
    page = np.asarray(head_grid(record, 2))
    hatched = (np.ptp(page.astype(int), -1) == 0) & (page[..., 0] == 120)
    gaps = np.diff(np.flatnonzero(hatched.any(0)))
    assert (gaps > 150).sum() == 4, "each of the four cells of a row is hatched at its sides"


def test_grid_is_one_scale_and_the_flat_cell_is_a_single_colour():
    record = make(prefix=0)
    record.photo[:] = 100
    record.maps["attention"][1] = 1 / 12
    record.maps["attention"][1, 1, 2] = 0
    record.maps["attention"][1, 1, 2, 5] = 1
    record = dataclasses.replace(record, window=None)
    colours, counts = np.unique(np.asarray(head_grid(record, 1)).reshape(-1, 3), axis=0, return_counts=True)
    order = counts.argsort()[::-1]
    assert (colours[order[0]] == 255).all()
    assert counts[order[1]] >= 6 * 240 * 180, (
        "the five flat heads, and the mean of the heads of their layer, look alike"
    )


def test_a_method_with_a_single_map():
    lines = describe_heads(make(), 0, "relevance")
    assert len(lines) == 1
    assert head_grid(make(), 0, "relevance").width >= 480


# animation


def frames(data):
    image = Image.open(io.BytesIO(data))
    for index in range(image.n_frames):
        image.seek(index)
        yield image.copy(), image.info["duration"], image.convert("RGB")


def test_animation_shows_the_photo_and_then_each_word_for_ever():
    record = make()
    data = animation(record, seconds=0.5, comment="caption: ein größerer Hund")
    assert data == animation(make(), seconds=0.5, comment="caption: ein größerer Hund"), "equal input, equal bytes"
    image = Image.open(io.BytesIO(data))
    assert image.n_frames == 4
    assert image.info["loop"] == 0
    assert image.info["comment"].decode() == "caption: ein größerer Hund"
    shown = list(frames(data))
    assert [duration for _, duration, _ in shown] == [1000, 500, 500, 500]
    for index, (_, _, found) in enumerate(shown[1:]):
        wanted = np.asarray(word_figure(record, index, side=560)).astype(int)
        off = abs(np.asarray(found).astype(int) - wanted).max(-1)
        assert found.size == wanted.shape[1::-1]
        assert off.mean() < 4
        assert np.percentile(off, 99) <= 16


def test_all_maps_of_an_animation_share_one_palette():
    """The same colours in the same places of two frames come from the same entries, so legend and maps agree."""
    pages = [found for _, _, found in frames(animation(make()))][1:]
    bars = [np.asarray(page)[-90:] for page in pages]
    assert (bars[0] == bars[1]).all()
    assert (bars[0] == bars[2]).all()
    used = set().union(*({tuple(c) for c in np.asarray(page).reshape(-1, 3)} for page in pages))
    assert len(used) <= 256


def test_animation_of_no_words_is_the_photo():
    image = Image.open(io.BytesIO(animation(make(words=()))))
    assert getattr(image, "n_frames", 1) == 1
    with pytest.raises(ValueError, match="seconds=0"):
        animation(make(), seconds=0)


# files


def test_files_of_every_format_with_their_words(tmp_path):
    record = make()
    files = draw_record(record, tmp_path / "new", "p", formats=["sheet", "gif", "grid", "maps"], word="red")
    assert [file.name for file in files] == [
        "p.png",
        "p.gif",
        "p.grid.png",
        "p.01-a.png",
        "p.02-red.png",
        "p.03-dog.png",
    ]
    lines = describe_record(record)
    assert (tmp_path / "new" / "p.txt").read_text(encoding="utf-8").splitlines() == lines
    assert Image.open(files[1]).info["comment"].decode() == "\n".join(lines)
    for file, expected in [
        (files[0], lines),
        (files[2], [lines[0], *describe_heads(record, 1)]),
        (files[4], [*lines[:2], lines[3]]),
    ]:
        with Image.open(file) as page:
            assert page.text["Title"] == "a red dog"
            assert page.text["Description"] == "\n".join(expected)
        assert file.with_suffix(".txt").read_text(encoding="utf-8").splitlines() == expected
    with pytest.raises(ValueError, match="format 'pdf': choose from sheet, gif, grid, maps"):
        draw_record(record, tmp_path, "p", formats=["pdf"])


def test_names_of_words_become_plain_file_names(tmp_path):
    files = draw_record(make(words=("a/b", "..", "größe", "x" * 99)), tmp_path, "p", formats=["maps"])
    assert [file.name for file in files] == ["p.01-a-b.png", "p.02-word.png", "p.03-größe.png", f"p.04-{'x' * 40}.png"]


def test_a_record_that_was_saved_draws_the_same(tmp_path):
    record = dataclasses.replace(make(), source="caf\udce9.png")
    record.save(tmp_path / "r")
    again = AttentionRecord.load(tmp_path / "r.npz")
    assert again.source == record.source
    assert animation(again) == animation(record)
    np.testing.assert_array_equal(np.asarray(sheet(again)), np.asarray(sheet(record)))


# sentences


def test_alignment_of_a_record(tmp_path):
    weights = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.5, 0.5]])[:, None, None]
    words = (Word("das", 0, 1, -0.1), Word("Haus", 1, 3, -0.2))
    record = AttentionRecord(
        words, "das Haus", {"attention": weights}, View("attention"), places=("the", "house"), source="the house"
    )
    page = record_alignment(record, links={(1, 1)})
    expected = alignment_matrix(
        [[0.9, 0.1], [0.3, 0.7]], ["the", "house"], ["das", "Haus"], links={(1, 1)}, title="das Haus"
    )
    np.testing.assert_allclose(np.asarray(page, int), np.asarray(expected, int), atol=1)
    assert describe_record_alignment(record) == [
        "translation: das Haus",
        "source: the house",
        "das (word 1): attends most to the (word 1), 0.90",
        "Haus (word 2): attends most to house (word 2), 0.70",
    ]
    assert [file.name for file in draw_record(record, tmp_path, "s")] == ["s.png"]
    with pytest.raises(ValueError, match="format 'gif': the record is of a sentence"):
        draw_record(record, tmp_path, "s", formats=["gif"])
    with pytest.raises(ValueError, match="of a picture"):
        record_alignment(make())
    with pytest.raises(ValueError, match="no words for 'the house'"):
        record_alignment(dataclasses.replace(record, words=()))
