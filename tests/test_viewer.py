"""The viewer: what its file holds, and what it does under mouse and keys in a real browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image
from test_explain import captioner, classifier, picture

from vitcap.captioner import Captioner
from vitcap.cli import main
from vitcap.explain import explain
from vitcap.metrics.grounding import area, correctness, sights
from vitcap.metrics.regions import Region
from vitcap.record import AttentionRecord, View, Word
from vitcap.viz.alignment import describe_alignment
from vitcap.viz.heatmap import describe_lift, to_photo
from vitcap.viz.overlay import Scale, paint_lift
from vitcap.viz.shown import cells_of, describe_record, show, window_of
from vitcap.viz.viewer import quantise, viewer_html

EVIL = "</script><img src=x onerror=\"document.title='broken'\"><!--<script>'\"&"
WORDS = ["a", "brown", "dog", "jumps", "over", "snow", "flakes"]


def photo(width=700, height=400):
    """Soft colours, so that JPEG keeps them nearly as they are."""
    y, x = np.mgrid[:height, :width]
    parts = [128 + 90 * np.sin(x / 90), 128 + 90 * np.cos(y / 70), 100 + 0.1 * x]
    return np.stack(parts, -1).round().astype(np.uint8)


def attention(tokens, layers, heads, grid, prefix, seed=0):
    """Weights with one bump a token, at a place of its own for each head; those of token 0 are uniform."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: grid[0], : grid[1]]
    out = np.ones((tokens, layers, heads, prefix + grid[0] * grid[1]))
    for index in np.ndindex(tokens, layers, heads):
        if index[0]:
            row, column = rng.uniform(0, grid[0]), rng.uniform(0, grid[1])
            out[index][prefix:] = np.exp(-((y - row) ** 2 + (x - column) ** 2) / rng.uniform(2, 8)).ravel() + 0.01
    return (out / out.sum(-1, keepdims=True)).astype(np.float32)


def make(words=WORDS, *, grid=(5, 7), prefix=2, layers=2, heads=3, seed=0, **changed):
    spans = [(i, i + 1) for i in range(len(words))]
    if words == WORDS:
        spans[-1] = (len(words) - 1, len(words) + 1)  # two pieces
    weights = attention(len(words) + 2, layers, heads, grid, prefix, seed)
    given = {
        "words": tuple(Word(w, *span, -0.1 * i) for i, (w, span) in enumerate(zip(words, spans, strict=True))),
        "text": " ".join(words),
        "maps": {"attention": weights, "relevance": 40 * weights.mean((1, 2), keepdims=True) ** 2 - 0.02},
        "shown": View("attention", layers=(-1,)),
        "grid": grid,
        "prefix": prefix,
        "photo": photo(),
        "size": (1400, 800),
        "window": (300.0, 0.0, 1100.0, 800.0),
        "source": "dog.jpg",
        "facts": {"model": "0123", "seed": 3},
    }
    return AttentionRecord(**given | changed)


def sentence():
    rng = np.random.default_rng(5)
    maps = {"attention": rng.dirichlet(np.ones(4) / 3, (4, 2, 2)).astype(np.float32)}
    words = (Word("the", 0, 1, -0.1), Word("green", 1, 2, -0.2), Word("house", 2, 3, -0.3))
    return AttentionRecord(words, "the green house", maps, View("attention"), places=("la", "maison", "verte", "."))


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_quantised_maps_are_within_half_a_step_and_flat_ones_exact():
    rng = np.random.default_rng(0)
    maps = np.concatenate(
        [rng.dirichlet(np.ones(196) / 20, 50), rng.normal(size=(50, 196)), np.full((1, 196), 1 / 196)]
    )
    codes, low, step = quantise(maps)
    back = low[:, None].astype(float) + step[:, None].astype(float) * codes
    error = abs(back - maps).max(-1)
    assert codes.dtype == np.uint8
    assert (error <= step / 2 * (1 + 1e-3) + 1e-7).all()
    assert (error[:-1] > step[:-1] / 4).all()  # so the bound is tight
    assert (step <= np.ptp(maps, axis=-1) / 255 * (1 + 1e-4) + 1e-9).all()
    assert error[-1] < 1e-9
    with pytest.raises(ValueError, match="not finite"):
        quantise([[0.1, np.nan]])


@pytest.mark.parametrize("noise", [0, 255])
def test_a_photo_takes_less_than_a_megabyte(noise):
    rng = np.random.default_rng(0)
    picture = np.clip(photo(1024, 1024) + rng.integers(0, noise + 1, (1024, 1024, 3)), 0, 255).astype(np.uint8)
    record = make([f"w{i}" for i in range(20)], grid=(14, 14), layers=6, heads=8, photo=picture, size=(1024, 1024))
    page = viewer_html([record])
    entry = data_of(page)["photos"][0]
    codes = base64.b64decode(entry["records"][0]["methods"][0]["codes"])
    assert len(codes) == 20 * 6 * 8 * 14 * 14 == 188_160
    assert len(page.encode()) < 1_000_000
    assert Image.open(io.BytesIO(base64.b64decode(entry["image"].partition(",")[2]))).width > 500


