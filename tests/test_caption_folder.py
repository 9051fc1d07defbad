"""`vitcap caption` on folders, lists and patterns: outputs, resuming, twins, sidecars, templates, progress."""

import csv
import io
import json
import math
import os
import random
import shlex
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pages
import pytest
from PIL import Image

import vitcap
from vitcap.cli import caption as command
from vitcap.cli import captions, main, pictures
from vitcap.cli.outputs import output
from vitcap.cli.prefetch import read_ahead
from vitcap.cli.rows import FIELDS
from vitcap.data.images import ImageError
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam
from vitcap.types import EOS
from vitcap.writer import Caption


class Scripted:
    """Says the brightness of a picture ("level 120"); the brighter, the surer. Breaks off after so many pictures."""

    search, preprocess = Beam(beams=2, max_length=12), Preprocess(size=(8, 8))
    tokenizer = SimpleNamespace(decode=lambda ids: f"t{ids[0]}")
    caption = None

    def __init__(self, stop_after=math.inf, fingerprint="0123456789abcdef", words="level"):
        self.seen, self.stop_after, self.fingerprint, self.words = 0, stop_after, fingerprint, words

    def write_all(self, inputs, make_batch, *, search, **options):
        self.seen += len(inputs)
        if self.seen > self.stop_after:
            raise KeyboardInterrupt
        count = getattr(search, "n_best", 1)
        return [self.one(int(image.float().mean()), count) for image in make_batch(inputs).images]

    def one(self, level, count):
        probs = tuple(math.log((level + 1) / 256) * share for share in (0.5, 1, 1.5))  # of mean log((level + 1) / 256)
        text = f"{self.words} {level}"
        others = tuple(Caption(f"{text}, {k}", (), (7, 9, EOS), probs, -k, True) for k in range(1, count))
        return Caption(text, (), (7, 9, EOS), probs, -0.5, True, others)


@pytest.fixture
def model(monkeypatch):
    """model(**options) makes the scripted captioner that `vitcap caption` will load."""

    def use(**options):
        captioner = Scripted(**options)
        monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": captioner)
        return captioner

    use()
    return use


