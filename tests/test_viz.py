"""Attention maps over the original photo: numbers, geometry, and what the drawn sheet looks like."""

import dataclasses
import io
import json
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from vitcap.data.images import load_image
from vitcap.data.transforms import Preprocess
from vitcap.record import AttentionRecord, View, Word, word_map
from vitcap.viz.animation import animation
from vitcap.viz.figures import head_grid, word_figure
from vitcap.viz.heatmap import describe, is_flat, lift, peak, to_photo
from vitcap.viz.overlay import below, paint, sheet
from vitcap.viz.shown import describe_record, method_title, note, show
from vitcap.viz.style import INFERNO, blend, colours
from vitcap.viz.viewer import viewer_html

SIZES = [(640, 360), (360, 640), (1000, 200), (224, 224)]
MODES = ["crop", "squash", "letterbox"]


def window_of(mode, width, height):
    """Square model input: centre crop, whole photo, or padded to a square."""
    if mode == "squash":
        return (0.0, 0.0, float(width), float(height))
    half = (min if mode == "crop" else max)(width, height) / 2
    return (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)


def attention(tokens=4, layers=2, heads=3, memory=7, seed=0):
    weights = np.random.default_rng(seed).random((tokens, layers, heads, memory))
    return weights / weights.sum(-1, keepdims=True)


def shown(image):
    """Set of colours of a picture."""
    return {tuple(colour) for colour in np.asarray(image).reshape(-1, 3).tolist()}


# word_map


def test_pieces_of_a_word_merge_by_the_named_rule():
    pieces = np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])[:, None, None]
    mean = word_map(pieces, (0, 2), grid=(1, 3))
    largest = word_map(pieces, (0, 2), grid=(1, 3), merge="max")
    np.testing.assert_allclose(mean, [[0.3, 0.5, 0.2]])
    np.testing.assert_allclose(largest, [[0.357143, 0.5, 0.142857]], atol=1e-6)


def test_prefix_tokens_never_enter_the_grid_and_values_stay_absolute():
    weights = attention(memory=1 + 6)
    heat = word_map(weights, (1, 2), grid=(2, 3), prefix=1)
    expected = weights[1].mean((0, 1))
    np.testing.assert_allclose(heat, expected[1:].reshape(2, 3))
    assert heat.sum() == pytest.approx(1 - expected[0])
    assert lift(heat).mean() == pytest.approx(1 - expected[0])