@pytest.mark.parametrize(
    ("side", "layers", "heads", "kept"),
    [(14, 6, 8, [(6, 8), (6, 8)]), (20, 6, 8, [(6, 8), (6, 1)]), (37, 12, 6, [(12, 1), (1, 1)])],
)
def test_many_maps_leave_less_to_the_photo_and_are_averaged_at_last(side, layers, heads, kept):
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    words = [f"w{i}" for i in range(20)]
    weights = attention(len(words), layers, heads, (side, side), 2)
    changed = {"maps": {"attention": weights, "rollout": weights}, "shown": View("attention", (1,), (-1,))}
    page = viewer_html([make(words, grid=(side, side), photo=noise, size=(1024, 1024), **changed)])
    assert len(page.encode()) < 1_000_000
    entry = data_of(page)["photos"][0]["records"][0]
    assert [(method["layers"], method["heads"]) for method in entry["methods"]] == kept
    assert ("rollout: mean of" in dict(entry["facts"]).get("to save space", "")) == (side > 14)
    method = entry["methods"][0]
    codes = np.frombuffer(base64.b64decode(method["codes"]), np.uint8).reshape(20, *kept[0], -1)
    low, step = (np.frombuffer(base64.b64decode(method[n]), "<f4").reshape(20, *kept[0], 1) for n in ("low", "step"))
    error = abs((low + step * codes)[:, 1, -1] - weights[:, 1, -1, 2:])
    assert (error <= step[:, 1, -1] / 2 + 1e-6).all(), "the view that is shown is there in full"


def test_the_file_needs_nothing_else_and_no_text_breaks_out():
    record = make([EVIL, "\ud800"], text=EVIL, source=EVIL, facts={EVIL: EVIL})
    page = viewer_html([record], title=EVIL, boxes=[[(EVIL, (0, 0, 9, 9))]], names=[EVIL], about={"attention": EVIL})
    page.encode("utf-8")
    tags: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)
            assert not {name for name, _ in attrs} & {"src", "onerror", "action"}

    Parser().feed(page)
    assert tags.count("script") == 2
    assert "img" not in tags
    entry = data_of(page)["photos"][0]
    assert entry["name"] == entry["records"][0]["words"][0]["text"] == entry["boxes"][0][0] == EVIL
    quiet = viewer_html([make(), make()], beside=[make(), make()])
    for word in (
        "http:",
        "https:",
        "//cdn",
        "<script src",
        "fetch(",
        "import(",
        "XMLHttpRequest",
        "innerHTML",
        "eval(",
    ):
        assert word not in quiet


def test_what_does_not_fit_is_one_clear_error():
    for records, options, wrong in (
        ([], {}, "no records"),
        ([make()], {"boxes": []}, "boxes: 0 entries for 1 records"),
        ([make()], {"beside": [make(), make()]}, "beside: 2 entries"),
        ([make(photo=None)], {}, r"dog.jpg: the record holds no photo"),
        ([make()], {"beside": [sentence()]}, "side by side"),
    ):
        with pytest.raises(ValueError, match=wrong):
            viewer_html(records, **options)


