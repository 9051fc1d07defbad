"""The command line, on a scripted captioner (order, resuming, errors, options) and on a small real model."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vitcap
import vitcap.explain
from vitcap import checkpoint
from vitcap.cli import caption as caption_command
from vitcap.cli import main, pictures
from vitcap.data.images import load_image
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy, Sample
from vitcap.drawing import unique_names
from vitcap.models.captioner import CaptionModel
from vitcap.record import AttentionRecord, View, Word
from vitcap.types import EOS
from vitcap.viz.shown import describe_record
from vitcap.writer import Caption

GRID = (4, 4)


class Scripted:
    """A captioner that says the brightness of a picture ("level 120"), and attends to one patch a word."""

    grid, prefix, preprocess, fingerprint = GRID, 1, Preprocess(size=(64, 64)), "0123456789abcdef"
    search = Beam(beams=2, max_length=12)
    tokenizer = SimpleNamespace(decode=lambda ids: f"t{ids[0]}")

    def __init__(self, stop_after=math.inf):
        self.calls, self.options, self.stop_after = [], [], stop_after

    def caption(self, pictures, **options):
        raise AssertionError("pictures are prepared in threads and come as a batch")

    def write_all(self, inputs, make_batch, **options):
        if sum(self.calls) + len(inputs) > self.stop_after:
            raise KeyboardInterrupt
        self.calls.append(len(inputs))
        self.options.append(options)
        return [self.one(picture, options) for picture in make_batch(inputs).images]

    def one(self, picture, options, rank=0):
        level = int(np.asarray(picture).mean())
        attention = None
        if options.get("need_attention"):
            attention = np.zeros((3, 2, 2, 17))
            attention[..., 0] = 0.2
            attention[0, ..., 1 + 5] = attention[1, ..., 1 + 10] = attention[2, ..., 1 + 0] = 0.8
        count = getattr(options.get("search"), "n_best", getattr(options.get("search"), "samples", 1))
        return Caption(
            text=f"level {level}",
            words=(Word("level", 0, 1, -0.5), Word(str(level), 1, 2, -0.25)),
            tokens=(7, 9, EOS),
            log_probs=(-0.5, -0.25, -0.125),
            score=-0.4 - rank,
            finished=True,
            attention=attention,
            alternatives=tuple(self.one(picture, {}, k) for k in range(1, count)) if rank == 0 else (),
        )

    def explain(self, path, **options):
        """What `vitcap.explain.explain` would say of this captioner."""
        photo = load_image(path)
        self.options.append(options)
        found = self.one(photo, {"need_attention": True})
        method = options.get("methods", ["attention"])[0]
        return AttentionRecord(
            found.words,
            options.get("caption") or found.text,
            {method: found.attention},
            View(method),
            grid=self.grid,
            prefix=self.prefix,
            photo=np.asarray(photo),
            size=photo.size,
            window=self.preprocess.window(*photo.size),
            source=str(path),
        )


@pytest.fixture
def scripted(monkeypatch):
    captioner = Scripted()
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": captioner)
    monkeypatch.setattr(vitcap.explain, "explain", lambda door, path, **options: door.explain(path, **options))
    return captioner


@pytest.fixture
def photos(tmp_path):
    """Five grey pictures p0.png .. p4.png of 80 x 60 pixels, at levels 0, 10 .. 40."""
    names = []
    for index in range(5):
        names.append(str(tmp_path / f"p{index}.png"))
        Image.new("RGB", (80, 60), (10 * index,) * 3).save(names[-1])
    return names


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# caption


def test_prints_path_and_caption_in_order(scripted, photos, capsys):
    assert main(["caption", *reversed(photos), "--model", "m"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{name}\tlevel {10 * (4 - i)}" for i, name in enumerate(reversed(photos))]
    assert err == ""


def test_record_of_a_picture(scripted, photos, tmp_path, capsys):
    out = tmp_path / "new" / "captions.jsonl"
    assert main(["caption", photos[1], "--model", "m", "--out", str(out), "--n-best", "2"]) == 0
    one = {
        "caption": "level 10",
        "probability": 0.747018,  # exp((-0.5 - 0.25 - 0.125) / 3)
        "score": -0.4,
        "finished": True,
        "tokens": [
            {"text": "t7", "log_prob": -0.5},
            {"text": "t9", "log_prob": -0.25},
            {"text": "<eos>", "log_prob": -0.125},
        ],
    }
    made = {"model": Scripted.fingerprint, "options": records(out)[0]["options"]}
    assert records(out) == [{"image": photos[1], **one, "n_best": [one, one | {"score": -1.4}], **made}]
    assert made["options"].startswith("beam max_length=12 ")
    assert " n_best=2 " in made["options"]
    assert capsys.readouterr() == ("", "")


def test_batches_have_the_wanted_size_and_large_photos_shorten_those_of_whole_pictures(scripted, photos, monkeypatch):
    assert main(["caption", *photos, "--model", "m", "--batch-size", "2"]) == 0
    assert scripted.calls == [2, 2, 1]
    monkeypatch.setattr(pictures, "_PIXELS", 3 * 80 * 60)
    sizes = []
    list(pictures.results_of(lambda part, **_: sizes.append(len(part)) or part, photos, 16))
    assert sizes == [3, 2]


def test_unreadable_pictures_are_reported_skipped_and_retried(scripted, photos, tmp_path, capsys):
    with open(photos[1], "wb") as file:
        file.write(b"<html>not found</html>")
    os.remove(photos[3])
    out = tmp_path / "c.jsonl"
    command = ["caption", *photos, "--model", "m", "--out", str(out), "--batch-size", "2"]
    assert main(command) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith(f"vitcap: skipped {photos[1]}: an HTML page")
    assert err[1].startswith(f"vitcap: skipped {photos[3]}: does not exist")
    assert err[2] == "vitcap: 2 of 5 pictures could not be read"
    lines = records(out)
    assert [line["image"] for line in lines] == photos
    assert ["caption" in line for line in lines] == [True, False, True, False, True]
    assert "HTML page" in lines[1]["error"]

    for index in (1, 3):
        Image.new("RGB", (80, 60), (200 + index,) * 3).save(photos[index])
    scripted.calls.clear()
    assert main(command) == 0
    assert sum(scripted.calls) == 2
    assert [line["image"] for line in records(out)] == photos
    assert [line["caption"] for line in records(out)] == [f"level {x}" for x in (0, 201, 20, 203, 40)]
    assert "3 of 5 pictures are already in" in capsys.readouterr().err


def test_unreadable_picture_without_out(scripted, photos, capsys):
    os.truncate(photos[0], 0)
    assert main(["caption", photos[0], photos[1], "--model", "m"]) == 1
    out, err = capsys.readouterr()
    assert out == f"{photos[1]}\tlevel 10\n"
    assert f"{photos[0]}: an empty file" in err


def test_interrupted_run_goes_on_and_ends_like_an_uninterrupted_one(monkeypatch, photos, tmp_path, capsys):
    out, whole = tmp_path / "c.jsonl", tmp_path / "whole.jsonl"
    broken, second = Scripted(stop_after=3), Scripted()
    command = ["caption", *photos, "--model", "m", "--batch-size", "1", "--out"]
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": broken)
    assert main([*command, str(out)]) == 130
    assert capsys.readouterr().err == "vitcap: interrupted\n"
    assert len(records(out)) == 3
    with open(out, "ab") as file:  # a fourth line that was cut in the middle of a letter
        file.write(json.dumps({"image": photos[3], "caption": "é"}, ensure_ascii=False).encode()[:-3])
    monkeypatch.setattr(vitcap, "load", lambda path, device="cpu": second)
    assert main([*command, str(out)]) == 0
    assert sum(second.calls) == 2
    assert main([*command, str(whole)]) == 0
    assert out.read_bytes() == whole.read_bytes()
    before, calls = out.read_bytes(), len(second.calls)
    assert main([*command, str(out)]) == 0, "a finished file is left alone"
    assert (out.read_bytes(), len(second.calls)) == (before, calls)


def test_a_cut_line_that_lacks_only_its_end_is_kept(scripted, photos, tmp_path):
    out = tmp_path / "c.jsonl"
    command = ["caption", *photos[:2], "--model", "m", "--out", str(out)]
    assert main(command) == 0
    whole = out.read_bytes()
    out.write_bytes(whole[:-1])
    scripted.calls.clear()
    assert main(command) == 0
    assert out.read_bytes() == whole
    assert not scripted.calls


def test_lines_of_other_pictures_stay(scripted, photos, tmp_path):
    out = tmp_path / "c.jsonl"
    for part in (photos[3:], photos[:2]):
        assert main(["caption", *part, "--model", "m", "--out", str(out)]) == 0
    assert [line["image"] for line in records(out)] == photos[3:] + photos[:2]


@pytest.mark.parametrize("content", [b"notes\n", b"\x89PNG\r\n\x1a\n", b"{}", b'{"caption": 1}\n', b'[1]\n{"image"'])
def test_a_file_that_holds_something_else_is_not_touched(scripted, photos, tmp_path, content, capsys):
    out = tmp_path / "precious"
    out.write_bytes(content)
    assert main(["caption", photos[0], "--model", "m", "--out", str(out)]) == 2
    assert out.read_bytes() == content
    assert "precious, line 1: not a caption record" in capsys.readouterr().err


def test_out_that_is_a_folder(scripted, photos, tmp_path, capsys):
    assert main(["caption", photos[0], "--model", "m", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"vitcap: error: {tmp_path}: Is a directory\n"


def test_folders_give_their_pictures_once(scripted, photos, tmp_path, capsys):
    (tmp_path / "sub").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "sub" / "a.JPG", format="JPEG")
    Image.new("RGB", (8, 8)).save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("x")
    assert main(["caption", photos[2], str(tmp_path), "--model", "m"]) == 0
    out, err = capsys.readouterr()
    paths = [line.partition("\t")[0] for line in out.splitlines()]
    assert paths == [photos[2], *(p for p in photos if p != photos[2]), str(tmp_path / "sub" / "a.JPG")]
    assert err == "vitcap: 1 pictures were given more than once and are taken once\n"


def test_empty_folder(scripted, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["caption", str(tmp_path / "empty"), "--model", "m"]) == 2
    assert "empty: no pictures in this folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    ["a b.png", "k=v,w.png", 'it\'s "so".png', "图片 一.png", "é.png", "[red]x[0].png", "-dash.png", "--model"],
)
def test_any_file_name(scripted, tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8), (50,) * 3).save(name, format="PNG")
    assert main(["caption", "--model", "m", "--out", "c.jsonl", "--", name]) == 0
    assert [line["image"] for line in records(tmp_path / "c.jsonl")] == [name]
    assert main(["caption", "--model", "m", "--", name]) == 0
    assert capsys.readouterr().out == f"{name}\tlevel 50\n"
    assert main(["overlay", "--model", "m", "--out", "o", "--", name]) == 0
    assert len(list((tmp_path / "o").glob("*.png"))) == 1


def test_file_name_that_is_not_utf8(scripted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.png")
    try:
        Image.new("RGB", (8, 8), (50,) * 3).save(name)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only UTF-8 names")
    command = ["caption", name, "--model", "m", "--out", "c.jsonl"]
    assert main(command) == 0
    assert records(tmp_path / "c.jsonl")[0]["image"] == name
    scripted.calls.clear()
    assert main(command) == 0
    assert not scripted.calls
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    assert main(["caption", name, "--model", "m"]) == 0
    assert printed.getvalue() == b"caf\xe9.png\tlevel 50\n"


# search options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Beam(beams=2, max_length=12)),
        (["--beams", "4"], Beam(beams=4, max_length=12)),
        (["--beams", "1"], Greedy(max_length=12)),
        (["--max-length", "9", "--min-length", "3"], Beam(beams=2, max_length=9, min_length=3)),
        (["--length-penalty", "0", "--no-repeat-ngram", "3"],
         Beam(beams=2, max_length=12, length_penalty=0, no_repeat_ngram=3)),
        (["--n-best", "5"], Beam(beams=5, n_best=5, max_length=12)),
        (["--sample", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--n-best", "3"],
         Sample(max_length=12, temperature=0.7, top_k=5, top_p=0.9, samples=3)),
    ],
)  # fmt: skip
def test_search_options(scripted, photos, options, expected):
    assert main(["caption", photos[0], "--model", "m", *options]) == 0
    assert scripted.options[0]["search"] == expected
    assert scripted.options[0]["seed"] is None


def test_seed_reaches_the_sampler(scripted, photos):
    assert main(["caption", photos[0], "--model", "m", "--sample", "--seed", "7"]) == 0
    assert scripted.options[0]["seed"] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0.5"], "--temperature is for random captions: add --sample"),
        (["--seed", "1"], "--seed is for random captions"),
        (["--sample", "--beams", "3"], "--beams does not apply to sample search"),
        (["--beams", "1", "--length-penalty", "1"], "--length-penalty does not apply to greedy search"),
        (["--beams", "2", "--n-best", "3"], "--n-best 3 needs --beams 3 or more"),
        (["--beams", "1", "--n-best", "2"], "--n-best 2 needs --beams 2 or more"),
        (["--min-length", "13"], "min_length=13 must be between 0 and max_length=12"),
        (["--device", "toaster"], "--device toaster: there is no such device"),
    ],
)
def test_options_that_contradict_each_other(scripted, photos, options, message, capsys):
    assert main(["caption", photos[0], "--model", "m", *options]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("vitcap: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["paint"], "invalid choice: 'paint'"),
        (["overlay", "--out", "o"], "PHOTO_OR_FOLDER"),
        (["caption", "x.jpg", "--beams", "0"], "--beams: '0': a whole number of at least 1 and at most 1000"),
        (["caption", "x.jpg", "--n-best", "100000000"], "at most 1000 is wanted"),
        (["caption", "x.jpg", "--sample", "--seed", "9" * 23], "--seed"),
        (["caption", "x.jpg", "--sample", "--top-p", "1.5"], "a number above 0 and at most 1 is wanted"),
        (["caption", "x.jpg", "--sample", "--temperature", "nan"], "a number above 0 is wanted"),
        (["caption", "x.jpg", "--batchsize", "2"], "unrecognized arguments: --batchsize"),
        (["overlay", "x.jpg", "--model", "m"], "--out"),
        (["overlay", "x.jpg", "--model", "m", "--out", "o", "--layer", "last"], "numbers such as 0 or 0,2"),
        (["overlay", "x.jpg", "--out", "o", "--format", "sheet,pdf"], "'pdf': choose from sheet, gif, grid, maps"),
    ],
)
def test_usage_errors_take_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("vitcap: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_model_that_is_none(photos, tmp_path, capsys):
    assert main(["caption", photos[0], "--model", photos[1]]) == 2
    assert capsys.readouterr().err.startswith(f"vitcap: error: {photos[1]}: ")
    assert main(["caption", photos[0], "--model", str(tmp_path / "none")]) == 2
    assert "none: no such file" in capsys.readouterr().err


def test_unexpected_errors_name_their_kind_and_debug_shows_them(scripted, photos, monkeypatch, capsys):
    def fail(*inputs, **options):
        raise RuntimeError("CUDA out of memory.\nTried to allocate 3 GiB")

    monkeypatch.setattr(scripted, "write_all", fail)
    assert main(["caption", photos[0], "--model", "m"]) == 1
    assert "use a smaller --batch-size" in capsys.readouterr().err
    monkeypatch.setattr(scripted, "write_all", lambda *inputs, **options: {}["odd"])
    assert main(["caption", photos[0], "--model", "m"]) == 1
    assert capsys.readouterr().err == "vitcap: error: KeyError: 'odd' (--debug shows where)\n"
    with pytest.raises(KeyError):
        main(["caption", photos[0], "--model", "m", "--debug"])


def test_version_and_light_imports(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"vitcap {vitcap.__version__}\n"
    heavy = "{'torch', 'lightning', 'hydra', 'timm'} & set(sys.modules)"
    code = f"import sys, vitcap.cli; assert not {heavy}, {heavy}; vitcap.cli.main(['--help'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Caption photos, or all photos in folders." in run.stdout


def test_progress_bar_only_where_it_is_seen(scripted, photos, tmp_path, monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    for options, bar in [([], True), (["--quiet"], False)]:
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        out = tmp_path / f"{bar}.jsonl"
        assert main(["caption", *photos, "--model", "m", "--out", str(out), *options]) == 0
        assert ("5/5" in screen.getvalue()) is bar
        assert len(records(out)) == 5


# overlay


def test_overlay_writes_a_sheet_with_its_text(scripted, photos, tmp_path, capsys):
    out = tmp_path / "o"
    assert main(["overlay", photos[2], "--model", "m", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{photos[2]}\t{out / 'p2.png'}\n"
    lines = (out / "p2.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "caption: level 20"
    assert lines[1] == (
        "Cross-attention: mean of all 2 layers, mean of all 2 heads; 4 x 4 patches; "
        "20 % of the attention went to 1 token beside the patches"
    )
    # Resized to 85 x 64 and cut from column 10: patch (1, 1) lies at (10 + 24) * 80 / 85, (2, 2) at 50 * 80 / 85.
    assert lines[2].startswith("level: peak 12.8 times uniform attention at x 32, y 22 of 80 x 60 pixels")
    assert lines[3].startswith("20: peak 12.8 times uniform attention at x 47, y 38 of 80 x 60 pixels")
    assert len(lines) == 4, "the end token is no word"
    with Image.open(out / "p2.png") as page:
        assert page.text["Title"] == "level 20"
        assert page.text["Description"] == "\n".join(lines)
        pixels = np.asarray(page.convert("RGB")).astype(int)
    grey = (np.ptp(pixels, axis=-1) == 0).all()
    assert not grey
    assert scripted.options == [{"caption": None, "search": None, "seed": None}]


def test_overlay_layer_and_head(scripted, photos, tmp_path, capsys):
    command = ["overlay", photos[2], "--model", "m", "--out", str(tmp_path / "o")]
    assert main([*command, "--layer", "-1", "--head", "0,1"]) == 0
    assert "layer -1 of 0..1, head 0, 1 of 0..1" in (tmp_path / "o" / "p2.txt").read_text()
    assert main([*command, "--layer", "2"]) == 2
    assert "layers: there is no 2; this model has 2" in capsys.readouterr().err


def test_overlay_of_photos_with_one_name(scripted, photos, tmp_path):
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / "P1.jpg"
    Image.new("RGB", (20, 20), (90,) * 3).save(twin)
    assert main(["overlay", photos[1], str(twin), "--model", "m", "--out", str(tmp_path / "o")]) == 0
    assert (tmp_path / "o" / "p1.txt").read_text().startswith("caption: level 10")
    assert (tmp_path / "o" / "P1-2.txt").read_text().startswith("caption: level 90")
    assert unique_names(["x/a.jpg", "y/a.png", "a-2.jpg", "z/a.gif"]) == ["a", "a-2", "a-2-2", "a-3"]


def test_overlay_skips_what_it_cannot_read(scripted, photos, tmp_path, capsys):
    os.truncate(photos[0], 0)
    assert main(["overlay", *photos[:2], "--model", "m", "--out", str(tmp_path / "o")]) == 1
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["p1.png", "p1.txt"]
    assert "1 of 2 pictures could not be read" in capsys.readouterr().err


def test_overlay_of_any_file_name_with_its_record(scripted, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.png")
    try:
        Image.new("RGB", (8, 8), (50,) * 3).save(name)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only UTF-8 names")
    assert main(["overlay", name, "--model", "m", "--out", "o", "--save-record"]) == 0
    assert AttentionRecord.load(f"o/{Path(name).stem}.npz").source == name


def test_overlay_formats(scripted, photos, tmp_path, capsys):
    out = tmp_path / "o"
    command = ["overlay", photos[2], "--model", "m", "--out", str(out), "--format", "gif,grid", "--format", "maps"]
    assert main([*command, "--word", "20"]) == 0
    files = ["p2.gif", "p2.grid.png", "p2.01-level.png", "p2.02-20.png"]
    assert capsys.readouterr().out == "".join(f"{photos[2]}\t{out / file}\n" for file in files)
    assert sorted(p.name for p in out.glob("*.txt")) == sorted(str(Path(f).with_suffix(".txt")) for f in files)
    lines = (out / "p2.grid.txt").read_text().splitlines()
    assert lines[1].startswith("layer 0, head 0: 20: peak 12.8 times uniform attention")
    assert len(lines) == 1 + 9


def test_overlay_of_a_word_that_one_caption_lacks(scripted, photos, tmp_path, capsys):
    command = ["overlay", *photos[:2], "--model", "m", "--out", str(tmp_path / "o"), "--format", "sheet,grid"]
    command += ["--word", "10"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert [line.rpartition("/")[2] for line in out.splitlines()] == ["p0.png", "p1.png", "p1.grid.png"]
    assert err == f"vitcap: {photos[0]}: no grid, word '10' is not there: 'level 0' has 0 level, 1 0\n"


def test_overlay_of_a_given_caption_and_method(scripted, photos, tmp_path):
    command = ["overlay", photos[2], "--model", "m", "--out", str(tmp_path / "o")]
    assert main([*command, "--caption", "level twenty", "--method", "rollout"]) == 0
    assert scripted.options == [{"methods": ["rollout"], "caption": "level twenty"}]
    lines = (tmp_path / "o" / "p2.txt").read_text().splitlines()
    assert lines[0] == "caption: level twenty"
    assert lines[1].startswith("Attention rollout: ")


def test_overlay_draws_a_saved_record_without_a_model(scripted, photos, tmp_path, monkeypatch, capsys):
    out, again = tmp_path / "o", tmp_path / "again"
    assert main(["overlay", photos[2], "--model", "m", "--out", str(out), "--save-record"]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["p2.json", "p2.npz", "p2.png", "p2.txt"]
    monkeypatch.setattr(vitcap, "load", None)
    capsys.readouterr()
    assert main(["overlay", str(out / "p2.npz"), "--out", str(again)]) == 0
    assert capsys.readouterr().out == f"{out / 'p2.npz'}\t{again / 'p2.png'}\n"
    assert (again / "p2.png").read_bytes() == (out / "p2.png").read_bytes()
    assert main(["overlay", str(out / "p2.npz"), "--out", str(again), "--head", "1"]) == 0
    assert "head 1 of 0..1" in (again / "p2.txt").read_text()
    for wrong, message in [
        (["--method", "rollout"], "method 'rollout': this record has attention"),
        (["--model", "m"], "--model is for photos; these are records of what a model saw"),
        (["--beams", "2"], "--beams is for photos"),
    ]:
        assert main(["overlay", str(out / "p2.npz"), "--out", str(again), *wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--word", "1"], "--word is for --format grid"),
        (["--top-classes", "2"], "--top-classes is for models that classify"),
        (["--method", "attention", "--discard", "0.5"], "--discard is for the method rollout, which is not drawn here"),
        (["--caption", "x", "--beams", "2"], "--beams is for captions that the model writes; --caption gives one"),
        (["--caption", "x", "--sample"], "--sample is for captions that the model writes"),
    ],
)
def test_overlay_options_that_do_not_fit(scripted, photos, tmp_path, capsys, options, message):
    assert main(["overlay", photos[0], "--model", "m", "--out", str(tmp_path / "o"), *options]) == 2
    assert message in capsys.readouterr().err


def test_overlay_never_writes_over_its_photos(scripted, photos, tmp_path, monkeypatch, capsys):
    before = Path(photos[0]).read_bytes()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o").mkdir()
    for folder in (str(tmp_path), ".", "o/.."):
        assert main(["overlay", photos[0], "--model", "m", "--out", folder]) == 2
        assert f"--out {folder}: {photos[0]} lies in it and could be written over" in capsys.readouterr().err
    assert Path(photos[0]).read_bytes() == before
    assert main(["overlay", photos[0], "--model", "m", "--out", "o", "--save-record"]) == 0
    assert main(["overlay", "o/p0.npz", "--out", "o"]) == 0, "a picture beside its record"
    assert main(["overlay", "o/p0.npz", "--out", "o", "--save-record"]) == 2


def test_overlay_files_of_two_photos_never_fall_together(scripted, photos, tmp_path, capsys):
    names = ["a.png", "a.grid.png", "a.01-level.png", "b" * 240 + "1.png", "b" * 240 + "2.png", "漢" * 80 + ".png"]
    paths = [str(Path(photos[0]).rename(tmp_path / names[0]))]
    for name in names[1:]:
        paths.append(str(tmp_path / name))
        os.link(paths[0], paths[-1])
    out = tmp_path / "o"
    command = ["overlay", *paths, "--model", "m", "--out", str(out), "--save-record"]
    assert main([*command, "--format", "sheet,gif,grid,maps"]) == 0
    files = [line.partition("\t")[2] for line in capsys.readouterr().out.splitlines()]
    assert len(files) == len({file.casefold() for file in files}) == len(names) * 5
    assert len(list(out.iterdir())) == len(names) * (5 + 5 + 2) - len(names), "the sheet and the GIF share their text"


def test_overlay_goes_on_after_a_record_that_cannot_be_read(scripted, photos, tmp_path, capsys):
    assert main(["overlay", *photos[:2], "--model", "m", "--out", str(tmp_path / "o"), "--save-record"]) == 0
    (tmp_path / "o" / "p0.npz").write_bytes(b"")
    capsys.readouterr()
    records = [str(tmp_path / "o" / name) for name in ("p0.npz", "none.npz", "p1.npz")]
    assert main(["overlay", *records, "--out", str(tmp_path / "again")]) == 1
    out, err = capsys.readouterr()
    assert out == f"{records[2]}\t{tmp_path / 'again' / 'p1.png'}\n"
    assert "p0: no attention record that can be read" in err
    assert "none.json: no such file" in err
    assert err.endswith("vitcap: 2 of 3 files could not be read\n")
    assert main(["overlay", records[2], "--out", photos[0]]) == 2
    assert f"--out {photos[0]}: this folder cannot be made" in capsys.readouterr().err


# a real model


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """A small model with random weights."""
    tokenizer = Tokenizer.train(["a red dog runs", "a blue cat sleeps"], min_count=1)
    preprocess = Preprocess(size=(32, 32))
    encoder = {"_target_": "vitcap.models.vit.VisionTransformer", "image_size": 32, "patch_size": 8}
    encoder |= {"width": 24, "depth": 1, "heads": 2}
    decoder = {"_target_": "vitcap.models.transformer_decoder.TransformerDecoder", "memory_width": 24}
    decoder |= {"vocab_size": tokenizer.vocab_size, "width": 24, "depth": 2, "heads": 2, "max_length": 24}
    description = checkpoint.describe(
        encoder=encoder,
        decoder=decoder,
        tokenizer=tokenizer,
        preprocess=preprocess,
        decode={"_target_": "vitcap.decoding.Beam"},
    )
    torch.manual_seed(0)
    model = CaptionModel(checkpoint.build(encoder), checkpoint.build(decoder), mean=preprocess.mean, std=preprocess.std)
    return checkpoint.write(tmp_path_factory.mktemp("model") / "model.safetensors", model, description)


def test_real_model_says_what_the_python_door_says(model_file, tmp_path):
    torch.set_num_threads(1)
    names = []
    for index, size in enumerate([(90, 40), (40, 90), (64, 64)]):
        names.append(str(tmp_path / f"{index}.png"))
        noise = np.random.default_rng(index).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(names[-1])
    out = tmp_path / "c.jsonl"
    options = ["--beams", "3", "--n-best", "2", "--max-length", "8", "--batch-size", "2"]
    assert main(["caption", *names, "--model", str(model_file), "--out", str(out), *options]) == 0
    captioner = vitcap.load(model_file)
    for name, line in zip(names, records(out), strict=True):
        expected = captioner.caption(load_image(name), search=Beam(beams=3, n_best=2, max_length=8))
        assert line["caption"] == expected.text
        assert line["score"] == pytest.approx(expected.score, abs=1e-4)
        assert [t["log_prob"] for t in line["tokens"]] == pytest.approx(expected.log_probs, abs=1e-4)
        assert [entry["caption"] for entry in line["n_best"]] == [expected.text, expected.alternatives[0].text]
        assert " ".join(t["text"] for t in line["tokens"] if t["text"] != "<eos>") == line["caption"]
    assert main(["overlay", *names, "--model", str(model_file), "--out", str(tmp_path / "o"), "--max-length", "8"]) == 0
    assert sorted(path.name for path in (tmp_path / "o").glob("*.png")) == ["0.png", "1.png", "2.png"]
    words = captioner.caption(load_image(names[0]), search=Beam(beams=3, max_length=8)).words
    assert len((tmp_path / "o" / "0.txt").read_text().splitlines()) == 2 + len(words)


def test_overlay_of_a_real_model_draws_a_given_caption_by_any_method(model_file, tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "p.png")
    out = tmp_path / "o"
    command = ["overlay", str(tmp_path / "p.png"), "--model", str(model_file), "--out", str(out)]
    assert main([*command, "--caption", "A red cat", "--method", "grad-cam", "--save-record"]) == 0
    record = AttentionRecord.load(out / "p")
    assert ([word.text for word in record.words], record.source) == (["a", "red", "cat"], "p.png")
    expected = vitcap.explain.explain(vitcap.load(model_file), tmp_path / "p.png", caption="a red cat", methods="all")
    np.testing.assert_allclose(record.maps["grad-cam"], expected.maps["grad-cam"], atol=1e-6)
    lines = (out / "p.txt").read_text(encoding="utf-8").splitlines()
    assert lines == describe_record(expected, View("grad-cam"))
    assert capsys.readouterr().err == ""
    assert main([*command, "--caption", "a qqzzx cat"]) == 0
    assert "p.png: the model does not know qqzzx; drawn as unknown words" in capsys.readouterr().err
    assert main([*command, "--method", "lime"]) == 2
    assert "method 'lime': there is no such method; this model has attention, " in capsys.readouterr().err


def test_seeded_samples_repeat(model_file, photos, capsys):
    command = ["caption", *photos, "--model", str(model_file), "--sample", "--max-length", "8", "--seed"]
    printed = []
    for seed in ("1", "1", "2"):
        assert main([*command, seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_records_of_unusual_text():
    assert caption_command.dump({"image": "图\u2028"}) == '{"image": "图\u2028"}'
    assert caption_command.dump({"image": "\udce9"}) == '{"image": "\\udce9"}'
