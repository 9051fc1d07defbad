"""`vitcap check` and the check before training: what is wrong with data is found, named, counted, and kills nothing."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY
from PIL import Image

from vitcap import run
from vitcap.cli import main
from vitcap.data import inspection, survey
from vitcap.data.check import check_source
from vitcap.data.check_report import Report
from vitcap.data.check_texts import TextOptions, check_texts
from vitcap.data.detect import detect, options_of
from vitcap.data.image_folder import ImageFolderSource
from vitcap.data.inspection import Inspector, inspect
from vitcap.data.karpathy import find_lists, split_by_lists
from vitcap.data.pictures import CaptionData
from vitcap.data.records import Entry
from vitcap.data.survey import Results
from vitcap.data.tables import TableSource
from vitcap.data.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def bugfiles(data_root: Path) -> Path:
    """The small damaged inputs beside the real data."""
    folder = data_root.parent / "reference" / "bugfiles"
    if not folder.is_dir():
        pytest.skip("there are no damaged inputs beside the real data")
    return folder


def picture(path: Path, seed: int, size=(48, 40), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(values).save(path, **options)
    return path


def table(root: Path, rows: list[tuple[str, str, str]]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    lines = ["image,split,caption", *(",".join(row) for row in rows)]
    (root / "captions.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def sound(root: Path, train: int = 6, val: int = 3) -> Path:
    """A table without any defect."""
    rows = []
    for i in range(train + val):
        picture(root / f"{i}.png", i)
        rows.append((f"{i}.png", "train" if i < train else "val", "a red ball on grass"))
    return table(root, rows)


def checked(*arguments, capsys) -> tuple[int, dict, str]:
    """(exit status, JSON report, standard output) of the command."""
    out = Path(os.environ["VITCAP_CACHE"]) / "report.json"
    out.unlink(missing_ok=True)
    status = main(["check", *map(str, arguments), "--json", str(out)])
    return status, json.loads(out.read_text()) if out.exists() else {}, capsys.readouterr().out


def names(report: dict, what: str, split: str = "") -> list[str]:
    """Names of the one finding whose words hold `what`, cut at the colon."""
    found = [f for f in report["findings"] if what in f["what"] and split in ("", f["split"])]
    assert len(found) == 1, [f["what"] for f in report["findings"]]
    assert found[0]["count"] == len(found[0]["names"])
    return [name.partition(": ")[0] for name in found[0]["names"]]


def test_data_without_defects_are_all_right(tmp_path, capsys):
    status, report, text = checked(sound(tmp_path / "d"), "min_count=1", capsys=capsys)
    assert status == 0
    assert report["ok"]
    assert report["format"] == "table"
    assert [f for f in report["findings"] if f["level"] != "fact"] == []
    assert report["splits"]["train"]["images"] == 6
    assert report["facts"]["pictures that decode"] == 9
    assert report["facts"]["vocabulary of the captions"] == 4 + 5
    assert "no problem" in text


def test_every_kind_of_defect_is_found_with_all_names(tmp_path, capsys):
    root = sound(tmp_path / "d", train=10, val=4)
    rows = [(f"{i}.png", "train" if i < 10 else "val", "a red ball on grass") for i in range(14)]
    (root / "1.png").write_bytes(b"")
    (root / "2.png").write_text("<html>not found</html>")
    shutil.copy(root / "0.png", root / "3.png")  # twice in train
    shutil.copy(root / "4.png", root / "11.png")  # in train and val
    Image.open(root / "5.png").save(root / "12.png", compress_level=1)  # other bytes, same pixels
    picture(root / "6.png", 6, size=(900, 40))
    picture(root / "7.png", 7, size=(20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(root / "8.jpg", 8, exif=exif)
    rows[8] = ("8.jpg", "train", "a red ball on grass")
    Image.new("L", (50, 50), 3).save(root / "9.png")
    (root / "8.png").unlink()
    rows += [("gone.png", "train", "a cat"), ("13.png", "val", "..."), ("blank.png", "val", "  ")]
    rows += [("10.png", "val", "an unheard word")]
    picture(root / "extra.png", 99)
    status, report, text = checked(table(root, rows), "--data", "table", "min_count=2", "--jobs", "1", capsys=capsys)
    assert status == 1
    assert not report["ok"]
    assert names(report, "cannot be read", "train") == ["1.png", "2.png"]
    assert "an empty file (0 bytes)" in text
    assert "an HTML page" in text
    assert names(report, "equal files more than once", "train") == ["3.png = 0.png"]
    assert names(report, "equal files in train and val") == ["11.png = 4.png"]
    assert names(report, "equal pixels in different files in train and val") == ["12.png = 5.png"]
    assert names(report, "longer than") == ["6.png"]
    assert names(report, "below") == ["7.png"]
    assert [name.rpartition(" (")[0] for name in names(report, "not there")] == [str(root / "gone.png")]
    assert names(report, "blank captions", "val") == ["captions.csv line 17", "captions.csv line 18"]
    assert names(report, "without captions", "val") == ["captions.csv line 18"]
    assert names(report, "no caption names") == ["extra.png"]
    assert report["facts"]["turned by EXIF"] == 1
    assert report["facts"]["modes"] == {"RGB": 11, "L": 1}
    assert report["splits"]["val"]["texts"]["captions"]["unknown share"] == pytest.approx(3 / 23)
    assert report["splits"]["val"]["texts"]["captions"]["lengths"] == {"5": 1, "7": 4}


DEFECTS = {
    "table": (
        "captions.jsonl",
        '{"image": "0.png", "caption": "a red ball", "split": "train"}\n'
        '{"image": "0.png", "caption": "a blue ball", "split": "val"}\n'
        "not json\n"
        '{"caption": "no image", "split": "train"}\n'
        '{"image": "https://a.b/1.png", "caption": "a", "split": "train"}\n'
        '{"image": "1.png", "caption": "a red ball", "split": " "}\n'
        '{"image": "2.png", "captions": ["a dog", " "], "split": "val"}\n'
        "[1, 2]\n",
        [
            "0.png is in train (captions.jsonl line 1) and val (line 2)",
            "line 3 is cut or not JSON",
            "line 4: no image",
            "line 5: https://a.b/1.png is a web address",
            "line 6: no split",
            "line 8 is no object",
        ],
        {"train": 1, "val": 1},
        "captions.jsonl line 7",
    ),
    "csv": (
        "captions.csv",
        "image,caption,split\n0.png,a red ball,train\n1.png,train\n0.png, ,train\n2.png,a dog,val,more\n2.png,a,val\n",
        ["line 3 has 2 fields, line 1 has 3", "line 5 has 4 fields, line 1 has 3"],
        {"train": 1, "val": 1},
        "captions.csv line 4",
    ),
    "flickr": (
        "Flickr8k.token.txt",
        "0.png#0\ta red ball\n0.png#1\t \nno tab\n1.png#0\ta dog\n2.png a dog\n2.png#0\ta cat\n",
        [
            "line 3 is not name#number<TAB>caption",
            "line 5 is not name#number<TAB>caption",
            "val.txt: line 1: 0.png is listed already: train.txt line 1",
        ],
        {"train": 2, "val": 1},
        "Flickr8k.token.txt line 2",
    ),
    "coco": (
        "captions_train.json",
        json.dumps(
            {
                "images": [
                    {"id": 0, "file_name": "0.png"},
                    {"id": 1},
                    {"id": 0, "file_name": "1.png"},
                    "x",
                    {"id": 2, "file_name": "2.png"},
                ],
                "annotations": [
                    {"id": 1, "image_id": 0, "caption": "a red ball"},
                    {"id": 2, "caption": "lost"},
                    {"id": [], "image_id": 2, "caption": "a"},
                    {"id": 5, "image_id": 2, "caption": "a dog"},
                    {"id": 6, "image_id": 2, "caption": "?"},
                ],
            }
        ),
        [
            "image 1 of the list has no id and file_name",
            "image id 0 stands for two files, 0.png and 1.png",
            "image 3 of the list has no id",
            "annotation 1 of the list has no image_id",
            "annotation 2 has the id []",
        ],
        {"train": 2},
        "captions_train.json, image id 2",
    ),
    "karpathy": (
        "dataset.json",
        json.dumps(
            {
                "images": [
                    {"filename": "0.png", "split": "train", "imgid": 0, "sentences": [{"raw": "a red ball"}]},
                    {"filename": "1.png", "split": "train"},
                    {"filename": "0.png", "split": "val", "imgid": 7, "sentences": [{"raw": "a"}]},
                    {"filename": "1.png", "split": "val", "imgid": 0, "sentences": [{"raw": "a"}]},
                    {"filename": "1.png", "split": " ", "imgid": 1, "sentences": [{"raw": "a"}]},
                    {"filename": "1.png", "split": "val", "imgid": 1.5, "sentences": [{"raw": "a"}]},
                    {"filename": "2.png", "split": "val", "imgid": 2, "sentences": [{"raw": "a dog"}, {"raw": "-"}]},
                ]
            }
        ),
        [
            "image 1 has no filename, split and sentences",
            "0.png (id 7) is there twice",
            "1.png (id 0) is there twice",
            "image 4 has split ' '",
            "image 5 has the id 1.5",
        ],
        {"train": 1, "val": 1},
        "dataset.json, image 6",
    ),
}


@pytest.mark.parametrize("kind", DEFECTS)
def test_all_that_a_reader_refuses_is_reported_and_the_rest_is_checked(kind, tmp_path, capsys):
    file, content, wanted, splits, blank = DEFECTS[kind]
    for i in range(3):
        picture(tmp_path / f"{i}.png", i)
    (tmp_path / file).write_text(content, encoding="utf-8")
    if kind == "flickr":
        (tmp_path / "train.txt").write_text("0.png\n1.png\n")
        (tmp_path / "val.txt").write_text("0.png\n2.png\n")
    status, report, _ = checked(tmp_path, "min_count=1", capsys=capsys)
    assert status == 1
    (found,) = (f for f in report["findings"] if "reader stops at" in f["what"])
    assert found["count"] == len(wanted)
    for name, part in zip(found["names"], wanted, strict=True):
        assert name.startswith(str(tmp_path))
        assert part in name
    read = {split: of["images"] for split, of in report["splits"].items()}
    assert read == splits
    assert names(report, "blank captions") == [blank]
    assert report["facts"]["pictures that decode"] == 3  # those of the records that are left out, too


def test_a_split_by_lists_reports_every_line(tmp_path):
    official = [Entry(i, Path(f"val2014/{i}.jpg"), ["a"], f"image id {i}") for i in (1, 2, 3)]
    for name, text in (("val", "1\n9\n1\n"), ("test", "2.jpg 3\n8\n3\n")):
        (tmp_path / f"coco_{name}.txt").write_text(text)
    told = []
    splits = split_by_lists(find_lists(tmp_path, "."), [], official, refuse=told.append)
    assert {split: [e.image_id for e in entries] for split, entries in splits.items()} == {
        "restval": [2],
        "val": [1],
        "test": [3],
    }
    lines = ["val.txt line 2: image 9", "listed in coco_val.txt line 1 and in coco_val.txt line 3", "line 1: '2.jpg 3'"]
    counts = ["5,000 images are wanted, 1 found"] * 2 + ["0 + 1 found"]
    few = [f"image id {i} ({split}): 5 captions or more" for split, i in (("val", 1), ("test", 3), ("restval", 2))]
    for part in [*lines, "test.txt line 2: image 8", *counts, *few]:
        assert any(part in name for name in told), part
    assert len(told) == len(lines) + 1 + len(counts) + len(few)


def test_a_share_of_val_is_taken_as_training_takes_it(tmp_path, capsys):
    root = table(tmp_path / "d", [(picture(tmp_path / f"d/{i}.png", i).name, "train", "a dog") for i in range(10)])
    _, report, _ = checked(root, "data.source.val_fraction=0.3", "min_count=1", capsys=capsys)
    assert [report["splits"][split]["images"] for split in ("train", "val")] == [7, 3]


def test_lengths_and_unknown_words_are_those_of_the_tokenizer():
    texts = {"train": ["a cat sat", "a cat"], "val": ["a dog sat on a cat"]}
    report = Report("x", "y")
    check_texts(report, texts, TextOptions(min_count=1, max_length=6))
    tokenizer = Tokenizer.train(texts["train"], min_count=1)
    val = report.splits["val"]["texts"]["captions"]
    assert val["unknown share"] == tokenizer.unknown_share(texts["val"]) == pytest.approx(2 / 6)
    assert val["cut share"] == 1.0
    assert val["lengths"] == {"8": 1}
    assert {f.split for f in report.of("warning")} == {"val"}


def test_classes_are_compared_between_the_splits(tmp_path, capsys):
    for number, (split, name) in enumerate((s, c) for s in ("train", "val") for c in ("cat", "dog") for _ in range(6)):
        picture(tmp_path / f"d/{split}/{name}/{number}.png", number)
    status, report, _ = checked(tmp_path / "d", capsys=capsys)
    assert status == 0
    assert report["format"] == "image_folder"
    assert report["splits"]["val"]["pictures of a class"] == {"cat": 6, "dog": 6}
    for path in list((tmp_path / "d/val/dog").iterdir())[:5]:
        path.unlink()
    picture(tmp_path / "d/train/owl/0.png", 100)
    (tmp_path / "d/val/owl").mkdir()
    status, report, _ = checked(tmp_path / "d", "--strict", capsys=capsys)
    assert status == 1
    assert names(report, "classes without a picture", "val") == ["owl"]
    assert names(report, "classes with fewer", "train") == ["owl"]
    (tmp_path / "d/val/owl").rmdir()
    picture(tmp_path / "d/val/dog/bad.png", 0).write_bytes(b"\0")
    status, report, text = checked(tmp_path / "d", capsys=capsys)
    assert status == 1
    assert "lacks owl" in text  # the reader stops, and the files are looked at all the same
    assert [Path(name).name for name in names(report, "cannot be read")] == ["bad.png"]


def test_one_picture_in_two_classes_is_told(tmp_path):
    for name in ("cat", "dog"):
        for i in range(2):
            picture(tmp_path / f"train/{name}/{i}.png", i + 10 * (name == "dog"))
    shutil.copy(tmp_path / "train/cat/0.png", tmp_path / "train/dog/9.png")
    report = check_source(ImageFolderSource(tmp_path))
    assert [f.names for f in report.of("warning") if "different classes" in f.what] == [
        ("train/dog/9.png = train/cat/0.png",)
    ]


def test_a_second_check_looks_at_changed_files_alone(tmp_path, monkeypatch):
    root, kept = sound(tmp_path / "d"), tmp_path / "kept.jsonl"
    asked: list[str] = []

    class Counted(Inspector):
        def __call__(self, path):
            asked.append(Path(path).name)
            return super().__call__(path)

    monkeypatch.setattr(survey, "Inspector", Counted)

    def check(**options) -> Report:
        results = Results(kept, **options)
        try:
            return check_source(TableSource(root), TextOptions(min_count=1), jobs=1, results=results)
        finally:
            results.close()

    whole = check()
    assert sorted(asked) == sorted(f"{i}.png" for i in range(9))
    asked.clear()
    assert check().to_dict() == whole.to_dict()
    assert asked == []
    picture(root / "4.png", 40, size=(60, 60))
    (root / "5.png").write_bytes(b"")
    assert [f.names for f in check().of("error")] == [("5.png: an empty file (0 bytes); fetch it again",)]
    assert sorted(asked) == ["4.png", "5.png"]
    asked.clear()
    assert not check().ok  # what cannot be read is never remembered
    assert asked == ["5.png"]
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # as a check that was broken off leaves it
    asked.clear()
    check()
    assert len(asked) == 9 - 3
    asked.clear()
    check(fresh=True)
    assert len(asked) == 9
    kept.write_text(json.dumps({"inspections": 1, "pillow": "0.1"}) + "\n" + "\n".join(lines[1:]) + "\n")
    asked.clear()
    check()
    assert len(asked) == 9  # found by another Pillow
    kept.write_text("my notes\n")
    with pytest.raises(ValueError, match=r"kept\.jsonl: holds something else"):
        check()
    assert kept.read_text() == "my notes\n"


def test_a_file_that_ends_its_process_ends_nothing_else(tmp_path, monkeypatch):
    root = sound(tmp_path / "d")
    hook = tmp_path / "hook"
    hook.mkdir()
    # A decoder that crashes, as the C libraries do: Pillow's opener kills the process for one name.
    (hook / "sitecustomize.py").write_text(
        "import os, signal\nfrom PIL import Image\nplain = Image.open\n"
        "def open_(path, *a, **k):\n"
        "    if str(path).endswith('3.png'):\n        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return plain(path, *a, **k)\n"
        "Image.open = open_\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hook))
    report = check_source(TableSource(root), TextOptions(min_count=1), jobs=2)
    [error] = report.of("error")
    assert error.names == (f"3.png: it ends the process that decodes it ({signal.SIGSEGV.name}); remove it",)
    assert report.facts["pictures that decode"] == 8


def test_an_inspection_says_what_the_loader_gives(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 8
    path = picture(tmp_path / "a.png", 1, size=(50, 30), exif=exif)
    found = inspect(path)
    assert (found.error, found.width, found.height, found.mode, found.format, found.turned) == (
        *("", 30, 50, "RGB", "PNG"),
        True,
    )
    assert inspect(tmp_path).error.startswith("is a folder")
    assert "does not exist" in inspect(tmp_path / ("x" * 300)).error
    worker = Inspector()
    try:
        assert worker(path) == found
        assert worker(os.fsdecode(bytes(tmp_path) + b"/\xff\n.png")).error.startswith("does not exist")
    finally:
        worker.close()


def test_no_process_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection.sys, "executable", shutil.which("false"))
    with pytest.raises(OSError, match="no process that decodes pictures"):
        Inspector()(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/nowhere"], "no such file or folder"),
        (["{tmp}"], "neither annotations nor pictures"),
        (["{tmp}", "--data", "table", "source.valfraction=1"], "source.valfraction: table has no such option"),
        (["{tmp}", "--data", "table", "min_count=few"], "min_count=few: a whole number"),
        (["{tmp}", "--data", "table", "colour=red"], "colour: no such option"),
        (["{tmp}", "--json", "{tmp}/no/report.json"], "there is no folder of that name"),
        (["{tmp}", "--json", "{tmp}"], "a folder; the report is one file"),
        ([""], "DATA is an empty name"),
        (["/dev/null"], "no regular file"),
        (["{tmp}", "--data", "photos"], "invalid choice"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, message, tmp_path, capsys):
    try:
        status = main(["check", *(argument.format(tmp=tmp_path) for argument in arguments)])
    except SystemExit as stop:
        status = stop.code
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert status == 2
    assert message in line


def test_formats_are_told_by_the_files(tmp_path):
    def made(name: str, *files: tuple[str, str]) -> Path:
        for file, text in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text, encoding="utf-8")
        return tmp_path / name

    coco = made("coco", ("annotations/captions_val2017.json", "{}"))
    assert detect(coco) == ("coco", coco, {})
    assert detect(coco / "annotations/captions_val2017.json") == (
        *("coco", coco),
        {"annotations": {"val": "annotations/captions_val2017.json"}},
    )
    assert detect(made("k", ("dataset_flickr8k.json", '{"images": [{"sentences": []}]}')))[0] == "karpathy"
    assert detect(made("f", ("Flickr8k.token.txt", "a.jpg#0\tx")))[0] == "flickr"
    assert detect(made("t", ("x.jsonl", '{"image": "a.png", "captions": []}')))[0] == "table"
    assert detect(made("p", ("x.tsv", "source\ttarget\na\tb")))[0] == "pairs"
    picture(tmp_path / "i/train/cat/0.png", 0)
    assert detect(tmp_path / "i")[0] == "imagenet"
    picture(tmp_path / "photos/0.png", 0)
    assert detect(tmp_path / "photos")[0] == "folder"
    made("coco", ("dataset_coco.json", "{}"))
    with pytest.raises(ValueError, match="may be coco or karpathy: say which with --data"):
        detect(coco)
    assert detect(coco, "karpathy")[0] == "karpathy"
    assert "val_fraction" in options_of("table")


def test_pairs_of_sentences(tmp_path, capsys):
    rows = [f"the cat {i}\tle chat {i}\t{'train' if i < 8 else 'val'}" for i in range(10)]
    (tmp_path / "x.tsv").write_text("\n".join(["source\ttarget\tsplit", *rows, "the dog\t\ttrain"]) + "\n")
    status, report, _ = checked(tmp_path, capsys=capsys)
    assert status == 0
    assert report["splits"]["train"]["targets"] == 8
    assert report["splits"]["val"]["texts"]["sources"]["unknown share"] == pytest.approx(1 / 3)  # 8 and 9
    assert [f["count"] for f in report["findings"] if "no letter or digit skipped" in f["what"]] == [1]


# What the check must say of each damaged input: (exit status, words of a finding, its count).
COCO = {
    "captions_ok.json": (0, "", 0),
    "caption_null.json": (0, "missing or no text", 1),
    "caption_missing.json": (0, "missing or no text", 1),
    "caption_not_text.json": (0, "missing or no text", 5),
    "caption_empty.json": (0, "blank captions", 5),
    "caption_lone_surrogate.json": (0, "broken characters", 1),
    "dup_annotation_ids.json": (0, "repeated annotation ids", 1),
    "image_without_captions.json": (0, "pictures without captions", 1),
    "annotation_unknown_image.json": (1, "unlisted images", 1),
    "dup_image_ids.json": (1, "reader stops", 1),
    "cut_json.json": (1, "reader stops", 1),
    "enc_gbk.json": (1, "reader stops", 1),
    "enc_utf16.json": (1, "reader stops", 1),
}


@pytest.mark.parametrize("name", COCO)
def test_damaged_annotations(name, bugfiles, capsys):
    wanted, what, count = COCO[name]
    status, report, _ = checked(bugfiles / "coco" / name, "min_count=1", capsys=capsys)
    assert status == wanted
    bad = [f for f in report["findings"] if f["level"] != "fact"]
    if not what:
        assert bad == []
        return
    [finding] = [f for f in bad if what in f["what"]]
    assert finding["count"] == len(finding["names"]) == count
    left_out = sum(f["count"] for f in bad if "without captions" in f["what"])
    assert report["facts"]["pictures that decode"] == 6 - left_out  # looked at though the reader stops


def test_damaged_pictures(bugfiles, capsys):
    index = json.loads((bugfiles / "index.json").read_text(encoding="utf-8"))["files"]
    bad = {Path(entry["file"]).name for entry in index if entry["case"] in ("A07", "A10", "A11")}
    good = {Path(e["file"]).name for e in index if e["case"] in ("A00", "A01", "A02", "A04", "A05", "A13")}
    status, report, text = checked(bugfiles / "images", "--names", "50", capsys=capsys)
    assert status == 1
    found = set(names(report, "cannot be read"))
    assert bad <= found
    assert not good & found
    assert "git-lfs pointer" in text
    assert not any(name.startswith((".", "Thumbs")) for name in found)
    status, report, _ = checked(bugfiles / "names", capsys=capsys)
    assert status == 0  # blanks, quotes, other scripts, a leading dash
    assert report["facts"]["pictures that decode"] == len(list((bugfiles / "names").glob("*.j*p*"))) + 2


def _all_kinds(bugfiles: Path, root: Path) -> Path:
    """A table of every damaged picture in train and a sound one; val is sound."""
    shutil.copytree(bugfiles / "images", root)
    kinds = sorted(p.name for p in root.iterdir() if not p.name.startswith(".") and p.suffix not in (".db",))
    picture(root / "v0.png", 1000)
    picture(root / "v1.png", 1001)
    rows = [(name, "train", "a picture of a thing") for name in kinds]
    return table(root, [*rows, ("v0.png", "val", "a thing"), ("v1.png", "val", "a picture")])


def test_loader_processes_outlive_every_file(bugfiles, tmp_path):
    root = _all_kinds(bugfiles, tmp_path / "d")
    data = CaptionData(lambda: TableSource(root), batch_size=4, num_workers=2, min_count=1, on_bad="skip")
    data.fit_to({"size": (32, 32), "mode": "crop", "mean": (0.5,) * 3, "std": (0.5,) * 3})
    expected = {p.name for p in root.iterdir() if inspect(p).error} & {r.image_id for r in data.records("train")}
    seen = [id_ for batch in data.loader("train", train=True) for id_ in batch.ids]
    assert len(expected) >= 8
    assert set(data.bad["train"]) == expected
    assert sorted(seen) == sorted(r.image_id for r in data.records("train") if r.image_id not in expected)


SMALL = [o for o in TINY if "source" not in o]


def test_training_stops_before_its_first_step(bugfiles, config, tmp_path, capsys):
    root = _all_kinds(bugfiles, tmp_path / "d")
    options = [*SMALL, "data=table", f"data.root={root}", "data.min_count=1", f"out={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as stop:
        run.command(run.train, config(*options))
    assert stop.value.code == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error:")]
    bad = sorted(
        p.name for p in root.iterdir() if p.suffix != ".csv" and not p.name.startswith(".") and inspect(p).error
    )
    assert f"{len(bad) - 1} of " in line  # Thumbs.db is in no table
    assert bad[1] in line
    assert "data.on_bad=skip" in line
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_training_leaves_out_and_names_unreadable_pictures(config, tmp_path, caplog):
    root = sound(tmp_path / "d", train=8, val=4)
    (root / "2.png").write_bytes(b"")
    (root / "9.png").write_text("hello")
    shutil.copy(root / "0.png", root / "10.png")
    options = [*SMALL, "data=table", f"data.root={root}", "data.min_count=1", "data.on_bad=skip"]
    with caplog.at_level(logging.INFO):
        report = run.train(config(*options, f"out={tmp_path / 'run'}"))
    assert report["facts"]["unreadable_images"] == 1
    found = json.loads((tmp_path / "run" / "unreadable.json").read_text())
    assert {split: list(bad) for split, bad in found.items()} == {"train": ["2.png"], "val": ["9.png"]}
    assert "an empty file" in found["train"]["2.png"]
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("data check: ")]
    assert "data check: 1 equal files in train and val (10.png = 0.png)" in told
    assert any(line.startswith("data check: 8 train and 4 val records in ") for line in told)
    # Without the check the loaders find the same.
    report = run.train(config(*options, "data.check=off", f"out={tmp_path / 'off'}"))
    assert json.loads((tmp_path / "off" / "unreadable.json").read_text()) == found
    assert report["facts"]["unreadable_images"] == 1


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_a_readable_picture_is_an_error(split, config, tmp_path):
    root = sound(tmp_path / "d", train=3, val=2)
    for i in range(3) if split == "train" else (3, 4):
        (root / f"{i}.png").write_bytes(b"")
    options = [*SMALL, "data=table", f"data.root={root}", "data.min_count=1", "data.on_bad=skip"]
    with pytest.raises(ValueError, match=rf"[23] of [23] {split} pictures cannot be read: .*0 bytes"):
        run.train(config(*options, f"out={tmp_path / 'run'}"))
    with pytest.raises(
        ValueError, match=r"none of the 3 training records can be read.*0 bytes|no record can be read.*0 bytes"
    ):
        run.train(config(*options, "data.check=off", f"out={tmp_path / 'run'}"))


def test_made_data_need_no_check(config, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Inspector, "_start", lambda self: pytest.fail("a process was started"))
    with caplog.at_level(logging.INFO):
        run.train(config(*TINY, "trainer.max_steps=1", f"out={tmp_path}"))
    assert "data check" not in caplog.text
    with pytest.raises(Exception, match=r"data\.check=perhaps: choose auto or off"):
        run.train(config(*TINY, "data.check=perhaps", f"out={tmp_path / 'x'}"))


@pytest.mark.parametrize("kind", ["folder", "classes"])
def test_links_in_circles_and_pipes_are_findings_and_not_the_end(kind, tmp_path, capsys):
    below = tmp_path / "train" / "cat" if kind == "classes" else tmp_path
    picture(below / "1.png", 1)
    if kind == "classes":
        picture(tmp_path / "train" / "dog" / "2.png", 2)
    os.symlink("circle.png", below / "circle.png")
    os.symlink("gone.png", below / "nowhere.png")
    os.symlink(below, below / "again")
    os.mkfifo(below / "pipe.png")
    status, report, _ = checked(tmp_path, capsys=capsys)
    assert status == 1
    assert {Path(name).name for name in names(report, "cannot be read")} == {"circle.png", "nowhere.png", "pipe.png"}
    assert report["facts"]["pictures that decode"] == (2 if kind == "classes" else 1)


@pytest.mark.parametrize("name", ["a" * 5000 + ".png", "a\0b.png", "\ud83d.png"], ids=["long", "nul", "half"])
def test_one_name_that_no_disk_can_hold_does_not_hide_the_others(name, tmp_path, capsys):
    picture(tmp_path / "1.png", 1)
    images = [{"id": 0, "file_name": name}, {"id": 1, "file_name": "1.png"}]
    annotations = [{"id": i, "image_id": i, "caption": "a cat"} for i in (0, 1)]
    (tmp_path / "captions_train.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    status, report, _ = checked(tmp_path, "min_count=1", capsys=capsys)
    assert status == 1
    assert report["splits"]["train"]["images"] == 1
    bad = {f["what"]: f["count"] for f in report["findings"] if f["level"] == "error"}
    assert bad.pop("captioned pictures that are not there") == 1
    assert bad in ({}, {"defects that the reader stops at": 1})


def test_names_in_no_encoding_are_printed_as_they_are_and_halves_of_letters_escaped(tmp_path):
    """The bytes of the file system go out unchanged, so that what is printed can be given to another program."""
    (tmp_path / os.fsdecode(b"a\xff.png")).write_bytes(b"")
    images = [{"id": 0, "file_name": "\ud83d.png"}, {"id": 1, "file_name": os.fsdecode(b"a\xff.png")}]
    content = {"images": images, "annotations": [{"id": i, "image_id": i, "caption": "a cat"} for i in (0, 1)]}
    (tmp_path / "captions_train.json").write_text(json.dumps(content))
    command = [sys.executable, "-c", "import sys; from vitcap.cli import main; sys.exit(main())", "check", tmp_path]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"/\\ud83d.png (captions_train.json" in done.stdout or b"'\\ud83d.png" in done.stdout
    assert b"\xff.png" in done.stdout or b"a\\udcff.png" in done.stdout


def test_a_pipe_under_the_name_of_a_table_is_not_waited_for(tmp_path, capsys):
    picture(tmp_path / "1.png", 1)
    os.mkfifo(tmp_path / "captions.csv")
    status, report, _ = checked(tmp_path, capsys=capsys)
    assert (status, report["format"]) == (0, "folder")
    status, report, _ = checked(tmp_path, "--data", "table", capsys=capsys)
    assert status == 1
    told = [name for finding in report["findings"] for name in finding["names"]]
    assert any("captions.csv: is no regular file, a file is wanted" in name for name in told)