def test_records_become_a_page_without_a_model(tmp_path, capsys):
    make().save(tmp_path / "one")
    known = {
        "images": [{"id": 7, "file_name": "x/dog.jpg", "width": 1400, "height": 800}],
        "categories": [{"id": 1, "name": "dog"}],
        "annotations": [
            {"image_id": 7, "category_id": 1, "bbox": [400, 200, 300, 250], "iscrowd": 0},
            {"image_id": 7, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 1},
        ],
    }
    (tmp_path / "instances.json").write_text(json.dumps(known))
    command = ["viewer", str(tmp_path / "one.npz"), "--out", str(tmp_path / "deep" / "a.html")]
    assert main([*command, "--annotations", str(tmp_path / "instances.json"), "--title", "T & T"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'deep' / 'a.html'}\n"
    page = (tmp_path / "deep" / "a.html").read_text(encoding="utf-8")
    assert "<h1>T &amp; T</h1>" in page
    entry = data_of(page)["photos"][0]
    assert entry["boxes"] == [["dog", [400, 200, 700, 450]]]
    assert entry["records"][0]["methods"][0]["about"].startswith("Cross-attention weights")
    known["images"][0]["width"] = 640
    (tmp_path / "instances.json").write_text(json.dumps(known))
    assert main([*command, "--annotations", str(tmp_path / "instances.json")]) == 0
    assert "a picture of 640 x 800 pixels, which this is not" in capsys.readouterr().err
    assert main([*command, "--caption", "a dog"]) == 2
    assert main(["viewer", str(tmp_path / "one.npz"), "--out", str(tmp_path)]) == 2


def test_the_page_never_replaces_another_file(tmp_path, capsys):
    make().save(tmp_path / "one")
    for name in ("one.npz", "one.json"):
        before = (tmp_path / name).read_bytes()
        assert main(["viewer", str(tmp_path / "one.npz"), "--out", str(tmp_path / name)]) == 2
        assert f"{name}: is there already and is no page" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == before
    page = ["--out", str(tmp_path / "a.html")]
    assert main(["viewer", str(tmp_path / "one.npz"), *page]) == 0
    assert main(["viewer", str(tmp_path / "one.npz"), *page]) == 0, "a page is written anew"
    for option in (["--methods", "attention"], ["--seed", "3"], ["--beams", "2"]):
        assert main(["viewer", str(tmp_path / "one.npz"), *page, *option]) == 2
        assert f"{option[0]} is for photos" in capsys.readouterr().err
    (tmp_path / "two.npz").write_bytes(b"")
    assert main(["viewer", str(tmp_path / "two.npz"), str(tmp_path / "one.npz"), *page]) == 1
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'a.html'}\n"
    assert "two.json: no such file" in err
    assert "1 of 2 files could not be read" in err


def test_photos_become_a_page_with_two_models_and_bad_ones_are_skipped(tmp_path, capsys):
    files = {
        decoder: captioner(decoder).save(tmp_path / f"{decoder}.safetensors") for decoder in ("transformer", "rnn")
    }
    for index in range(2):
        picture(seed=index).save(tmp_path / f"p{index}.png")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    paths = [str(tmp_path / name) for name in ("p0.png", "broken.jpg", "p1.png")]
    command = ["viewer", *paths, "--model", str(files["transformer"]), "--out", str(tmp_path / "a.html")]
    assert main([*command, "--model2", str(files["rnn"]), "--caption", "a green circle", "--quiet"]) == 1
    assert "broken.jpg" in (said := capsys.readouterr()).err
    assert "1 of 3 pictures could not be read" in said.err
    photos = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["photos"]
    assert [entry["name"] for entry in photos] == ["p0.png", "p1.png"]
    for entry, path in zip(photos, (paths[0], paths[2]), strict=True):
        for pane, (decoder, door) in zip(entry["records"], files.items(), strict=True):
            record = explain(Captioner.load(door), path, caption="a green circle", methods="all")
            assert pane["name"] == f"{decoder}.safetensors"
            assert [word["text"] for word in pane["words"]] == ["a", "green", "circle"]
            assert [method["name"] for method in pane["methods"]] == list(record.maps)
            method = pane["methods"][0]
            low, step = (np.frombuffer(base64.b64decode(method[name]), "<f4")[:, None] for name in ("low", "step"))
            codes = np.frombuffer(base64.b64decode(method["codes"]), np.uint8).reshape(len(low), -1)
            wanted = record.maps["attention"][:3, ..., record.prefix :].reshape(codes.shape)
            assert (abs(low + step * codes - wanted) <= step / 2 + 1e-6).all()
    assert main([*command, "--methods", "attention,nonsense"]) == 2
    assert "method 'nonsense'" in capsys.readouterr().err
    assert main([*command, "--caption", "a green circle", "--beams", "3"]) == 2
    assert "--beams is for captions that the model writes" in capsys.readouterr().err
    assert main([*command, "--top-classes", "3"]) == 2


def test_a_classifier_shows_its_likeliest_classes(tmp_path):
    door = classifier()
    picture().save(tmp_path / "p.png")
    record = explain(door, tmp_path / "p.png", methods="all", top=2)
    entry = data_of(viewer_html([record]))["photos"][0]["records"][0]
    assert entry["classes"]
    assert [word["text"] for word in entry["words"]] == [word.text for word in record.words]


def test_two_classifiers_agree_on_classes_of_one_name(tmp_path, monkeypatch):
    door = classifier()
    assert len(set(door.class_names)) < len(door.classes)
    monkeypatch.setattr("vitcap.cli.viewer.load", lambda *_: door)
    picture().save(tmp_path / "p.png")
    command = ["viewer", str(tmp_path / "p.png"), "--model", "a", "--model2", "b", "--out", str(tmp_path / "a.html")]
    assert main([*command, "--top-classes", "6", "--methods", "attention"]) == 0
    one, two = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["photos"][0]["records"]
    assert one["words"] == two["words"]


# In a browser.


