"""The report of a run: what stands in it, that it is one file, that no text of it can be more than text, and that it
never costs the results."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import TINY
from hydra import compose, initialize_config_dir
from PIL import Image

import vitcap
from vitcap import cli, run, run_folder
from vitcap.build import data_of_run
from vitcap.report import make, write_report
from vitcap.report.charts import charts
from vitcap.report.examples import rank
from vitcap.report.folder import read_run
from vitcap.report.markdown import text as marked
from vitcap.report.page import encode
from vitcap.viz.svg import line_chart

CONF = Path(__file__).resolve().parents[1] / "conf"
NASTY = "<script>alert('x')</script> & \"a\" | `b` *c* [d](e) \u202eRTL \u0000 \ud800 \u732b"
VOID = {"meta", "img", "br", "path", "circle", "polyline"}


class Page(HTMLParser):
    """Tags of a page in order, its texts, and whether what opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def images(self) -> list[Image.Image]:
        found = []
        for tag, attributes in self.tags:
            if tag == "img":
                assert attributes["alt"]
                head, _, content = attributes["src"].partition(",")
                assert head in ("data:image/jpeg;base64", "data:image/png;base64")
                found.append(Image.open(io.BytesIO(base64.b64decode(content, validate=True))))
                found[-1].load()
                assert found[-1].size == (int(attributes["width"]), int(attributes["height"]))
        return found


