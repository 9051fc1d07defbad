"""Inputs that have broken other captioners and ViT trainers, in public reports: here each has its right value, or its
one line. More of them stand in the tests of the modules that they concern."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitcap.data.coco import CocoSource, KarpathySource
from vitcap.data.images import ImageError, find_images, load_image
from vitcap.data.karpathy import split_by_lists
from vitcap.data.records import Entry
from vitcap.data.tables import FlickrSource, TableSource
from vitcap.data.tokenizer import Tokenizer
from vitcap.metrics.captions import score
from vitcap.metrics.results import evaluate_files, read_references
from vitcap.overrides import check_options

ROOT = Path(__file__).resolve().parents[1]
RED = Image.new("RGB", (40, 30), (250, 10, 20))


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


# pictures


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png16(values: list[list[int]], colour: int, clear: list[int] | None = None) -> bytes:
    """A row of pixels of 16 bits a channel. colour: PNG's type, 0 grey, 2 RGB. clear: the value that is transparent."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", len(values), 1, 16, colour, 0, 0, 0))
    clear_chunk = b"" if clear is None else chunk(b"tRNS", struct.pack(f">{len(clear)}H", *clear))
    raw = b"\0" + b"".join(struct.pack(f">{len(v)}H", *v) for v in values)
    data = chunk(b"IDAT", zlib.compress(raw))
    return b"\x89PNG\r\n\x1a\n" + head + clear_chunk + data + chunk(b"IEND", b"")


def test_a_clear_value_of_16_bits_shows_the_background(tmp_path: Path) -> None:
    (tmp_path / "grey.png").write_bytes(png16([[0], [257], [65535]], 0, clear=[257]))
    (tmp_path / "rgb.png").write_bytes(png16([[1000, 2000, 3000], [60000, 50000, 40000]], 2, clear=[1000, 2000, 3000]))
    assert np.asarray(load_image(tmp_path / "grey.png"))[0, :, 0].tolist() == [0, 255, 255]
    assert np.asarray(load_image(tmp_path / "rgb.png"))[0].tolist() == [[255] * 3, [234, 195, 156]]


def tiff16(values: np.ndarray, order: str) -> bytes:
    """Grey of 16 bits, in either order of bytes."""
    height, width = values.shape
    data = values.astype(f"{order}u2").tobytes()
    short, tags = lambda v: struct.pack(f"{order}HH", v, 0), []
    for tag, value in ((256, width), (257, height), (258, 16), (259, 1), (262, 1), (277, 1), (278, height)):
        tags.append(struct.pack(f"{order}HHI", tag, 3, 1) + short(value))
    for tag, value in ((273, 8 + 2 + 9 * 12 + 4), (279, len(data))):
        tags.append(struct.pack(f"{order}HHII", tag, 4, 1, value))
    tags.sort(key=lambda t: struct.unpack(f"{order}H", t[:2])[0])
    mark = b"MM\0*" if order == ">" else b"II*\0"
    return mark + struct.pack(f"{order}IH", 8, len(tags)) + b"".join(tags) + struct.pack(f"{order}I", 0) + data