def find_browser():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    try:
        import selenium  # noqa: F401
    except ImportError:
        browser = None
    if browser is None or driver is None:
        wanted = "needs Chromium and its driver (apt-get install chromium chromium-driver; pip install selenium)"
        if os.environ.get("CI"):
            pytest.fail(wanted)
        pytest.skip(wanted)
    return browser, driver


@pytest.fixture(scope="module")
def chrome():
    browser, driver = find_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options, Service(driver))
    session.set_script_timeout(20)
    yield session
    session.quit()


class Page:
    """An opened page: its elements, pixels and texts."""

    def __init__(self, chrome):
        self.chrome = chrome

    def js(self, code, *arguments):
        return self.chrome.execute_script(code, *arguments)

    def all(self, selector):
        return self.chrome.find_elements("css selector", selector)

    def one(self, selector):
        return self.chrome.find_element("css selector", selector)

    def keys(self, *keys):
        self.js("return document.activeElement").send_keys(*keys)

    def wait(self, condition):
        until = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < until, "the page did not get there"
            time.sleep(0.02)

    def size(self, width, height=900):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, **features):
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": given})

    def pixels(self, selector="figure > canvas"):
        url = self.js("return document.querySelector(arguments[0]).toDataURL()", selector)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")).astype(float)

    def said(self, pane=0):
        return self.all(".said")[pane].get_attribute("textContent")

    def chosen(self, pane=0):
        return self.js("return page.panes[arguments[0]].word", pane)

    def set(self, selector, value):
        code = "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        self.js(code + "for (const n of ['input', 'change']) e.dispatchEvent(new Event(n))", selector, value)


@pytest.fixture
def view(chrome, tmp_path):
    """view(records, ...): the page of these records, opened from disk."""
    page = Page(chrome)
    page.size(1200)
    page.prefer(prefers_color_scheme="light", prefers_reduced_motion="no-preference")

    def open_page(*records, **options):
        path = tmp_path / "a # page.html"
        path.write_text(viewer_html(records, **options), encoding="utf-8")
        chrome.get(path.as_uri())
        page.wait(lambda: page.js("return document.body.dataset.ready === '0'"))
        return page

    yield open_page
    assert [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"] == []
    loaded = page.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


def jpeg(record):
    """The photo as the page has it."""
    url = data_of(viewer_html([record]))["photos"][0]["image"]
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def painted(record, word, view=None, *, alpha=0.6, top=None):
    """The picture that the page should show, by the renderer of the PNG sheets."""
    lifts = show(record, view or record.shown)
    image = jpeg(record)
    end = top or Scale.of(lifts).end
    window, cells = window_of(record, *image.size), cells_of(record, *image.size)
    drawn = paint_lift(image, lifts.lifts[word, 0], window, cells=cells, top=end, alpha=alpha)
    return np.asarray(drawn).astype(float)


def assert_same_picture(got, wanted):
    assert got.shape == wanted.shape
    difference = abs(got - wanted)
    assert difference.mean() < 0.7
    assert difference.max() <= 8  # JPEG decoders differ by a little


WINDOWS = {"crop": (300.0, 0.0, 1100.0, 800.0), "squash": (0.0, 0.0, 1400.0, 800.0), "letterbox": (0, -300, 1400, 1100)}
WINDOWS["moved"] = WINDOWS["crop"]  # the cells, against what the model saw


@pytest.mark.parametrize("mode", WINDOWS)
def test_hovering_over_a_word_shows_its_map_as_the_sheets_draw_it(view, mode):
    from selenium.webdriver import ActionChains

    record = make(window=WINDOWS[mode], cells=(250.0, -60.0, 1400.0, 740.0) if mode == "moved" else None)
    page = view(record)
    words = page.all(".word")
    assert [word.find_element("css selector", "b").text for word in words] == WORDS
    pinned = page.chosen()
    lines = describe_record(record)[2:]
    for index in (2, 6):
        ActionChains(page.chrome, duration=20).move_to_element(words[index]).perform()
        assert_same_picture(page.pixels(), painted(record, index))
        assert page.said().startswith(f"{lines[index]};")
        assert page.one("figure > canvas").get_attribute("aria-label") == page.said()
    assert page.chosen() == pinned  # the pointer only looks
    ActionChains(page.chrome, duration=20).move_to_element(page.one("h1")).perform()
    assert_same_picture(page.pixels(), painted(record, pinned))


def test_the_peak_is_where_the_geometry_puts_it(view):
    record = make(photo=np.full((400, 700, 3), 90, dtype=np.uint8))
    page = view(record)
    for index in range(1, len(WORDS)):
        page.all(".word")[index].click()
        spread, seen = to_photo(record.map(index), window_of(record, 700, 400), 700, 400)
        brightness = np.where(seen, page.pixels().sum(-1), 0)  # it grows with the value on this scale
        assert spread.flat[brightness.argmax()] > 0.97 * spread.max()
        assert brightness.flat[spread.argmax()] > brightness.max() - 4


def test_arrow_keys_and_focus_walk_over_the_words(view):
    from selenium.webdriver import Keys

    record = make()
    page = view(record)
    page.all(".word")[0].click()
    for key, wanted in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_DOWN, 2), (Keys.ARROW_LEFT, 1), (Keys.END, 6)):
        page.keys(key)
        assert page.chosen() == wanted
        assert page.js("return document.activeElement === document.querySelectorAll('.word')[arguments[0]]", wanted)
        assert [word.get_attribute("aria-selected") for word in page.all(".word")].index("true") == wanted
        assert [word.get_attribute("tabindex") for word in page.all(".word")].count("0") == 1
        assert_same_picture(page.pixels(), painted(record, wanted))
    page.keys(Keys.ARROW_RIGHT)
    assert page.chosen() == 0
    page.keys(Keys.ARROW_LEFT)
    assert page.chosen() == 6
    page.js("document.querySelectorAll('.word')[3].focus()")
    assert page.chosen() == 3
    page.js("document.activeElement.blur()")
    page.keys(Keys.ARROW_RIGHT)  # on the page itself
    assert page.chosen() == 4