def config(*overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*TINY, "trainer.accelerator=cpu", "report=true", *overrides])


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    """A run on drawn scenes of two epochs, with its report."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    more = [
        "trainer.max_epochs=2",
        "trainer.log_every_n_steps=1",
        "report_examples=2",
        "validation_decode.max_length=6",
    ]
    return out, run.train(config(*more, "decode.max_length=6", f"out={out}"))


@pytest.fixture
def copied(captioner, tmp_path):
    """A copy of it to damage."""
    shutil.copytree(captioner[0], tmp_path / "run")
    return tmp_path / "run"


def test_the_page_is_one_file_with_all_that_it_shows(captioner):
    out, scores = captioner
    text = (out / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "base", "form"})
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not {"href", "srcset", "action"} & set(attributes)
    assert "http" not in re.sub(r'xmlns="[^"]*"|http-equiv', "", text)
    assert "url(" not in text
    assert "@import" not in text
    assert len(text) < 3_000_000
    told = " ".join(page.texts)
    for name in ("CIDEr-D", "BLEU-4"):
        assert f"{100 * scores['scores'][name]:.1f}" in told
    for piece in ("12 pictures of data=shapes, split val", "5 references each", "decoded by greedy search", "seed 0"):
        assert piece in told
    assert "Checkpoint best.ckpt, chosen by val/CIDEr-D (max), greedy search." in told
    assert vitcap.__version__ in told
    assert "train_size: 40" in told  # the config
    headings = [told for (tag, _), told in zip(page.tags, page.tags[1:], strict=False) if tag == "h2"]
    assert len(headings) >= 5
    assert len(page.images()) >= 4  # photos and maps
    assert len([tag for tag, _ in page.tags if tag == "svg"]) >= 4
    assert all(attributes["aria-label"] for tag, attributes in page.tags if tag == "svg")


def test_markdown_has_the_same_and_its_pictures(captioner):
    out, _ = captioner
    text = (out / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"!\[.+?\]\((\S+)\)", text)
    assert len(links) == len(set(links))
    for link in links:
        assert link.startswith("report/")
        if link.endswith(".svg"):
            ElementTree.parse(out / link)
        else:
            Image.open(out / link).load()
    assert sorted(path.name for path in (out / "report").iterdir()) == sorted(link.partition("/")[2] for link in links)
    page = " ".join(Page((out / "report.html").read_text(encoding="utf-8")).texts)
    for line in text.splitlines():
        if line.startswith("## "):
            assert line[3:] in page


def test_examples_are_the_best_and_the_worst(copied):
    file = copied / "per_image.json"
    content = json.loads(file.read_text())
    figures = [0.3, 2.0, 0.0, 1.5, 0.0, 9.9, 0.7, 0.0, 4.0, 0.2, 0.1, 1.0]
    for number, one in enumerate(content["images"].values()):
        one |= {"CIDEr-D": figures[number], "score": -0.1 * number}
    file.write_text(json.dumps(content))
    ids = list(content["images"])
    best, worst, told = rank(read_run(copied), 3)
    assert best == [ids[5], ids[8], ids[1]]
    assert worst == [ids[2], ids[4], ids[7]]  # all 0: the surest first
    assert "CIDEr-D" in told
    for count in (6, 7, 100):
        best, worst, _ = rank(read_run(copied), count)
        assert sorted(best + worst) == sorted(ids)
    for one in content["images"].values():
        one["CIDEr-D"] = 0.0
    file.write_text(json.dumps(content))
    best, worst, _ = rank(read_run(copied), 2)
    assert len({*best, *worst}) == 4


def test_examples_show_caption_references_and_photo_of_their_record(captioner):
    out, _ = captioner
    each = json.loads((out / "per_image.json").read_text())["images"]
    best, worst, _ = rank(read_run(out), 2)
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    wanted = {str(record.image_id): record for record in data_of_run(out).records("val")}
    texts = [" ".join(text.split()) for text in page.texts]
    for id_ in (*best, *worst):
        assert each[id_]["caption"] in texts
        assert set(wanted[id_].captions) <= set(texts)
    photo = page.images()[0]
    original = np.asarray(wanted[best[0]].open().convert("RGB").resize(photo.size), dtype=float)
    assert abs(np.asarray(photo.convert("RGB"), dtype=float) - original).mean() < 6  # as far as JPEG keeps it


def test_vitcap_report_makes_the_same_report_again(captioner, copied, capsys):
    before = (copied / "report.html").read_text(encoding="utf-8")
    (copied / "report.html").unlink()
    assert cli.main(["report", str(copied), "--examples", "2", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip() == str(copied / "report.html")
    again = (copied / "report.html").read_text(encoding="utf-8")
    assert again == before.replace("Run tiny", "Run run").replace("vitcap report tiny", "vitcap report run")


def test_any_text_stays_text(copied):
    """Captions, ids, config and warnings may be anything."""
    per_image = json.loads((copied / "per_image.json").read_text())
    per_image["images"] = {
        f"{NASTY}{n}": one | {"caption": NASTY} for n, one in enumerate(per_image["images"].values())
    }
    (copied / "per_image.json").write_text(json.dumps(per_image))
    scores = json.loads((copied / "scores.json").read_text())
    scores["facts"] |= {"data": NASTY, "warnings": [NASTY], "most_frequent_caption": {"caption": NASTY, "share": 1.0}}
    (copied / "scores.json").write_text(json.dumps(scores))
    (copied / "unreadable.json").write_text(json.dumps({"val": {NASTY: NASTY}}))
    (copied / "config.yaml").write_bytes(NASTY.encode("utf-8", "replace"))
    clean = Page(write_report(copied, count=2).read_text(encoding="utf-8"))
    assert not any(tag == "script" for tag, _ in clean.tags)
    assert sum("<script>alert('x')</script> & \"a\"" in text for text in clean.texts) >= 8
    assert "\x00" not in "".join(clean.texts)
    text = (copied / "report.md").read_text(encoding="utf-8")
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.M | re.S)
    assert "<script" not in outside
    assert "[d](e)" not in outside


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("# a", r"\# a"),
        ("1. a", r"1\. a"),
        ("a | b", r"a \| b"),
        ("*a* _b_", r"\*a\* \_b\_"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("a\nb", "a b"),
        ("- a", r"\- a"),
    ],
)
def test_markdown_escapes(given, wanted):
    assert marked(given) == wanted


def test_a_report_that_fails_costs_nothing(config, tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setattr(make, "page", lambda document: 1 / 0)
    out = tmp_path / "run"
    cfg = config(
        *TINY, "report=true", "report_examples=0", "trainer.max_steps=1", "trainer.accelerator=cpu", f"out={out}"
    )
    with caplog.at_level("WARNING"):
        run.command(run.train, cfg)  # SystemExit if it failed
    lines = [record.getMessage() for record in caplog.records if "no report" in record.getMessage()]
    assert len(lines) == 1
    assert "ZeroDivisionError" in lines[0]
    assert "\n" not in lines[0]
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "scores.json").read_text())["scores"]
    assert not (out / "report.html").exists()
    assert f"scores and outputs: {out}/" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("report=no", "report=no: true or false is wanted"),
        ("overwrite=off", "overwrite=off: true or false is wanted"),
        ("samples=-1", "samples=-1: a whole number of at least 0 is wanted"),
        ("early_stopping=soon", "early_stopping=soon: a whole number of at least 1 is wanted"),
    ],
)
def test_a_mistaken_option_costs_no_run(option, message, copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message):
        run.train(config(f"out={copied}", option))
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_a_new_run_takes_the_old_report_away(copied):
    note = copied / "report" / "my notes.txt"
    note.write_text("mine")
    run_folder.clear(copied)
    left = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()}
    assert left == {"config.yaml", "report/my notes.txt"}


def test_without_data_there_are_numbers_and_a_word_why(copied, capsys):
    text = (copied / "config.yaml").read_text().replace("vitcap.data.shapes.ShapesSource", "os.system")
    (copied / "config.yaml").write_text(text)
    assert cli.main(["report", str(copied), "--examples", "1"]) == 0
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "os.system" in told
    page = Page((copied / "report.html").read_text(encoding="utf-8"))
    assert any("Without photos and references" in text for text in page.texts)
    assert not page.images()


def rescored(out: Path, **more) -> None:
    file = out / "scores.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


def test_what_is_damaged_beside_the_scores_is_left_out(copied):
    """Rows before the damage of metrics.csv stay; a score that is none does not rank."""
    (copied / "metrics.csv").write_text(f"step,val/loss\n0,3.5\n1,2.5\n2,{'9' * 200_000}\n")
    assert read_run(copied).curves == {"val/loss": [(1, 3.5), (2, 2.5)]}
    file = copied / "per_image.json"
    content = json.loads(file.read_text())
    ids = list(content["images"])
    for number, one in enumerate(content["images"].values()):
        one |= {"score": ["sure", None, float("nan")][number % 3], "CIDEr-D": 1.0 * number}
    content["images"][ids[-1]]["CIDEr-D"] = None
    file.write_text(json.dumps(content))
    assert rank(read_run(copied), 1)[:2] == ([ids[-2]], [ids[0]])
    (copied / "grounding.json").write_text(json.dumps({"verdict": {"text": "looked at", "ok": True}}))
    (copied / "grounding.png").write_bytes(b"no picture")
    (copied / "metrics.csv").write_text("step,val/loss\n0,1e308\n1,-1e308\n")  # a span beyond all numbers
    page = " ".join(Page(write_report(copied).read_text(encoding="utf-8")).texts)
    assert "grounding.png cannot be read" in page


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda out: (out / "scores.json").unlink(), "scores.json: no such file"),
        (lambda out: (out / "scores.json").write_text("[1]"), "scores.json: list"),
        (lambda out: (out / "scores.json").write_text("{"), "scores.json: damaged"),
        (lambda out: (out / "per_image.json").write_text("{"), "per_image.json: damaged"),
        (
            lambda out: (out / "predictions.csv").write_text("id,class\n"),
            "predictions.csv: no columns id, class, predic",
        ),
        (lambda out: (out / "translations.tsv").write_text(""), "translations.tsv: no columns id, source, output, tar"),
        (lambda out: (out / "per_image.json").write_text('{"images": [1]}'), "per_image.json: images is no object"),
        (lambda out: (out / "per_image.json").write_text('{"images": {"7": {}}}'), "per_image.json: 7 has no caption"),
        (lambda out: (out / "per_image.json").write_text("[" * 99_999), "per_image.json: damaged (maximum recursion"),
        (lambda out: rescored(out, alignment={}), "scores.json or a file beside it is not as evaluation writes it"),
        (lambda out: rescored(out, scores={"BLEU-4": "x"}), "run: scores.json or a file beside it is not as"),
    ],
)
def test_damaged_runs_are_one_line(damage, message, copied, capsys):
    damage(copied)
    assert cli.main(["report", str(copied)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert message in told


def test_classes_and_translations_have_reports_too(tmp_path):
    """From the files alone: right and wrong ones that the model was surest of; exact ones first."""
    facts = {"data": "x", "split": "val"}
    classes, sentences = tmp_path / "classes", tmp_path / "sentences"
    for folder, scores in ((classes, {"top-1": 0.5, "NLL": 1.25}), (sentences, {"exact": 0.5, "BLEU-4": 0.3})):
        folder.mkdir()
        (folder / "scores.json").write_text(json.dumps({"scores": scores, "facts": facts}))
    dog = "dog\u2028\n, large"  # a name may hold anything
    rows = [("1", "cat", "cat", 0.6), ("2", "cat", dog, 0.9), ("3", dog, dog, 0.8), ("4", dog, "cat", 0.3)]
    with open(classes / "predictions.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "class", "predicted", "probability"), *rows])
    lines = ["id\tsource\toutput\ttarget", 'a\t1 2\t2 1 "\t2 1 "', "b\t3 4\t4\t4 3", "c\t5 6\t9 9\t6 5"]
    (sentences / "translations.tsv").write_text("\n".join(lines) + "\n")
    assert [read_run(classes).each[id_]["predicted"] for id_ in "1234"] == ["cat", dog, dog, "cat"]
    assert rank(read_run(classes), 1)[:2] == (["3"], ["2"])
    each = read_run(sentences).each
    assert [(one["exact"], one["BLEU-1"]) for one in each.values()] == [
        (True, pytest.approx(1)),
        (False, pytest.approx(np.exp(1 - 2 / 1))),  # half as long
        (False, pytest.approx(0, abs=1e-6)),
    ]
    assert rank(read_run(sentences), 1)[:2] == (["a"], ["c"])
    assert rank(read_run(sentences), 2)[:2] == (["a", "b"], ["c"])
    for folder in (classes, sentences):
        page = Page(write_report(folder).read_text(encoding="utf-8"))
        assert "Worst examples" in page.texts
    assert "1.2500" in " ".join(Page((classes / "report.html").read_text()).texts)


def test_curves_are_those_of_the_run(captioner):
    out, _ = captioner
    with open(out / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    curves = read_run(out).curves
    loss = [(int(row["step"]) + 1, float(row["train/loss_step"])) for row in rows if row["train/loss_step"]]
    assert curves["train/loss_step"] == loss
    assert len(loss) == 10
    made = {chart.title: chart for chart in charts(curves)}
    assert {"loss", "learning rate", "CIDEr-D, times 100"} <= set(made)
    assert f"{loss[-1][1]:.4g} at step 10" in made["loss"].alt
    for chart in made.values():
        ElementTree.fromstring(chart.page)
        ElementTree.fromstring(chart.file)


def test_a_chart_puts_points_where_they_belong():
    """Equal steps are equally far apart, along both axes; what is not finite is left out."""
    drawn = ElementTree.fromstring(
        line_chart({"a<b": [(0, 0.0), (1, 1.0), (2, 2.0), (3, float("nan"))]}, xlabel="x", alt="y")
    )
    name = "{http://www.w3.org/2000/svg}"
    spots = [tuple(map(float, spot.split(","))) for spot in drawn.find(f"{name}polyline").get("points").split()]
    assert len(spots) == 3
    (x0, y0), (x1, y1), (x2, y2) = spots
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x2 > x0
    assert y2 < y0  # up is less
    ticks = {t.text: float(t.get("y")) - 4 for t in drawn.iter(f"{name}text") if t.get("text-anchor") == "end"}
    assert ticks["0"] == y0
    assert ticks["2"] == y2
    assert "a<b" in [t.text for t in drawn.iter(f"{name}text")]
    with pytest.raises(ValueError, match="finite point"):
        line_chart({"a": [(0, float("inf"))]}, xlabel="x", alt="y")


def test_drawings_keep_their_colours():
    picture = Image.new("RGB", (40, 20), (10, 20, 30))
    kind, content = encode(picture, exact=True)
    assert kind == "png"
    assert Image.open(io.BytesIO(content)).convert("RGB").getpixel((3, 3)) == (10, 20, 30)


def test_a_run_that_ended_early_says_so(tmp_path, caplog):
    caplog.set_level("INFO", "vitcap.run")
    out = tmp_path / "early"
    options = ("validation_decode.max_length=1", "early_stopping=1", "trainer.max_epochs=30", "report=true")
    report = run.train(config(f"out={out}", "task.lr=1e-9", *options))
    assert report["facts"]["stopped_early"]
    assert report["facts"]["epochs"] < 30
    assert "the last 1 without a better CIDEr-D; early_stopping=null goes on" in caplog.text
    assert "ended early as the score did not rise" in (out / "report.md").read_text(encoding="utf-8")