@pytest.mark.parametrize("order", "<>")
def test_grey_of_16_bits_in_either_order_of_bytes(order: str, tmp_path: Path) -> None:
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    (tmp_path / "a.tif").write_bytes(tiff16(values, order))
    assert np.asarray(load_image(tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_animations_of_every_format_give_their_first_frame(kind: str, tmp_path: Path) -> None:
    others = [Image.new("RGB", RED.size, "blue"), Image.new("RGB", RED.size, "green")]
    (tmp_path / "a.bin").write_bytes(encoded(RED, kind, save_all=True, append_images=others))
    difference = np.abs(np.asarray(load_image(tmp_path / "a.bin")).astype(int) - np.asarray(RED))
    assert difference.max() <= 4


def test_cmyk_of_photo_programs_is_not_inverted(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(RED.convert("CMYK"), "JPEG", quality=95))
    assert np.abs(np.asarray(load_image(tmp_path / "a.jpg")).astype(int) - (250, 10, 20)).max() <= 3


def test_progressive_pictures_that_are_cut_are_refused(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (90, 90, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(pixels), "JPEG", progressive=True)
    for share in (0.3, 0.6, 0.95):
        (tmp_path / "a.jpg").write_bytes(data[: int(share * len(data))])
        with pytest.raises(ImageError, match=r"a\.jpg: a damaged or cut JPEG picture"):
            load_image(tmp_path / "a.jpg")


def test_a_huge_colour_profile_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(RED, "JPEG", icc_profile=bytes(5_000_000)))
    assert load_image(tmp_path / "a.jpg").size == (40, 30)


@pytest.mark.parametrize("name", ["a.eps", "a.jpg"])
def test_postscript_is_not_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would hand it to Ghostscript, under whatever name it comes."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / name
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(ImageError, match="a PostScript document, not a picture"):
        load_image(path)
    assert not (tmp_path / "ran").exists()


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s.jpg"))
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "b.png").write_bytes(encoded(RED, "PNG"))
    wanted = {"folder": "is a folder", "pipe": "no regular file", "s": "no regular file", "zero": "no regular file"}
    wanted |= {"loop": "a link that leads nowhere", "gone": "a link that leads nowhere", "none": "does not exist"}
    for name, message in wanted.items():
        with pytest.raises(ImageError, match=rf"{name}\.jpg: is {message}|{name}\.jpg: {message}"):
            load_image(tmp_path / f"{name}.jpg")
    listener.close()
    found = [path.name for path in find_images(tmp_path)]
    assert "folder.jpg" not in found
    assert found.count("b.png") == 1
    with pytest.raises(ImageError, match="does not exist"):
        load_image("a" * 300)
    with pytest.raises(FileNotFoundError, match="an empty name"):
        find_images("")


def test_a_folder_that_cannot_be_listed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "a.png").write_bytes(encoded(RED, "PNG"))
    listed = os.scandir

    def deny(path: Any) -> Any:
        if os.fspath(path).endswith("private"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert [path.name for path in find_images(tmp_path)] == ["a.png"]
    assert "private: its pictures are left out (Permission denied)" in caplog.text


# annotation files


def coco(root: Path, count: int = 3, **changes: Any) -> Path:
    """A COCO file whose captions say which picture they are of."""
    for i in range(count):
        (root / f"{i}.png").write_bytes(encoded(RED, "PNG"))
    content: dict[str, Any] = {
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(count)],
        "annotations": [{"id": i, "image_id": i, "caption": f"picture number {i}"} for i in range(count)],
    }
    (root / "captions_train.json").write_text(json.dumps(content | changes))
    return root


def test_captions_of_unlisted_images_stop_or_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"id": 7, "image_id": 999, "caption": "of no picture"}]
    rows += [{"id": i, "image_id": i, "caption": f"picture number {i}"} for i in range(3)]
    root = coco(tmp_path, annotations=rows)
    with pytest.raises(ValueError, match=r"1 of 4 annotations .* image id 999 \(data\.source\.on_missing=skip"):
        CocoSource(root).split("train")
    source = CocoSource(root, on_missing="skip")
    assert {r.image_id: r.captions for r in source.split("train")} == {i: (f"picture number {i}",) for i in range(3)}
    assert [count for what, count in source.report.items() if "unlisted images skipped" in what] == [1]
    assert "999" in caplog.text