def test_controls_change_the_picture(view):
    record = make(window=WINDOWS["squash"])
    page = view(record, about={"attention": "how it is weighed", "relevance": "by gradient"})
    page.all(".word")[2].click()
    assert page.one(".about").text == "how it is weighed"
    for layer, head, chosen in (
        ("[0]", "null", View("attention", (0,))),
        ("null", "[2]", View("attention", None, (2,))),
        ("[1]", "[1]", View("attention", (1,), (1,))),
    ):
        page.set("select[name=layer]", layer)
        page.set("select[name=head]", head)
        assert_same_picture(page.pixels(), painted(record, 2, chosen))
        assert page.said().startswith(describe_record(record, chosen)[4])
        assert float(page.one(".legend").get_attribute("data-end")) == Scale.of(show(record, chosen)).end
    page.set("select[name=method]", "relevance")
    assert_same_picture(page.pixels(), painted(record, 2, View("relevance")))
    assert page.said() == f"{describe_record(record, View('relevance'))[4]}."
    assert "mean of all maps" in page.one(".legend").text
    assert "negative values are drawn as 0" in page.one(".legend").text
    assert page.one(".about").text == "by gradient"
    assert not page.one("select[name=layer]").is_displayed()  # there is but one

    page.set("select[name=method]", "attention")
    page.set("#scale", "own")
    page.all(".word")[2].click()
    lifts = show(record, View("attention", (0,), (0,)))
    page.set("select[name=layer]", "[0]")
    page.set("select[name=head]", "[0]")
    end = float(page.one(".legend").get_attribute("data-end"))
    assert end == Scale.of(replace(lifts, lifts=lifts.lifts[2:3])).end < Scale.of(lifts).end
    page.set("select[name=layer]", "null")
    page.set("select[name=head]", "null")
    end = float(page.one(".legend").get_attribute("data-end"))
    assert "do not compare" in page.one(".legend mark").text
    assert_same_picture(page.pixels(), painted(record, 2, View("attention"), top=end))

    page.set("#opacity", 0)
    assert_same_picture(page.pixels(), np.asarray(jpeg(record)).astype(float))
    page.set("#opacity", 90)
    assert_same_picture(page.pixels(), painted(record, 2, View("attention"), alpha=0.9, top=end))


def test_flat_maps_look_flat_and_prefix_tokens_are_told(view):
    grey = np.full((400, 700, 3), 90, dtype=np.uint8)
    page = view(make(photo=grey, window=WINDOWS["squash"]))
    page.all(".word")[0].click()
    assert np.ptp(page.pixels(), axis=(0, 1)).max() <= 1
    assert page.said().startswith("a: flat map, no place stands out (peak 0.95 times uniform attention)")
    assert "5 % of its attention went to 2 tokens that are no place in the photo" in page.said()