def draw(path, level):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 10), (level,) * 3).save(path)
    return str(path)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six pictures in a folder and its sub-folder, with names that need care; the working folder is above them."""
    monkeypatch.chdir(tmp_path)
    names = ["a,b.png", 'c "d".png', "é 图.png", "sub/e.png", "sub/new\nline.png", "z=.png"]
    return [draw(f"in/{name}", 40 * index) for index, name in enumerate(names)]


def run(*arguments):
    return main(["caption", *map(str, arguments), "--model", "m"])


def jsonl(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def table(path):
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        return list(csv.DictReader(file, strict=True))


# outputs


def test_csv_is_what_a_spreadsheet_reads(model, photos, monkeypatch):
    model(words='a "red", dog\u2019s 犬\r')
    assert run("in", "--out", "c.csv", "--n-best", 2, "--min-confidence", 0.5) == 0
    raw = Path("c.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbfimage,caption,probability,score,finished,text,same_as,below_confidence,error,")
    rows = table("c.csv")
    assert [row["image"] for row in rows] == sorted(photos, key=Path)
    for row in rows:
        level = 40 * photos.index(row["image"])
        assert row["caption"] == f'a "red", dog\u2019s 犬\r {level}'
        assert row["caption_2"] == f'a "red", dog\u2019s 犬\r {level}, 1'
        assert float(row["probability"]) == pytest.approx((level + 1) / 256, abs=1e-6)
        assert row["below_confidence"] == ("true" if level < 127 else "false")
        assert (row["finished"], row["text"], row["same_as"], row["error"]) == ("true", "", "", "")
    assert {row["model"] for row in rows} == {"0123456789abcdef"}


def test_names_that_are_no_utf8_survive_csv(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.png")
    try:
        draw(name, 9)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only UTF-8 names")
    assert run(".", "--out", "c.csv", "--sidecar") == 0
    assert [row["image"] for row in table("c.csv")] == [name]
    assert Path(os.fsdecode(b"caf\xe9.txt")).read_text() == "level 9\n"
    assert run(".", "--out", "c.csv") == 0
    assert len(table("c.csv")) == 1


def test_names_that_are_formulas_are_texts_in_csv(model, tmp_path, monkeypatch):
    """A photo of a stranger may be called =cmd|..., which a spreadsheet would run."""
    monkeypatch.chdir(tmp_path)
    names = ["=1+1.png", "+1.png", "-1.png", "@a.png", "\t=1.png", "'=1.png", "''@.png", "'a.png", "a=1.png"]
    for level, name in enumerate(names):
        draw(name, level)
    Path("list").write_text("\n".join(names))
    arguments = ("--from-file", "list", "--out", "c.csv", "--template", "={caption}")
    assert run(*arguments) == 0
    rows = table("c.csv")
    marked = ["'" + name for name in names[:7]] + names[7:]
    assert [row["image"] for row in rows] == marked
    assert {row["text"][:3] for row in rows} == {"'=l"}
    assert all(float(row["score"]) < 0 for row in rows)
    assert [row["image"] for row in output(Path("c.csv")).rows()] == names
    content = Path("c.csv").read_bytes()
    assert run(*arguments) == 0
    assert Path("c.csv").read_bytes() == content


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_run_cut_anywhere_ends_like_an_uninterrupted_one(model, photos, suffix, capsys):
    captioner = model()
    assert run("in", "--out", f"whole.{suffix}") == 0
    content = Path(f"whole.{suffix}").read_bytes()
    out = Path(f"c.{suffix}")
    last = (
        content[-40:] if suffix == "csv" else content[-40:-1]
    )  # options end every row; JSON is whole without its "\n"
    spots = {*range(0, len(content), len(content) // 40), len(content) - 1, len(content)}
    for spot in sorted({*spots, content.find(b"}") + 1}):  # behind a token, too
        out.write_bytes(content[:spot])
        captioner.seen = 0
        assert run("in", "--out", out, "--quiet") == 0
        assert out.read_bytes() == content, spot
        assert captioner.seen == 6 - content[:spot].count(last), spot
    assert captioner.seen == 0, "all was there"


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_interrupted_run_goes_on_and_failed_pictures_are_tried_again(model, photos, suffix, capsys):
    read = jsonl if suffix == "jsonl" else table
    Path(photos[1]).write_bytes(b"")
    model(stop_after=3)
    assert run("in", "--out", f"c.{suffix}", "--batch-size", 1) == 130
    assert len(read(f"c.{suffix}")) == 4
    captioner = model()
    assert run("in", "--out", f"c.{suffix}", "--batch-size", 1) == 1
    assert captioner.seen == 2
    draw(photos[1], 40)
    assert run("in", "--out", f"c.{suffix}") == 0
    assert captioner.seen == 3
    rows = read(f"c.{suffix}")
    assert [row["image"] for row in rows] == sorted(photos, key=Path)
    assert not any(row.get("error") for row in rows)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("options", "other", "told"),
    [
        ([], {"fingerprint": "f" * 16}, "made by another model (0123456789abcdef; now ffffffffffffffff)"),
        (["--beams", "3"], {}, "made with other options (beams=2; now beams=3)"),
        (["--template", "x {caption}"], {}, 'made with other options (unknown; now template="x {caption}")'),
        (["--min-confidence", "0.25"], {}, "(unknown; now min_confidence=0.25)"),
    ],
)
def test_output_of_another_model_or_other_options_is_refused(model, photos, capsys, suffix, options, other, told):
    assert run("in", "--out", f"c.{suffix}") == 0
    with open(f"c.{suffix}", "ab") as file:
        file.write(b'{"imag' if suffix == "jsonl" else b"cut")
    content = Path(f"c.{suffix}").read_bytes()
    model(**other)
    capsys.readouterr()
    assert run("in", "--out", f"c.{suffix}", "--quiet", *options) == 2
    err = capsys.readouterr().err
    assert told in err
    assert "name another --out, or remove it" in err
    assert Path(f"c.{suffix}").read_bytes() == content


@pytest.mark.parametrize("content", [b"name,age\r\nx,3\r\n", b'"' * 999, b"\x89PNG\r\n", b"image,caption\na,b\n"])
def test_a_table_that_holds_something_else_is_not_touched(model, photos, content, capsys):
    Path("c.csv").write_bytes(content)
    assert run("in", "--out", "c.csv") == 2
    assert "c.csv, line 1: not a table of captions" in capsys.readouterr().err
    assert Path("c.csv").read_bytes() == content


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"image": "in/z=.png", "split": "train", "captions": ["my own words"]}\n', "c.jsonl, line 1: not a caption"),
        (b'{"image": "in/z=.png", "split": "train", "captions": ["my own words"]}', "c.jsonl, line 1: not a caption"),
        (
            b'{"image": "in/z=.png", "split": "train", "caption": "my own words"}\n',
            "made by another model (unknown; now",
        ),
    ],
)
def test_a_table_to_train_on_is_not_touched(model, photos, content, told, capsys):
    Path("c.jsonl").write_bytes(content)
    assert run("in", "--out", "c.jsonl") == 2
    assert told in capsys.readouterr().err
    assert Path("c.jsonl").read_bytes() == content


def test_a_damaged_row_is_named_by_its_line(model, photos, capsys):
    assert run("in", "--out", "c.csv") == 0
    content = Path("c.csv").read_bytes()
    Path("c.csv").write_bytes(content + b"x,y\r\n")
    assert run("in", "--out", "c.csv") == 2
    line = content.count(b"\n") + 1  # one name has a line break, too
    assert f"c.csv, line {line}: not a caption record" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_two_runs_cannot_write_one_output(model, photos, suffix, capsys):
    """The one that ends first would replace the file, and what the other adds would be lost."""
    Path(photos[1]).write_bytes(b"")  # its row is taken out before it is tried again
    assert run("in", "--out", f"c.{suffix}") == 1
    content = Path(f"c.{suffix}").read_bytes()
    first = output(Path(f"c.{suffix}"))
    with first.writer() as write:
        capsys.readouterr()
        assert run("in", "--out", f"c.{suffix}") == 2
        assert f"c.{suffix}: another run is writing it" in capsys.readouterr().err
        output(Path(f"c.{suffix}")).put_in_order([])
        write({"image": "x.png", "caption": "x"})
    assert Path(f"c.{suffix}").read_bytes() == content + first.dump({"image": "x.png", "caption": "x"})
    with output(Path(f"new.{suffix}")).writer():
        assert run("in", "--out", f"new.{suffix}") == 2
    assert Path(f"new.{suffix}").read_bytes() == b""


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_putting_in_order_is_a_stable_sort_and_holds_little(tmp_path, suffix):
    out = output(tmp_path / f"c.{suffix}")
    paths = [f"p{index}\n.png" for index in range(400)]
    others = [f"q{index}" for index in range(20)]
    rows = [{"image": name, "caption": f'"{name}", ' + "x" * 10_000} for name in (*paths, *others)]
    random.Random(0).shuffle(rows)
    with out.writer() as write:
        for row in rows:
            write(row)
    tracemalloc.start()
    out.put_in_order(paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    place = {path: index for index, path in enumerate(paths)}
    wanted = sorted(rows, key=lambda row: place.get(row["image"], -1))
    assert [(row["image"], row["caption"]) for row in out.rows()] == [(r["image"], r["caption"]) for r in wanted]
    assert peak < out.path.stat().st_size / 8
    assert list(tmp_path.iterdir()) == [out.path]


# twins


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_pictures_of_the_same_bytes_are_read_once(model, tmp_path, monkeypatch, suffix, capsys):
    monkeypatch.chdir(tmp_path)
    levels = [5, 9, 5, 5, 9, 7]
    for index, level in enumerate(levels):  # BMP: all of the same size, so that size alone tells nothing
        draw(f"in/{index}.bmp", level)
    opened = []
    load = captions.load_image
    monkeypatch.setattr(captions, "load_image", lambda path: opened.append(path) or load(path))
    captioner = model()
    out = f"c.{suffix}"
    assert run("in", "--out", out, "--batch-size", 2, "--workers", 4, "--template", "{stem}: {caption}") == 0
    rows = jsonl(out) if suffix == "jsonl" else table(out)
    assert [row["caption"] for row in rows] == [f"level {level}" for level in levels]
    assert [row["text"] for row in rows] == [f"{index}: level {level}" for index, level in enumerate(levels)]
    firsts = [row.get("same_as") or None for row in rows]
    assert firsts == [None, None, "in/0.bmp", "in/0.bmp", "in/1.bmp", None]
    assert sorted(opened) == ["in/0.bmp", "in/1.bmp", "in/5.bmp"]
    assert captioner.seen == 3
    assert "vitcap: 3 pictures have the bytes of another" in capsys.readouterr().err

    draw("in/6.bmp", 9)
    assert run("in", "--out", out, "--template", "{stem}: {caption}") == 0
    last = (jsonl(out) if suffix == "jsonl" else table(out))[-1]
    assert (last["image"], last["same_as"], last["text"]) == ("in/6.bmp", "in/1.bmp", "6: level 9")
    assert captioner.seen == 3, "an earlier run has it"


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_twins_of_what_an_earlier_run_wrote_are_as_sure(model, tmp_path, monkeypatch, suffix, capsys):
    monkeypatch.chdir(tmp_path)
    for name, level in (("a", 5), ("b", 200)):
        draw(f"in/{name}.bmp", level)
    options = ["in", "--out", f"c.{suffix}", "--min-confidence", 0.5, "--sidecar"]
    assert run(*options) == 0
    for name, level in (("c", 5), ("d", 200)):
        draw(f"in/{name}.bmp", level)
    capsys.readouterr()
    captioner = model()
    assert run(*options) == 0
    assert captioner.seen == 0
    assert "in/c.bmp: not sure (0.023): level 5\nvitcap: 2 pictures have" in capsys.readouterr().err
    rows = jsonl(f"c.{suffix}") if suffix == "jsonl" else table(f"c.{suffix}")
    assert [str(row["below_confidence"]).lower() for row in rows] == ["true", "false", "true", "false"]
    assert [row.get("same_as") or None for row in rows] == [None, None, "in/a.bmp", "in/b.bmp"]
    assert sorted(path.name for path in Path("in").glob("*.txt")) == ["b.txt", "d.txt"]


def test_twins_of_a_bad_picture_are_reported_by_their_own_names(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png"):
        Path(name).write_bytes(b"<html>gone</html>")
    assert run("a.png", "b.png", "--out", "c.jsonl") == 1
    rows = jsonl("c.jsonl")
    assert [row["error"].replace(row["image"], "?") for row in rows] == 2 * [rows[0]["error"].replace("a.png", "?")]
    assert "skipped b.png: an HTML page" in capsys.readouterr().err


# reading ahead


def test_reading_ahead_keeps_order_works_at_once_and_is_bounded():
    alive = weakref.WeakSet()
    meet = threading.Barrier(4)  # passed only if four pictures are read at once

    class Picture:
        pass

    def read(path):
        if int(path) < 4:
            meet.wait(timeout=30)
        time.sleep(random.random() / 500)
        if path == "7":
            raise ImageError("7: bad")
        alive.add(one := Picture())
        one.path = path
        return one

    most = 0
    got = []
    for item in read_ahead([str(k) for k in range(200)], read, workers=4, ahead=10):
        most = max(most, len(alive))
        assert isinstance(item.found, ImageError) if item.path == "7" else item.found.path == item.path
        got.append(item.path)
        del item
    assert got == [str(k) for k in range(200)]
    assert most <= 11


def test_reading_ahead_stops_when_nobody_wants_more():
    started = []

    def read(path):
        started.append(path)
        time.sleep(0.005)

    items = read_ahead([str(k) for k in range(1000)], read, workers=2, ahead=60)
    assert next(items).path == "0"
    items.close()
    count = len(started)
    time.sleep(0.05)
    assert len(started) == count < 60


# lists and patterns


@pytest.mark.parametrize(
    "content",
    [
        b"in/a,b.png\nin/sub\n",
        b"\xef\xbb\xbfin/a,b.png\r\n\r\nin/sub",
        b"in/a,b.png\0in/sub/e.png\0in/sub/new\nline.png\0",
    ],
    ids=["lines", "windows", "nul"],
)
def test_lists_of_paths(model, photos, content, capsys, monkeypatch):
    Path("list.txt").write_bytes(content)
    assert run("in/z=.png", "--from-file", "list.txt", "--out", "c.jsonl") == 0
    wanted = ["in/z=.png", "in/a,b.png", "in/sub/e.png", "in/sub/new\nline.png"]
    assert [row["image"] for row in jsonl("c.jsonl")] == wanted
    for arguments in (["-"], ["--from-file", "-"]):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert run("in/z=.png", *arguments, "--out", f"{len(arguments)}.jsonl") == 0
        assert [row["image"] for row in jsonl(f"{len(arguments)}.jsonl")] == wanted


def test_a_list_names_files_and_no_patterns(model, photos, capsys):
    Path("list.txt").write_text("in/*.png\nin/a,b.png\n")
    assert run("--from-file", "list.txt") == 1
    out, err = capsys.readouterr()
    assert out == "in/a,b.png\tlevel 0\n"
    assert "skipped in/*.png: does not exist" in err


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "l.txt: no path in this list"), (b" \n\n", "no path"), ("in".encode("utf-16"), "l.txt: a list in UTF-16")],
)
def test_lists_that_name_nothing(model, photos, capsys, content, told):
    Path("l.txt").write_bytes(content)
    assert run("--from-file", "l.txt") == 2
    assert told in capsys.readouterr().err
    assert run("--from-file", "none.txt") == 2
    assert "none.txt: No such file or directory" in capsys.readouterr().err
    assert run() == 2
    assert "no photos: name a PHOTO_OR_FOLDER" in capsys.readouterr().err


def test_patterns_and_folders_with_links_in_circles_and_hidden_files(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(["p/a.png", "p/b/c.png", "p/b/D.JPG", "p/.hid/e.png", "p/.f.png", "p/x[1].png"]):
        draw(name, index)
    Path("p/notes.txt").write_text("x")
    os.symlink("..", "p/b/up")
    os.symlink(tmp_path / "p", "p/round")
    every = ["p/a.png", "p/b/D.JPG", "p/b/c.png", "p/x[1].png"]
    for given, wanted in {
        "p": every,
        "p/**/*.png": [name for name in every if name != "p/b/D.JPG"],
        "p/*": every,
        "**": every,
        "p/b/*.[Jj][Pp]*": ["p/b/D.JPG"],
        "p/x[1].png": ["p/x[1].png"],  # a file's own name comes first
        "p/.*/*.png": ["p/.hid/e.png"],
        str(tmp_path / "p" / "?.png"): [str(tmp_path / "p" / "a.png")],
    }.items():
        assert run(given) == 0
        assert [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()] == wanted, given
    assert run("p/*.gif") == 2
    assert "p/*.gif: there is no such file, and as a pattern it matches no picture" in capsys.readouterr().err
    assert run("p/**.png") == 2
    assert "p/**.png: " in capsys.readouterr().err


# templates and confidence


def test_template(model, photos, capsys):
    template = "{{{stem}}} in {folder}: {caption} ({probability:.2f}, {name}, {path}, {score})"
    assert run("in/sub/e.png", "--template", template, "--out", "c.jsonl", "--sidecar") == 0
    wanted = "{e} in sub: level 120 (0.47, e.png, in/sub/e.png, -0.5)"
    assert (jsonl("c.jsonl")[0]["text"], jsonl("c.jsonl")[0]["caption"]) == (wanted, "level 120")
    assert Path("in/sub/e.txt").read_text() == wanted + "\n"
    assert run("in/sub/e.png", "--template", "a photo of {caption}") == 0
    assert capsys.readouterr().out == "in/sub/e.png\ta photo of level 120\n"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{captoin}", "there is no field {captoin}; fields are {caption}, {probability}"),
        ("{}", "there is no field {}"),
        ("{caption.__class__}", "there is no field {caption.__class__}"),
        ("{caption", "expected '}'"),
        ("}", "'}'"),
        ("{caption:d}", "format code"),
        ("{probability:{wide}}", "wide"),
    ],
)
def test_a_wrong_template_is_told_before_any_work(photos, monkeypatch, capsys, template, told):
    monkeypatch.setattr(vitcap, "load", None)
    monkeypatch.setattr(command, "picture_paths", None)
    assert run("in", "--template", template) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"vitcap: error: --template {template!r}: ")
    assert told in err
    assert err.count("\n") == 1


def test_captions_below_the_wanted_confidence(model, photos, capsys):
    model()
    logs = [math.log(81 / 256) * share for share in (0.5, 1, 1.5)]  # of the third photo
    limit = float(np.exp(np.mean(logs)))
    assert run(*photos[1:4], "--min-confidence", round(limit + 1e-5, 6), "--sidecar") == 0
    out, err = capsys.readouterr()
    assert out == f"{photos[3]}\tlevel 120\n"
    assert f"{photos[2]}: not sure (0.316): level 80" in err
    assert "vitcap: 2 of 3 captions are below --min-confidence" in err
    assert [path.name for path in Path("in").rglob("*.txt")] == ["e.txt"]
    assert run(*photos[1:4], "--min-confidence", round(limit - 1e-5, 6), "--out", "c.jsonl") == 0
    assert [row["below_confidence"] for row in jsonl("c.jsonl")] == [True, False, False]


# sidecars


def test_sidecars_are_written_once_and_texts_of_others_kept(model, photos, capsys):
    mine = Path("in/a,b.txt")
    mine.write_text("my own words\n")
    assert run("in", "--sidecar") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 6, "one name has a line break"
    assert "vitcap: 1 of 6 pictures have their text and are skipped (--overwrite: all)" in err
    assert mine.read_text() == "my own words\n"
    assert Path("in/sub/e.txt").read_bytes() == b"level 120\n"
    captioner = model()
    assert run("in", "--sidecar") == 0
    assert captioner.seen == 0
    assert run("in", "--sidecar", "--out", "c.jsonl") == 0
    assert "in/a,b.txt: has another text, which is kept (--overwrite replaces it)" in capsys.readouterr().err
    assert mine.read_text() == "my own words\n"
    assert run("in", "--sidecar", "--out", "c.jsonl", "--overwrite") == 0
    assert mine.read_text() == "level 0\n"
    assert captioner.seen == 6, "captions come from the output"
    assert run("in", "--overwrite") == 2


def test_sidecars_that_an_output_lacks_are_made_from_it(model, photos):
    assert run("in", "--out", "c.csv", "--min-confidence", 0.2) == 0
    captioner = model()
    assert run("in", "--out", "c.csv", "--min-confidence", 0.2, "--sidecar") == 0
    assert captioner.seen == 0
    texts = {path.stem: path.read_text() for path in Path("in").rglob("*.txt")}
    assert texts == {"é 图": "level 80\n", "e": "level 120\n", "new\nline": "level 160\n", "z=": "level 200\n"}


def test_sidecars_never_fall_together_nor_on_what_is_read(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw("a.jpg", 1)
    draw("a.png", 2)
    draw("b.png", 3)
    Path("b.png").rename("b.txt")  # a picture with a wrong name
    draw("b.jpg", 4)
    draw("list.png", 5)
    Path("d.txt").mkdir()
    draw("d.png", 6)
    Path("list.txt").write_text("a.jpg\na.png\nb.txt\nb.jpg\nlist.png\nd.png\n")
    before = Path("b.txt").read_bytes(), Path("list.txt").read_bytes()
    assert run("--from-file", "list.txt", "--sidecar", "--overwrite") == 1
    err = capsys.readouterr().err
    assert "a.png: a.txt is that of a.jpg" in err
    assert "b.txt: its text would replace b.txt" in err
    assert "b.jpg: b.txt is that of b.txt" in err
    assert "list.png: its text would replace list.txt" in err
    assert "d.png: d.txt is a folder" in err
    assert "vitcap: 5 texts or descriptions could not be written" in err
    assert (Path("b.txt").read_bytes(), Path("list.txt").read_bytes()) == before
    assert Path("a.txt").read_text() == "level 1\n"
    for _ in range(2):  # not silently passed over when the text of the other is there
        assert run("a.jpg", "a.png", "--sidecar") == 1
        assert "a.png: a.txt is that of a.jpg" in capsys.readouterr().err


# progress


def test_progress_in_a_log(model, photos, monkeypatch, capsys):
    assert run("in", "--out", "quick.jsonl") == 0
    assert capsys.readouterr().err == "", "nothing of what takes less than half a minute"
    monkeypatch.setattr(pictures, "_LOG_EVERY", 0.0)
    assert run("in", "--out", "c.jsonl") == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert lines[2].startswith("vitcap: 3 of 6 pictures, ")
    assert lines[2].endswith("/s, 0:00 left")
    assert lines[5].endswith("/s, in 0:00")
    assert run("in", "--out", "quiet.jsonl", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_an_output_may_be_a_pipe(model, photos, suffix):
    os.mkfifo(f"pipe.{suffix}")
    got = []
    reader = threading.Thread(target=lambda: got.append(Path(f"pipe.{suffix}").read_bytes()), daemon=True)
    reader.start()
    assert run("in", "--out", f"pipe.{suffix}") == 0
    reader.join(timeout=30)
    assert run("in", "--out", f"file.{suffix}") == 0
    assert got == [Path(f"file.{suffix}").read_bytes()]


# the page


def test_the_page_shows_what_is_written(model, photos, monkeypatch):
    page = pages.PAGES["photos.md"]
    assert run("in/sub/e.png", "--out", "c.jsonl") == 0
    assert run("in/sub/e.png", "--out", "c.csv") == 0
    (shown,) = map(json.loads, pages.blocks("json", page))
    (real,) = jsonl("c.jsonl")

    def keys(value):
        if isinstance(value, list):
            return [keys(value[0])]
        return {key: keys(one) for key, one in value.items()} if isinstance(value, dict) else type(value)

    assert keys(shown) == keys(real)
    assert list(shown) == list(real)
    logs = [token["log_prob"] for token in shown["tokens"]]
    assert shown["probability"] == pytest.approx(float(np.exp(np.mean(logs))), abs=1e-6)
    (example,) = pages.blocks("csv", page)
    (row,) = csv.DictReader(io.StringIO(example), strict=True)
    assert list(row) == list(table("c.csv")[0])
    assert set(row) <= set(pages.inline_code(page))
    named = {code[1:-1] for code in pages.inline_code(page) if code[0] == "{" and code[1:-1].isalpha()}
    assert named == set(FIELDS)


def test_the_lists_of_the_page_run(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(("holiday/a.jpg", "holiday/b/c.jpg")):
        draw(name, index)
    (block,) = pages.blocks("sh", pages.PAGES["photos.md"])
    for line in block.splitlines():
        shell, vitcap_is_there, ours = line.partition("vitcap caption ")
        piped = subprocess.run(["bash", "-c", shell.rstrip("| ")], capture_output=True, check=True).stdout
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(piped)))
        assert not vitcap_is_there or run(*shlex.split(ours)) == 0, line
    assert sorted(row["image"] for row in table("found.csv")) == ["holiday/a.jpg", "holiday/b/c.jpg"]
    assert [row["image"] for row in jsonl("listed.jsonl")] == ["holiday/a.jpg"]