def test_layers_and_heads_are_chosen_or_averaged():
    weights = attention(memory=6)
    one = word_map(weights, (2, 3), grid=(2, 3), layers=-1, heads=1)
    np.testing.assert_allclose(one, weights[2, 1, 1].reshape(2, 3))
    some = word_map(weights, (2, 3), grid=(2, 3), layers=0, heads=[0, -1])
    np.testing.assert_allclose(some, weights[2, 0, [0, 2]].mean(0).reshape(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (3, 3)}, r"\(4, 2, 3, 7\).*grid of 3 x 3"),
        ({"prefix": 2}, "2 prefix tokens"),
        ({"span": (2, 2)}, r"span \(2, 2\)"),
        ({"span": (3, 5)}, "4 tokens"),
        ({"layers": 2}, "layers: there is no 2; this model has 2"),
        ({"heads": -4}, "heads: there is no -4"),
        ({"heads": []}, "none chosen"),
        ({"merge": "sum"}, "'mean' or 'max'"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    arguments = {"span": (0, 1), "grid": (2, 3), "prefix": 1} | change
    with pytest.raises(ValueError, match=message):
        word_map(attention(), arguments.pop("span"), **arguments)


def test_attention_that_is_not_finite_is_refused():
    weights = attention()
    weights[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        word_map(weights, (0, 1), grid=(2, 3), prefix=1)


# to_photo


def test_bilinear_worked_values():
    np.testing.assert_allclose(to_photo([[0, 1]], (0, 0, 4, 1), 4, 1)[0], [[0, 0.25, 0.75, 1]])
    grid = np.array([[0.1, 0.3, 0.05], [0.05, 0.4, 0.1]])
    spread, seen = to_photo(grid, (0, 0, 6, 4), 6, 4)
    np.testing.assert_allclose(spread[0], [0.1, 0.15, 0.25, 0.2375, 0.1125, 0.05])
    np.testing.assert_allclose(spread[2], [0.0625, 0.140625, 0.296875, 0.303125, 0.159375, 0.0875])
    assert spread.sum() == pytest.approx(4.0)
    assert seen.all()
    spike = np.zeros((3, 3))
    spike[1, 1] = 1
    spread = to_photo(spike, (0, 0, 9, 9), 9, 9)[0]
    assert spread.min() == 0
    assert spread.sum() == pytest.approx(9)


@pytest.mark.parametrize(("rows", "columns", "height", "width"), [(7, 7, 50, 81), (3, 5, 12, 4), (1, 4, 9, 9)])
def test_squash_equals_torch_interpolate(rows, columns, height, width):
    heat = np.random.default_rng(1).random((rows, columns))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(heat)[None, None], size=(height, width), mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(to_photo(heat, (0, 0, width, height), width, height)[0], expected[0, 0], atol=1e-12)


@pytest.mark.parametrize("cells", [(1.5, -7.0, 26.0, 17.5), (8.0, 4.0, 16.0, 12.0), (-9, -9, 40, 30), (5, 0, 25, 20)])
def test_cells_that_are_not_the_window_lie_where_they_are_said_to(cells):
    """Against NumPy's own interpolation, which holds the outermost values; what is seen is up to the window."""
    heat, window = np.random.default_rng(3).random((4, 5)), (5, 0, 25, 20)
    spread, seen = to_photo(heat, window, 30, 22, cells=cells)
    x0, y0, x1, y1 = cells
    x, y = x0 + (np.arange(5) + 0.5) * (x1 - x0) / 5, y0 + (np.arange(4) + 0.5) * (y1 - y0) / 4
    rows = np.stack([np.interp(np.arange(30) + 0.5, x, line) for line in heat])
    expected = np.stack([np.interp(np.arange(22) + 0.5, y, line) for line in rows.T], -1)
    np.testing.assert_allclose(spread[seen], expected[seen], atol=1e-12)
    assert (seen == to_photo(heat, window, 30, 22)[1]).all()
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert peak(heat, cells) == pytest.approx((x[column], y[row]))
    same = to_photo(heat, window, 30, 22, cells=window)[0]
    np.testing.assert_array_equal(same, to_photo(heat, window, 30, 22)[0])
    with pytest.raises(ValueError, match=r"cells .* is empty"):
        to_photo(heat, window, 30, 22, cells=(5, 5, 5, 9))


def test_crop_and_letterbox_equal_torch_on_the_window():
    heat = np.random.default_rng(2).random((4, 4))
    square = torch.nn.functional.interpolate(
        torch.from_numpy(heat)[None, None], size=(20, 20), mode="bilinear", align_corners=False
    )[0, 0].numpy()
    spread, seen = to_photo(heat, (5, 0, 25, 20), 30, 20)
    np.testing.assert_allclose(spread[:, 5:25], square)
    assert seen[:, 5:25].all()
    assert not seen[:, :5].any()
    assert not seen[:, 25:].any()
    assert not spread[~seen].any()
    spread, seen = to_photo(heat, (0, -4, 20, 16), 20, 12)
    np.testing.assert_allclose(spread, square[4:16])
    assert seen.all()


def test_crop_of_a_real_photo_size_hatches_what_lies_outside():
    """640 x 480, short side to 256, centre crop 224: the window (108.86, 30, 529.27, 450)."""
    _, seen = to_photo(np.ones((14, 14)), (108.856305, 30, 529.266862, 450), 640, 480)
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (30, 449, 109, 528)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
def test_one_hot_patch_peaks_where_it_lies_in_the_photo(size, mode):
    width, height = size
    window = window_of(mode, width, height)
    rows, columns = 8, 10
    patch_width, patch_height = (window[2] - window[0]) / columns, (window[3] - window[1]) / rows
    compared = 0
    for row in range(rows):
        for column in range(columns):
            x, y = window[0] + (column + 0.5) * patch_width, window[1] + (row + 0.5) * patch_height
            if not (0 <= x < width and 0 <= y < height):
                continue
            heat = np.zeros((rows, columns))
            heat[row, column] = 1
            spread, seen = to_photo(heat, window, width, height)
            at_y, at_x = np.unravel_index(spread.argmax(), spread.shape)
            assert seen[at_y, at_x]
            assert abs(at_x + 0.5 - x) <= patch_width / 2
            assert abs(at_y + 0.5 - y) <= patch_height / 2
            assert peak(heat, window) == pytest.approx((x, y))
            compared += 1
    assert compared >= (16 if mode == "letterbox" else 80)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("orientation", [1, 6, 8])
def test_bright_patch_is_found_again_through_the_real_preprocessing(tmp_path, size, mode, orientation):
    """A bright square painted in a stored photo, its EXIF turn, the model's own input, and back to photo pixels."""
    upright = Image.new("RGB", size, (40, 40, 40))
    preprocess = Preprocess(size=(112, 112), mode=mode, mean=(0.1, 0.1, 0.1))
    window = preprocess.window(*size)
    patch_width, patch_height = (window[2] - window[0]) / 7, (window[3] - window[1]) / 7
    turn = {1: None, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for across, down in [(0.15, 0.2), (0.5, 0.5), (0.8, 0.7)]:
        x = min(max(window[0], 0) + across * (min(window[2], size[0]) - max(window[0], 0)), size[0] - 1)
        y = min(max(window[1], 0) + down * (min(window[3], size[1]) - max(window[1], 0)), size[1] - 1)
        painted = upright.copy()
        half = (max(patch_width / 2, 1), max(patch_height / 2, 1))
        painted.paste((255, 255, 255), (int(x - half[0]), int(y - half[1]), int(x + half[0]), int(y + half[1])))
        (painted if turn is None else painted.transpose(turn)).save(tmp_path / "photo.png", exif=exif)
        photo = load_image(tmp_path / "photo.png")
        assert photo.size == size
        cells = preprocess(photo).float().mean(0).reshape(7, 16, 7, 16).mean((1, 3))
        heat = torch.zeros(7, 7)
        heat.view(-1)[cells.argmax()] = 1
        spread, seen = to_photo(heat, preprocess.window(*photo.size), *photo.size)
        found_y, found_x = np.unravel_index(spread.argmax(), spread.shape)
        assert seen[found_y, found_x]
        assert abs(found_x + 0.5 - x) <= patch_width
        assert abs(found_y + 0.5 - y) <= patch_height


def test_bad_geometry_is_refused():
    with pytest.raises(ValueError, match=r"window .* is empty"):
        to_photo(np.ones((2, 2)), (5, 0, 5, 9), 9, 9)
    with pytest.raises(ValueError, match="rows and columns"):
        to_photo(np.ones(4), (0, 0, 9, 9), 9, 9)


# describe


def test_lines_for_screen_readers():
    hot = np.full((4, 4), 0.5 / 15)
    hot[3, 0] = 0.5
    lines = describe(["dog", "of"], [hot, np.full((4, 4), 1 / 16)], (100, 0, 500, 400), 640, 400)
    assert lines[0] == (
        "dog: peak 8.0 times uniform attention at x 150, y 350 of 640 x 400 pixels (bottom left), "
        "patch row 4 of 4, column 1 of 4"
    )
    assert lines[1].startswith("of: flat map")
    assert "1.00 times uniform" in lines[1]
    padded = describe(["dog"], [hot], (0, -120, 640, 520), 640, 400)
    assert "in the padding beside the photo" in padded[0]


def test_flatness_ignores_what_prefix_tokens_took():
    assert is_flat(np.full((3, 3), 0.01))
    assert not is_flat(np.eye(3) / 3)
    assert is_flat(np.zeros((3, 3)))


# overlay


def test_blend_worked_values():
    photo, red = np.array([100, 150, 200]), np.array([255, 0, 0])
    np.testing.assert_allclose(blend(photo, red, 0.5, 0.6), [146.5, 105, 140])
    np.testing.assert_allclose(blend(photo, red, 1.0, 0.5), [177.5, 75, 100])
    np.testing.assert_allclose(blend(photo, red, 0.0, 0.6), photo)


def test_colour_map_is_monotone_in_lightness():
    table = colours(np.linspace(0, 1, 256))
    lightness = table @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(lightness) > 0).all()
    np.testing.assert_allclose(table[[0, -1]], INFERNO[[0, -1]])
    np.testing.assert_allclose(colours([-1.0, 2.0]), INFERNO[[0, -1]])


def test_uniform_attention_renders_a_single_colour():
    photo = Image.new("RGB", (60, 40), (40, 90, 160))
    assert len(shown(paint(photo, np.full((5, 7), 1 / 35), (0, 0, 60, 40), top=4))) == 1


def test_photo_is_not_brightened_by_the_map():
    """A photo under two different maps is the same wherever the maps agree."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 80, 3), dtype=np.uint8))
    low, high = np.full((4, 8), 0.01), np.full((4, 8), 0.01)
    high[0, 7] = 0.3
    first, second = (np.asarray(paint(photo, heat, (0, 0, 80, 40), top=8)) for heat in (low, high))
    assert (first[:, :40] == second[:, :40]).all()
    assert (first[:, 75:] != second[:, 75:]).any()


def test_unseen_pixels_are_hatched_not_coloured():
    photo = Image.new("RGB", (90, 30), (10, 200, 10))
    drawn = np.asarray(paint(photo, np.full((3, 3), 1 / 9), (30, 0, 60, 30), top=4)).astype(int)
    outside = np.concatenate([drawn[:, :30], drawn[:, 60:]], axis=1)
    assert len(shown(outside)) == 2
    assert (np.ptp(outside, axis=-1) == 0).all()
    assert len(shown(drawn[:, 30:60])) == 1
    assert np.ptp(drawn[0, 45]) > 0


def record_of(photo, words, maps, window, *, text=None, chances=None):
    """A record with one layer and head: maps (rows, columns) of attention weights, one of each word."""
    chances = [0.5] * len(words) if chances is None else chances
    spelled = tuple(Word(w, i, i + 1, float(np.log(p))) for i, (w, p) in enumerate(zip(words, chances, strict=True)))
    grid = np.shape(maps[0]) if maps else (2, 2)
    values = np.array(maps, dtype=np.float32).reshape(len(maps), 1, 1, -1) if maps else np.zeros((0, 1, 1, 4), "f4")
    return AttentionRecord(
        spelled,
        " ".join(words) if text is None else text,
        {"attention": values},
        View("attention"),
        grid=grid,
        photo=np.asarray(photo),
        size=photo.size,
        window=window,
    )


def tile_of(page, index, columns, cell=240, row=304, first=98):
    """Picture of one tile of a sheet of square photos."""
    x, y = 24 + index % columns * (cell + 16), first + 24 + index // columns * row
    return np.asarray(page)[y : y + cell, x : x + cell].astype(int)


@pytest.mark.parametrize(("renderer", "side"), [("sheet", 240), ("word", 720), ("heads", 240), ("animation", 240)])
def test_every_picture_puts_cells_where_the_record_says(renderer, side):
    photo, heat = Image.new("RGB", (120, 120), (90, 90, 90)), np.zeros((3, 3))
    heat[1, 1] = 1
    record = record_of(photo, ["dog"], [heat], (0, 0, 120, 120))
    moved = dataclasses.replace(record, cells=(-20.0, 10.0, 100.0, 130.0))

    def drawn(record):
        if renderer == "animation":
            image = Image.open(io.BytesIO(animation(record, side=300)))
            image.seek(1)
        else:
            image = {"sheet": sheet, "word": partial(word_figure, index=0), "heads": partial(head_grid, index=0)}[
                renderer
            ](record)
        return np.asarray(image.convert("RGB")).astype(int)

    pages = drawn(record), drawn(moved)
    there = abs(pages[0] - pages[1]).max(-1) > 20
    tops = [np.argwhere((bright := np.where(there, page.sum(-1), 0)) >= bright.max() - 6).mean(0) for page in pages]
    assert tops[1] - tops[0] == pytest.approx(np.array([10, -20]) * side / 120, abs=3)


def test_words_put_cells_where_the_record_says():
    photo, heat = Image.new("RGB", (120, 120)), np.zeros((3, 3))
    heat[1, 1] = 1
    record = record_of(photo, ["dog"], [heat], (0, 0, 120, 120))
    moved = dataclasses.replace(record, cells=(-25.0, 30.0, 95.0, 150.0))
    assert "at x 60, y 60 of 120 x 120 pixels (middle centre)" in describe_record(record)[2]
    assert "at x 35, y 90 of 120 x 120 pixels (bottom left)" in describe_record(moved)[2]
    beside = dataclasses.replace(record, window=(-120.0, 0.0, 120.0, 120.0), cells=(-120.0, 0.0, 0.0, 120.0))
    assert [below(one, show(one), 0) for one in (record, beside)] == [
        "peak 9.0x uniform",
        "peak 9.0x uniform, in the padding",
    ]


def test_a_method_has_one_title_everywhere():
    photo = Image.new("RGB", (30, 20))
    record = record_of(photo, ["dog"], [np.full((2, 2), 0.25)], (0, 0, 30, 20))
    maps = dict.fromkeys(("attention", "rollout", "relevance", "grad-cam", "mine"), record.maps["attention"])
    for facts, first in (({}, "Cross-attention"), ({"kind": "classify"}, "Attention of the encoder")):
        one = dataclasses.replace(record, maps=maps, facts=facts)
        titles = [first, "Attention rollout", "Gradient-weighted relevance", "Grad-CAM", "Mine"]
        assert [method_title(one, name) for name in maps] == titles
        page = json.loads(viewer_html([one]).partition('id="data">')[2].partition("</script>")[0])
        assert [method["title"] for method in page["photos"][0]["records"][0]["methods"]] == titles
        assert [note(one, View(name), show(one, View(name))).partition(";")[0].partition(":")[0] for name in maps] == (
            titles
        )


def test_sheet_shares_one_scale_between_words():
    photo = Image.new("RGB", (96, 96), (128, 128, 128))
    flat, sharp = np.full((6, 6), 1 / 36), np.full((6, 6), 0.5 / 35)
    sharp[2, 3] = 0.5
    page = sheet(record_of(photo, ["the", "dog"], [flat, sharp], (0, 0, 96, 96)), columns=3)
    photo_tile, first, second = (tile_of(page, index, 3) for index in range(3))
    assert (photo_tile == 128).all()
    assert len(shown(first)) == 1
    centre = second[round(2.5 * 40), round(3.5 * 40)]
    assert centre.sum() > first[0, 0].sum() + 200
    alone = tile_of(sheet(record_of(photo, ["the"], [flat], (0, 0, 96, 96)), columns=2), 1, 2)
    assert len(shown(alone)) == 1
    assert alone[0, 0].sum() > first[0, 0].sum(), "the sharp word must push the flat one down the shared scale"


def test_sheet_keeps_the_proportions_of_the_photo():
    """The tile of the photo has the photo's colour and proportions; pictures of any size are brought to tile size."""
    for width, height in [(640, 360), (360, 640), (1000, 200), (4000, 2), (6000, 4000), (8, 8)]:
        photo = Image.new("RGB", (width, height), (200, 30, 60))
        window = window_of("crop", width, height)
        page = np.asarray(sheet(record_of(photo, ["dog"], [np.full((2, 2), 0.25)], window)))
        y, x = np.nonzero((page == (200, 30, 60)).all(-1))
        tile = (np.ptp(x) + 1, np.ptp(y) + 1)
        assert max(tile) <= 600
        assert tile[0] / tile[1] == pytest.approx(width / height, rel=0.02) or min(tile) == 1


def test_a_smaller_copy_of_the_photo_is_drawn_in_the_coordinates_of_the_original():
    """The window of a record is in pixels of the original, whatever the size of the copy that it keeps."""
    photo = Image.new("RGB", (400, 200), (90, 90, 90))
    heat = np.eye(4) / 4
    large = record_of(photo, ["dog"], [heat], (100, 0, 300, 200))
    small = dataclasses.replace(large, photo=np.asarray(photo.resize((40, 20))))
    assert (np.asarray(sheet(large)) == np.asarray(sheet(small))).all()


def test_long_captions_wrap_over_rows():
    words = ["word"] * 23
    heat = np.full((3, 3), 1 / 9)
    photo = Image.new("RGB", (100, 80))
    page = sheet(record_of(photo, words, [heat] * 23, (0, 0, 100, 80)))
    few = sheet(record_of(photo, words[:3], [heat] * 3, (0, 0, 100, 80)))
    assert page.width <= 1400
    assert page.height > 3 * few.height / 2


@pytest.mark.parametrize("word", ["grüner", "图片", "😀", "عربى", "\ud800", "a\nb\tc", "", "x" * 400])
def test_any_word_can_be_drawn(word):
    photo = Image.new("RGB", (30, 20))
    record = record_of(photo, [word, "dog"], [np.full((2, 2), 0.25)] * 2, (0, 0, 30, 20), text=word)
    assert sheet(record).width < 1400
    assert word_figure(record, 0).width < 1000
    assert head_grid(record, 0).width < 1000
    assert animation(record)[:3] == b"GIF"
    assert len(describe_record(record)) == 4


def test_sheet_without_words_still_shows_the_photo():
    page = np.asarray(sheet(record_of(Image.new("RGB", (30, 30), (9, 200, 30)), [], [], (0, 0, 30, 30))))
    assert (page == (9, 200, 30)).all(-1).sum() == 240 * 240


def test_a_peak_of_a_cell_over_the_edge_of_the_view_is_at_the_edge():
    """Cells of convolutions reach beyond the picture: 3 x 3 of 100 x 60 around a squashed photo of 90 x 60."""
    photo, window, cells = Image.new("RGB", (90, 60)), (0.0, 0.0, 90.0, 60.0), (-105.0, -60.0, 195.0, 120.0)
    heat = np.full((3, 3), 0.05)
    heat[0, 2] = 0.6
    assert peak(heat, cells) == (145.0, -30.0)
    assert peak(heat, cells, window) == (90.0, 0.0)
    record = record_of(photo, ["dog"], [heat], window)
    record = dataclasses.replace(record, cells=cells)
    place = "at x 90, y 0 of 90 x 60 pixels (top right), patch row 1 of 3, column 3 of 3"
    assert describe_record(record)[-1] == f"dog: peak 5.4 times uniform attention {place}"
    assert below(record, show(record), 0) == "peak 5.4x uniform"
    padded = dataclasses.replace(record, window=(-30.0, -30.0, 120.0, 90.0))  # a letterbox is seen, and is no photo
    assert below(padded, show(padded), 0) == "peak 5.4x uniform, in the padding"
    assert "in the padding beside the photo" in describe_record(padded)[-1]


def test_a_peak_in_the_padding_is_said_so():
    """Two equally hot patches: one in the picture, one beside it; only the line below the tile may differ."""
    photo, window = Image.new("RGB", (120, 40), (90, 90, 90)), (0, -40, 120, 80)
    pages = []
    for row in (0, 1):
        heat = np.full((3, 3), 0.05)
        heat[row, 1] = 0.6
        pages.append(np.asarray(sheet(record_of(photo, ["dog"], [heat], window), columns=2)))
    padding, inside = ((page[122 + 139 :, 456:] < 200).all(-1).sum() for page in pages)
    assert padding > inside + 50


def test_end_of_the_scale_can_be_given():
    record = record_of(Image.new("RGB", (40, 40)), ["dog"], [np.eye(4) / 4], (0, 0, 40, 40))
    wide, clipped = (sheet(record, top=top, columns=2) for top in (8, 2))
    assert tile_of(clipped, 1, 2)[30, 30].sum() > tile_of(wide, 1, 2)[30, 30].sum() + 100


def test_sheet_refuses_what_does_not_match():
    record = record_of(Image.new("RGB", (9, 9)), ["a"], [np.full((2, 2), 0.25)], (0, 0, 9, 9))
    with pytest.raises(ValueError, match=r"nofont\.ttf"):
        sheet(record, font="nofont.ttf")
    with pytest.raises(ValueError, match="this record holds no photo"):
        sheet(dataclasses.replace(record, photo=None))
    with pytest.raises(ValueError, match="layers: there is no 1; this model has 1"):
        sheet(record, View("attention", (1,)))
    sentence = AttentionRecord((), "", {"attention": np.zeros((1, 1, 1, 2))}, View("attention"), places=("a", "b"))
    with pytest.raises(ValueError, match="of a sentence"):
        sheet(sentence)