def test_boxes_are_drawn_and_measured(view):
    grid = np.array([[0.1, 0.3, 0.05], [0.05, 0.4, 0.1]], dtype=np.float32)  # published worked values
    options = {"grid": (2, 3), "prefix": 0, "size": (48, 32), "window": (0.0, 0.0, 48.0, 32.0)}
    options |= {"photo": photo(960, 640), "maps": {"attention": grid.reshape(1, 1, 1, 6)}, "shown": View("attention")}
    record = make(["dog"], **options)
    page = view(
        record, record, boxes=[[("dog", (8, 4, 32, 24)), ("dog", (24, 10, 44, 26)), ("cat", (8, 4, 32, 24))], None]
    )
    before = page.pixels()
    assert "inside" not in page.said()
    page.one("#boxes").click()
    # 0.5609375 of the map in the union that covers 0.4479167; 0.475 in the one box of 0.3125.
    assert "inside boxes: dog 56 % (1.3 times its area), cat 48 % (1.5 times its area)." in page.said()
    changed = np.argwhere(abs(page.pixels() - before).max(-1) > 30)
    assert abs(changed.min(0)[1] - 160) <= 4
    assert abs(changed.max(0) - [520, 880]).max() <= 4
    edge = page.pixels()[300, 160]
    assert abs(edge - [64, 216, 255]).max() < 12
    window = "[0,0,48,32]"
    got = page.js(f"return inside([.1,.3,.05,.05,.4,.1],[2,3],{window},{window},[[8,4,32,24],[24,10,44,26]])")
    np.testing.assert_allclose([got["share"], got["share"] / got["times"]], [0.5609375, 0.4479167], atol=1e-6)
    page.all(".shot")[1].click()
    page.wait(lambda: page.js("return document.body.dataset.ready === '1'"))
    assert not page.one("#boxed").is_displayed()


COVERED = """
const bar = document.querySelector("#tools").getBoundingClientRect();
return [...document.querySelectorAll("button,select,.word,.said,summary,.legend")].filter((e) => {
  const r = e.getBoundingClientRect();
  const over = r.left < bar.right && bar.left < r.right && r.top < bar.bottom && bar.top < r.bottom;
  return over && !e.closest("#tools");
}).map((e) => e.name || e.className || e.tagName);"""


@pytest.mark.parametrize("size", [(1440, 1000), (1200, 700), (900, 600)])
def test_the_bar_of_controls_lies_on_nothing(size, view):
    """Nor on what the keyboard then goes to."""
    record = make([*WORDS[:3], *(f"word{i}" for i in range(20))], layers=6, heads=8)
    page = view(record)
    page.size(*size)
    assert page.js(COVERED) == []
    for selector in ("select[name=method]", "select[name=head]", ".word[tabindex='0']", "summary"):
        page.js("document.querySelector(arguments[0]).focus()", selector)
        page.js("document.activeElement.scrollIntoView({ block: 'start', behavior: 'instant' })")
        inside = "const [a, b] = [document.activeElement, document.querySelector('#tools')]"
        inside += ".map((e) => e.getBoundingClientRect());return a.top >= b.bottom - 1 && a.bottom <= innerHeight"
        assert page.js(inside), selector


def test_labels_of_boxes_do_not_lie_on_each_other(view):
    page = view(make())
    rng = np.random.default_rng(4)
    width, height, high = 640, 480, 19
    for count in (1, 2, 8, 60):
        corner = rng.uniform([0, 0], [width - 60, height - 60], (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(20, 300, (count, 2))], 1).clip(0, [width, height] * 2)
        boxes[: count // 2] = boxes[0]  # several of one object
        wide = rng.uniform(30, 90, count).tolist()
        found = page.js("return placeLabels(...arguments)", boxes.tolist(), wide, high, [width, height])
        placed = [(x, y, x + w, y + high) for place, w in zip(found, wide, strict=True) if place for x, y in [place]]
        assert len(placed) >= min(count, 8)
        for index, (x0, y0, x1, y1) in enumerate(placed):
            assert 0 <= x0 <= x1 <= width
            assert 0 <= y0 <= y1 <= height
            for a0, b0, a1, b1 in placed[:index]:
                assert x0 >= a1 - 1e-9 or a0 >= x1 - 1e-9 or y0 >= b1 - 1e-9 or b0 >= y1 - 1e-9
    assert page.js("return placeLabels([[50, 60, 90, 99]], [30], 19, [640, 480])") == [[50, 41]]  # above, if it can
    assert page.js("return placeLabels([[50, 5, 90, 99]], [30], 19, [640, 480])") == [[50, 0]]


def test_the_strip_holds_all_photos_and_the_keyboard_reaches_everything(view):
    from selenium.webdriver import ActionChains, Keys

    records = [
        make(seed=i, photo=photo(700, 400 + 100 * i), size=(1400, 800 + 200 * i), source=f"{i}.jpg") for i in (0, 1)
    ]
    page = view(*records, boxes=[[], []])
    page.set("select[name=head]", "[1]")
    page.all(".shot")[0].click()
    page.keys(Keys.ARROW_RIGHT)
    page.wait(lambda: page.js("return document.body.dataset.ready === '1'"))
    assert [shot.get_attribute("aria-selected") for shot in page.all(".shot")] == ["false", "true"]
    page.all(".word")[3].click()
    kept = View("attention", (1,), (1,))  # the view goes along
    assert_same_picture(page.pixels(), painted(records[1], 3, kept))
    assert page.js("return page.panes[0].view") == {"method": "attention", "layers": [1], "heads": [1]}

    page.one("h1").click()  # Tab goes on from there
    seen = []
    for _ in range(14):
        ActionChains(page.chrome, duration=10).send_keys(Keys.TAB).perform()
        seen.append(page.js("const e = document.activeElement; return e.id || e.name || e.className || e.tagName"))
    wanted = ["theme", "shot", "play", "opacity", "scale", "boxes", "word shown", "method", "layer", "head", "SUMMARY"]
    assert [name for name in seen if name in wanted][: len(wanted)] == wanted
    assert set(seen) - set(wanted) <= {"BODY"}  # and out again: no trap
    page.js("document.querySelector('.word[tabindex=\"0\"]').focus()")
    ActionChains(page.chrome, duration=10).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    ActionChains(page.chrome, duration=10).send_keys(Keys.TAB).perform()
    assert page.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_screen_readers_get_names_roles_and_texts(view):
    page = view(make())
    tree = page.chrome.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]}
    assert ("listbox", "Words of the caption") in named
    assert ("option", "dog 82 %") in {(role, " ".join(name.split())) for role, name in named}
    assert {"Method", "Layer", "Head", "Colour scale"} <= {name for role, name in named if role == "combobox"}
    assert any(role == "slider" and name.startswith("Opacity") for role, name in named)
    assert ("button", "Play") in named
    assert page.one(".said").get_attribute("aria-live") == "polite"
    assert not [role for role, name in named if role in ("button", "combobox", "slider", "image") and not name]