@pytest.mark.parametrize("twice", ['"caption": "a", "caption": "b"', '"caption": "a", "image_id": 0, "image_id": 1'])
def test_objects_with_a_key_twice_are_refused(twice: str, tmp_path: Path) -> None:
    root = coco(tmp_path)
    content = json.loads((root / "captions_train.json").read_text())
    text = json.dumps(content["images"])
    (root / "captions_train.json").write_text(f'{{"images": {text}, "annotations": [{{"image_id": 0, {twice}}}]}}')
    with pytest.raises(ValueError, match=r"captions_train\.json: .*more than once"):
        CocoSource(root).split("train")
    (root / "t.jsonl").write_text(f'{{"image": "0.png", {twice}}}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl: line 1 .*more than once"):
        TableSource(root, file="t.jsonl").split("train")


@pytest.mark.parametrize("field", ["id", "file_name"])
def test_names_with_half_characters_are_refused_before_training(field: str, tmp_path: Path) -> None:
    """No file can be called so, and no result could be written: better now than after a week."""
    root = coco(tmp_path)
    images = [{"id": "a\ud83d", "file_name": "0.png"} | ({field: "\ud83d.png"} if field == "file_name" else {})]
    rows = [{"id": 1, "image_id": "a\ud83d", "caption": "a dog"}]
    with pytest.raises(ValueError, match="broken characters") as caught:
        CocoSource(coco(root, images=images, annotations=rows), on_missing="skip").split("train")
    assert str(caught.value).isascii() or "\\ud83d" in str(caught.value)


def test_ids_of_any_size_stay_what_they_are(tmp_path: Path) -> None:
    ids = [10**40, -1, "01", "1", 1, "é", " "]
    for i in range(len(ids)):
        (tmp_path / f"{i}.png").write_bytes(encoded(RED, "PNG"))
    images = [{"id": i, "file_name": f"{n}.png"} for n, i in enumerate(ids)]
    rows = [{"image_id": i, "caption": f"picture number {n}"} for n, i in enumerate(ids)]
    records = CocoSource(coco(tmp_path, images=images, annotations=rows)).split("train")
    assert [(r.image_id, r.captions) for r in records] == [(i, (f"picture number {n}",)) for n, i in enumerate(ids)]
    assert [Path(str(r.image)).name for r in records] == [f"{n}.png" for n in range(len(ids))]


def test_a_name_that_two_pictures_share_is_never_guessed(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "b.jpg"):
        (tmp_path / name).write_bytes(encoded(RED, "PNG"))
    (tmp_path / "c.token.txt").write_text("a.jpg#0\tone\na.png#0\ttwo\nb.jpg#0\tthree\n")
    (tmp_path / "train.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"train\.txt: line 1: a may be a\.jpg or a\.png"):
        FlickrSource(tmp_path, images=".").split("train")
    (tmp_path / "train.txt").write_text("a.png\nb\n")
    records = FlickrSource(tmp_path, images=".").split("train")
    assert [(r.image_id, r.captions) for r in records] == [("a.png", ("two",)), ("b.jpg", ("three",))]


def test_lists_of_a_split_want_names_that_differ(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("1.jpg\n")
    (tmp_path / "test.txt").write_text("2.jpg\n")
    lists = {name: tmp_path / f"{name}.txt" for name in ("val", "test")}
    train = [Entry(1, Path("train/1.jpg"), ["a"], "train, image 1")]
    val = [Entry(i, Path(f"val/{i}.jpg"), ["b"], f"val, image {i}") for i in (2, 3)]
    assert [e.image_id for e in split_by_lists(lists, train, val, expect=False)["val"]] == [1]
    for other in (
        Entry(9, Path("val/1.jpg"), ["c"], "val, image 9"),
        Entry(1, Path("val/9.jpg"), ["c"], "val, image 9"),
    ):
        with pytest.raises(ValueError, match="that of another image"):
            split_by_lists(lists, train, [*val, other], expect=False)


@pytest.mark.parametrize(
    ("line", "name", "caption"),
    [
        ("a#b.jpg#0\tx y", "a#b.jpg", "x y"),
        ("a#2.jpg\tx y", "a#2.jpg", "x y"),  # no number, and a # in the name
        ("a.jpg\tx y", "a.jpg", "x y"),
        ("a.jpg#0\tx\ty\tz", "a.jpg", "x y z"),
        ("\ufeffa.jpg#0\tx y\r", "a.jpg", "x y"),
        ("a.jpg#0\tx\x00y\x0bz\u2028w", "a.jpg", "x y z w"),
        ("a.jpg#12\t\U0001f600 x\u202e \u05d0\u0301", "a.jpg", "\U0001f600 x\u202e \u05d0\u0301"),
        ("a.jpg#0\t" + "word " * 20_000, "a.jpg", ("word " * 20_000).strip()),
    ],
)
def test_lines_of_token_files(line: str, name: str, caption: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(encoded(RED, "PNG"))
    (tmp_path / "c.token.txt").write_text(f"{line}\n", encoding="utf-8", newline="")
    (record,) = FlickrSource(tmp_path, images=".").split("train")
    assert (record.image_id, record.captions) == (name, (caption,))


# results


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_equal_entries_of_results_count_once_and_unequal_stop(tmp_path: Path) -> None:
    """Samplers of several processes repeat some images to make the shares even."""
    references = write(tmp_path / "r.json", {str(i): [f"a dog number {i} runs"] for i in range(4)})
    rows = [{"image_id": i, "caption": f"a dog number {i} runs"} for i in range(4)]
    once = evaluate_files(write(tmp_path / "once.json", rows), references)
    twice = evaluate_files(write(tmp_path / "twice.json", [*rows, rows[2], rows[0]]), references)
    assert twice.corpus == once.corpus
    assert "repeated_results_merged" not in once.facts
    assert twice.facts["repeated_results_merged"] == 2
    assert any("2 entries" in text for text in twice.facts["warnings"])
    rows.append({"image_id": 2, "caption": "a cat"})
    with pytest.raises(ValueError, match="more than one entry of the results for id 2"):
        evaluate_files(write(tmp_path / "other.json", rows), references)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"images": ' + "9" * 5000 + "}", '{"a": [NaN]}', "\ud800", "[1e999]"])
def test_json_that_python_itself_trips_over(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ValueError, match=r"r\.json: "):
        read_references(path)


def test_sentences_without_blanks_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    chinese = ["一只狗在海滩上跑", "一只猫坐在椅子上"]
    card = score(dict(enumerate(chinese)), {i: [text] for i, text in enumerate(chinese)})
    assert card.corpus["BLEU-1"] == pytest.approx(1)  # a caption against itself
    assert any("script without blanks" in text for text in card.facts["warnings"])
    for words in (["a dog runs", "a cat"], ["собака бежит", "кот"], ["개가 달린다", "고양이 한 마리가 앉아 있다"]):
        card = score(dict(enumerate(words)), {i: [text] for i, text in enumerate(words)})
        assert not any("blanks" in text for text in card.facts["warnings"])
    with caplog.at_level(logging.WARNING):
        assert Tokenizer.train(["a dog runs", "ein Hund"], min_count=1).vocab_size == 9
        assert "data.tokenizer=bpe" not in caplog.text
        Tokenizer.train(chinese, min_count=1)
    assert "data.tokenizer=bpe" in caplog.text
    small = Tokenizer.train(chinese, kind="bpe", vocab_size=300)
    assert [small.decode(small.encode(text)) for text in chinese] == chinese


# command lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data=coco", "data.annotatons=x"], "data.annotatons: .*did you mean data.source.annotations"),
        (["model.encoder.depht=3"], "did you mean model.encoder.depth"),
        (["trainer.max_epoch=3"], r"did you mean trainer.max_epochs.*\+trainer.max_epoch="),
        (["model=vit_captoin"], "model=vit_captoin: .*did you mean vit_caption"),
        (["experiment=none_of_them"], "experiment=none_of_them: there is no such choice; there are .*photos"),
        (["data.root=/data/café/a.json"], r"quote the value: \"data.root='/data/café/a.json'\""),
        (["data.root=it's"], r"quote the value: \"data.root='it\\'s'\""),
        (["seed"], "seed: an option is KEY=VALUE"),
        (["seed=1,2"], "--multirun"),
        (["=3"], "."),
        (["zzz=1", "yyy=2"], "zzz: there is no such option"),
    ],
)
def test_mistakes_of_the_command_line_take_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    with pytest.raises(SystemExit) as caught:
        check_options(ROOT / "conf", "config", arguments)
    told = capsys.readouterr().err
    assert caught.value.code == 1
    assert told.startswith("vitcap: error: ")
    assert told.count("\n") == 1
    assert re.search(message, told)


@pytest.mark.parametrize("arguments", [[], ["seed=3", "data=coco"], ["--help"], ["-m", "seed=1,2"], ["+trainer.x=1"]])
def test_command_lines_without_a_mistake_are_left_to_hydra(arguments: list[str]) -> None:
    check_options(ROOT / "conf", "config", arguments)


def test_quoted_values_arrive_as_they_were(config: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The advice holds: what it says to write is read as what was meant."""
    for value in ("/data/café/a.json", "it's", "~/a", "a,b[1]{c}=d", "C:\\é\\x", "é\\", "\\'"):
        with pytest.raises(SystemExit):
            check_options(ROOT / "conf", "config", ["data=coco", f"data.root={value}"])
        (advice,) = capsys.readouterr().err.partition('"')[2:]
        assert config("data=coco", advice.rstrip('\n"')).data.root == value


def test_the_script_says_it_too() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "evaluate.py"), "resutls=a"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "vitcap: error: resutls: there is no such option; did you mean results? (--help shows all of them)"
    ]


def test_jobs_of_a_multirun_write_below_runs() -> None:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for name in ("config", "evaluate"):
            cfg = compose(name, return_hydra_config=True)
            assert (cfg.hydra.sweep.dir, cfg.hydra.sweep.subdir, cfg.hydra.job.chdir) == (cfg.out, ".", False)
            assert cfg.out.startswith("runs/")


# training on almost nothing


def test_one_picture_to_train_on_and_one_to_validate(config: Callable[..., Any], tmp_path: Path) -> None:
    """CIDEr-D is not defined for one image: every weight is log 1. It is left out, and is not 0."""
    from vitcap.run import train

    root = coco(tmp_path, 2)
    content = json.loads((root / "captions_train.json").read_text())
    for i, split in enumerate(("train", "val")):
        part = {key: [row for row in rows if i in (row.get("image_id"), row["id"])] for key, rows in content.items()}
        (root / f"captions_{split}.json").write_text(json.dumps(part))
    sizes = [f"model.{part}.{size}" for part in ("encoder", "decoder") for size in ("width=16", "depth=1", "heads=2")]
    report = train(
        config(
            *("data=coco", f"data.root={root}", "data.min_count=1", "data.batch_size=4", "model.encoder.image_size=16"),
            *("trainer.max_epochs=2", "overlays=0", f"out={tmp_path / 'run'}", *sizes, "trainer.accelerator=cpu"),
        )
    )
    assert report["scores"]["CIDEr-D"] is None
    assert report["facts"]["images"] == 1


def test_karpathy_sentences_of_any_number(tmp_path: Path) -> None:
    """Five references an image are usual, and nowhere demanded; none is reported."""
    images = []
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(encoded(RED, "PNG"))
        sentences = [{"raw": f"picture {i} said in way {n}", "tokens": []} for n in range((0, 1, 5, 7)[i])]
        images.append({"filename": f"{i}.png", "imgid": i, "split": "train", "sentences": sentences})
    (tmp_path / "dataset_x.json").write_text(json.dumps({"images": images}))
    source = KarpathySource(tmp_path)
    assert [(r.image_id, len(r.captions)) for r in source.split("train")] == [(1, 1), (2, 5), (3, 7)]
    assert source.report["images without captions skipped"] == 1