def test_play_walks_over_the_words(view):
    page = view(make())
    start = page.chosen()
    page.one("#play").click()
    assert page.one("#play").get_attribute("aria-pressed") == "true"
    assert page.one(".said").get_attribute("aria-live") == "off"
    page.wait(lambda: page.chosen() == (start + 1) % len(WORDS))
    page.one("#play").click()
    assert page.one("#play").text == "Play"
    assert page.one(".said").get_attribute("aria-live") == "polite"


def luminance(text):
    channels = [int(number) / 255 for number in re.findall(r"\d+", text)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_can_both_be_read(view):
    page = view(make())
    colours = "const s = getComputedStyle(document.querySelector(arguments[0]));return [s.color, s.backgroundColor]"
    found = {}
    for scheme in ("dark", "light"):
        page.prefer(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        page.wait(lambda: page.js("return document.documentElement.dataset.theme") == scheme)  # noqa: B023
        for selector, part in (
            ("body", "body"),
            (".word b", ".word:not(.shown)"),
            (".about", ".pane"),
            ("#play", "#play"),
        ):
            ink, paper = page.js(colours, selector)[0], page.js(colours, part)[1]
            light, deep = sorted([luminance(ink), luminance(paper)], reverse=True)
            assert (light + 0.05) / (deep + 0.05) >= 4.5, (scheme, selector)
        found[scheme] = luminance(page.js(colours, "body")[1])
    assert found["dark"] < 0.05 < 0.8 < found["light"]
    page.one("#theme").click()
    assert luminance(page.js(colours, "body")[1]) == found["dark"]
    assert page.one("#theme").text == "Light colours"  # what the next click does
    page.one("#theme").click()
    assert page.one("#theme").text == "Dark colours"
    assert page.js("return getComputedStyle(document.querySelector('.word')).transitionProperty") == "none"


def test_a_phones_width_is_enough(view):
    long = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamter"
    record = make([*WORDS[:3], long], source=long * 2, facts={"model": long * 3})
    several = make(layers=12, heads=16)
    for records, options in (
        ((record, several, record, record, record), {}),
        ((several,), {"beside": [record]}),
        ((sentence(),), {}),
    ):
        page = view(*records, title=long, boxes=[[]] * len(records), **options)
        page.size(360, 740)
        page.js("document.querySelectorAll('details').forEach((e) => (e.open = true))")
        assert page.js("return document.documentElement.scrollWidth") <= 360
        assert page.js("return innerWidth") == 360
        small = page.js("return [...document.querySelectorAll('button,select,.word')].map((e) => e.clientHeight)")
        assert min(size for size in small if size) >= 24
        page.size(1200)


def test_two_models_stand_side_by_side_on_one_scale(view):
    record, other = make(), make(grid=(3, 3), prefix=0, layers=1, heads=1, seed=9)
    page = view(record, beside=[other], names=["Transformer", "LSTM"])
    assert [heading.text for heading in page.all("h2")] == ["Transformer", "LSTM"]
    page.all(".word")[3].click()
    assert (page.chosen(0), page.chosen(1)) == (3, 3)
    ends = [float(legend.get_attribute("data-end")) for legend in page.all(".legend")]
    assert ends == [max(Scale.of(show(one)).end for one in (record, other))] * 2
    assert_same_picture(
        page.pixels(".pane:last-child figure > canvas"), painted(other, 3, View("attention"), top=ends[0])
    )
    assert page.said(1) == f"{describe_record(other)[5]}."
    page.all(".pane:last-child .word")[5].click()
    assert page.chosen(0) == 5


def test_classes_are_words_and_a_record_may_have_none(view):
    classes = make(["golden retriever", "tabby cat"], facts={"kind": "classify"}, text="golden retriever")
    page = view(classes, make([], text=""))
    assert page.one(".words").get_attribute("aria-label") == "Classes"
    assert [word.find_element("css selector", "small").text for word in page.all(".word")] == ["100 %", "90 %"]
    assert page.chosen() == 0
    page.all(".shot")[1].click()
    page.wait(lambda: page.js("return document.body.dataset.ready === '1'"))
    assert page.one(".caption").text == "(no words)"
    assert abs(page.pixels() - np.asarray(jpeg(make([], text=""))).astype(float)).mean() < 0.7
    assert not page.one("#play").is_displayed()


def test_a_sentence_shows_its_alignment(view):
    record = sentence()
    page = view(record)
    weights = record.maps["attention"][:3].mean((1, 2))
    cells = [float(cell.text) for cell in page.all(".matrix td")[1:]]
    np.testing.assert_allclose(np.reshape(cells, (3, 4)), weights, atol=0.006)
    lines = describe_alignment(weights, record.places, ["the", "green", "house"])
    for index in (1, 2):
        page.all(".word")[index].click()
        assert page.said() == f"{lines[index]}."
        assert "shown" in page.all("tr")[1 + index].get_attribute("class")
    assert not page.one("#opacity").is_displayed()
    page.set("select[name=head]", "[1]")
    np.testing.assert_allclose(
        float(page.all(".matrix td")[1].text), record.maps["attention"][0, :, 1, 0].mean(), atol=0.006
    )


def test_a_hostile_text_stays_text(view):
    page = view(make([EVIL, "b"], text=EVIL, source=EVIL, facts={EVIL: EVIL}), title=EVIL, names=[EVIL])
    assert page.chrome.title == " ".join(EVIL.split())
    assert page.all(".word b")[0].text == EVIL
    assert page.one(".caption").text == EVIL
    assert page.all("img:not([src^='data:image/jpeg'])") == []
    page.js("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    assert page.js("return window.ran ?? null") is None  # the page's own policy
    assert "Content Security Policy" in page.chrome.get_log("browser")[0]["message"]


def test_the_scripts_compute_what_the_package_computes(view):
    page = view(make())
    rng = np.random.default_rng(1)
    for rows, columns, window in ((1, 1, (3, 2, 50, 30)), (3, 5, (-7.5, 4, 33.25, 61)), (14, 14, (0, 0, 64, 48))):
        heat = rng.random((rows, columns))
        for cells in (window, (window[0] - 5.5, window[1] + 4, window[2] - 2, window[3] + 7)):
            got = page.js("return Array.from(spread(...arguments), (v) => (Number.isNaN(v) ? -1 : v))",
                          heat.ravel().tolist(), [rows, columns], cells, window, 64, 48)  # fmt: skip
            values, seen = to_photo(heat, window, 64, 48, cells=cells)
            np.testing.assert_allclose(np.reshape(got, (48, 64)), np.where(seen, values, -1), atol=1e-6)
            told = page.js("return describe('a', ...arguments)",
                           heat.ravel().tolist(), "mean", [rows, columns], cells, [64, 48], window)  # fmt: skip
            assert told == describe_lift("a", heat, cells, 64, 48, unit="mean", window=window)
            boxes = [(6, 4, 30, 25), (20, 10, 64, 40)]
            got = page.js("return inside(...arguments)", heat.ravel().tolist(), [rows, columns], cells, window, boxes)
            size = (64, 64)  # which holds all windows but one, of which the page counts the padding
            if window[0] >= 0:
                cover, sight = sights(Region.of_boxes(boxes), window, (rows, columns), size, cells=cells)
                share = float(correctness(heat, cover, sight))
                np.testing.assert_allclose([got["share"], got["times"]], [share, share / area(cover, sight)])
    numbers = [0.125, 0.375, 2.5, 3.5, 310.5, 0.25, 0.35, 2.45, 1.005, 1e-9, 0, *rng.random(200).tolist()]
    for digits in (0, 1, 2):
        got = page.js("return arguments[0].map((x) => fixed(x, arguments[1]))", numbers, digits)
        assert got == [f"{x:.{digits}f}" for x in numbers]
