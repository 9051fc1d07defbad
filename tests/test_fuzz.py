"""Made-up input of every kind: what is read is what was written, or there is one clear error, and never anything else.

The examples are the same on every run, and few; HYPOTHESIS_PROFILE=long tries many, at random.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitcap.command import command
from vitcap.data.coco import CocoSource, KarpathySource
from vitcap.data.images import ImageError, load_image
from vitcap.data.inspection import Inspector
from vitcap.data.reading import clean_caption
from vitcap.data.records import FileSource
from vitcap.data.tables import FlickrSource, TableSource
from vitcap.data.tokenizer import Tokenizer
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.results import read_references, read_results

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def some(count: int) -> settings:
    """So many examples: the same each time, without a folder of those that failed, and shrunk when they fail."""
    return settings(
        max_examples=20 * count if LONG else count,
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def outcome(action: Callable[[], Any], *allowed: type[Exception]) -> tuple[Any, str]:
    """What an action gives, and ""; or None, and the line that the commands print of an error that is allowed."""
    try:
        return action(), ""
    except allowed as error:
        told = " ".join(str(error).split())
    assert told
    assert len(told) < 3000
    return None, told


# pictures


def pictures() -> Iterator[bytes]:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8))
    flat = Image.new("RGB", (30, 20), "red")
    grey = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    exif = Image.Exif()
    exif[0x0112] = 6
    for image, kind, options in (
        (noise, "JPEG", {"exif": exif}),
        (noise, "JPEG", {"progressive": True}),
        (noise.convert("CMYK"), "JPEG", {}),
        (noise, "PNG", {}),
        (flat.quantize(4), "PNG", {"transparency": b"\x00\x80\xff"}),
        (grey, "PNG", {}),
        (flat, "GIF", {"save_all": True, "append_images": [noise, flat]}),
        (noise, "WEBP", {}),
        (flat, "WEBP", {"lossless": True, "save_all": True, "append_images": [noise]}),
        (noise, "TIFF", {"compression": "tiff_lzw"}),
        (grey, "TIFF", {}),
        (noise, "TIFF", {"compression": "jpeg"}),
        (noise, "BMP", {}),
        (noise, "TGA", {"compression": "tga_rle"}),
        (noise, "PPM", {}),
        (flat, "JPEG2000", {}),
        (flat, "AVIF", {}),
    ):
        data = io.BytesIO()
        image.save(data, kind, **options)
        yield data.getvalue()


PICTURES = list(pictures())
# Most positions lie in the head of the file, where sizes and offsets are.
POSITIONS = st.one_of(st.integers(0, 80), st.integers(0, 5000))
CHANGES = st.lists(st.tuples(POSITIONS, st.sampled_from(["set", "drop", "add"]), st.binary(min_size=1, max_size=4)))


def changed(data: bytes, changes: list[tuple[int, str, bytes]], end: float) -> bytes:
    for place, kind, new in changes:
        at = place % max(len(data), 1)
        data = data[:at] + (b"" if kind == "drop" else new) + data[at + (0 if kind == "add" else len(new)) :]
    return data[: math.ceil(end * len(data))]


@pytest.fixture(scope="module")
def inspector() -> Iterator[Inspector]:
    made = Inspector()
    yield made
    made.close()


@some(250)
@given(data=st.sampled_from(PICTURES), changes=CHANGES, end=st.sampled_from([1.0, 1.0, 1.0, 0.9, 0.5, 0.1]))
def test_pictures(data: bytes, changes: Any, end: float, inspector: Inspector, tmp_path_factory: Any) -> None:
    """Damaged files of every format: an RGB picture or an ImageError; in a process of its own first, which survives."""
    path = tmp_path_factory.getbasetemp() / "fuzz.jpg"
    path.write_bytes(changed(data, changes, end))
    assert "ends the process" not in inspector(path).error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        picture, error = outcome(lambda: load_image(path, max_pixels=1_000_000), ImageError)
    if error:
        assert error.startswith(f"{path}: ")
        return
    assert picture.mode == "RGB"
    assert 0 < picture.width * picture.height <= 1_000_000
    assert np.asarray(picture).shape == (picture.height, picture.width, 3)


# annotation files

TEXT = st.one_of(st.text(max_size=12), st.text("ab \t\r\x00\x85\u2028\u0301\ud83d\U0001f600#|,\"'", max_size=12))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=3,
)
NAMES = ("a.png", "b.png", "sub/c.png", "d#1.png", "é f.png")
IDS = st.one_of(st.integers(0, 4), st.sampled_from(["0", "1", "x", 10**30, -1, 1.0, True, None, "1 "]))
SOUND_IDS = st.one_of(st.integers(0, 4), st.sampled_from(["0", "1", "x", 10**30, -1]))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the pictures of NAMES."""
    made = tmp_path_factory.mktemp("data")
    (made / "sub").mkdir()
    for name in NAMES:
        Image.new("RGB", (4, 4)).save(made / name)
    return made


def clean(captions: Any) -> tuple[str, ...]:
    return tuple(text for text in (clean_caption(caption)[0] for caption in captions) if text)


def read(make: Callable[[], FileSource], split: str = "train") -> list[tuple[Any, str, tuple[str, ...]]] | None:
    """(id, file, captions) of the records; None if there was an error, which must be a clear one."""
    found, error = outcome(lambda: (source := make(), source.split(split)), ValueError, FileNotFoundError)
    if error:
        return None
    source, records = found
    return [(r.image_id, Path(str(r.image)).relative_to(source.root).as_posix(), r.captions) for r in records]


def same_key(one: Any, two: Any) -> bool:
    return type(one) is type(two) and one == two


@st.composite
def annotations(draw: st.DrawFn) -> Any:
    """A COCO file, sound or nearly."""
    sound = draw(st.booleans())
    ids = draw(st.lists(SOUND_IDS if sound else IDS, min_size=1, max_size=4, unique_by=str if sound else repr))
    names = st.sampled_from(NAMES) if sound else st.one_of(st.sampled_from(NAMES), TEXT, JSON)
    images = [{"id": i, "file_name": draw(names)} for i in ids]
    of = st.sampled_from(ids) if sound else st.one_of(st.sampled_from(ids), IDS)
    caption = st.one_of(TEXT, st.just("a dog")) if sound else st.one_of(TEXT, JSON)
    rows = [{"id": n, "image_id": draw(of), "caption": draw(caption)} for n in range(draw(st.integers(1, 6)))]
    whole: Any = {"images": images, "annotations": rows}
    if not sound and draw(st.booleans()):
        place = draw(st.sampled_from([whole, *images, *rows]))
        key = draw(st.sampled_from(list(place)))
        if draw(st.booleans()):
            del place[key]
        else:
            place[key] = draw(JSON)
    return whole


@some(150)
@given(content=annotations(), skip=st.booleans())
def test_coco(content: Any, skip: bool, root: Path) -> None:
    (root / "captions_train.json").write_text(json.dumps(content))
    found = read(lambda: CocoSource(root, on_missing="skip" if skip else "error"))
    for image_id, name, captions in found or []:
        rows = [row for row in content["annotations"] if same_key(row["image_id"], image_id)]
        assert captions == clean(row.get("caption") for row in rows)
        assert {i["file_name"] for i in content["images"] if same_key(i["id"], image_id)} == {name} or not name.strip()


@some(100)
@given(content=annotations(), split=st.sampled_from(["train", "restval", "val", "", 3]))
def test_karpathy(content: Any, split: Any, root: Path) -> None:
    images = []
    for image in content["images"] if isinstance(content.get("images"), list) else []:
        i, name = (image.get("id"), image.get("file_name")) if isinstance(image, dict) else (None, image)
        told = content.get("annotations")
        rows = [row for row in (told if isinstance(told, list) else []) if isinstance(row, dict)]
        sentences = [{"raw": row.get("caption")} for row in rows if same_key(row.get("image_id"), i)]
        images.append({"imgid": i, "filename": name, "split": split, "sentences": sentences})
    (root / "dataset_x.json").write_text(json.dumps({"images": images}))
    for image_id, name, captions in read(lambda: KarpathySource(root, json="dataset_x.json")) or []:
        (one,) = [image for image in images if same_key(image["imgid"], image_id)]
        assert one["filename"].strip() == name
        assert captions == clean(sentence["raw"] for sentence in one["sentences"])


@some(60)
@given(data=st.one_of(st.binary(max_size=40), JSON.map(lambda value: json.dumps(value).encode())))
@example(data=b"\xef\xbb\xbf{}")
@example(data=b"\xff\xfe{\x00}\x00")
@example(data=b"[" * 100_000)
@example(data=b'{"images": ' + b"9" * 5000)
@example(data=b'{"images": [], "images": []}')
def test_any_bytes_as_every_format(data: bytes, root: Path) -> None:
    for name in ("captions_train.json", "dataset_x.json", "t.jsonl", "t.csv", "t.tsv", "c.token.txt"):
        (root / name).write_bytes(data)
    read(lambda: CocoSource(root))
    read(lambda: KarpathySource(root, json="dataset_x.json"))
    for name in ("t.jsonl", "t.csv", "t.tsv"):
        read(lambda name=name: TableSource(root, file=name, images="."))  # type: ignore[misc]
    read(lambda: FlickrSource(root, captions="c.token.txt", images=".", lists={"train": "c.token.txt"}))
    for reader in (read_references, read_results):
        _, error = outcome(lambda reader=reader: reader(root / "captions_train.json"), ValueError)  # type: ignore[misc]
        assert not error or "captions_train.json: " in error


ROWS = st.lists(st.tuples(st.sampled_from(NAMES), TEXT), min_size=1, max_size=6)


def gathered(rows: list[tuple[str, str]]) -> list[tuple[Any, str, tuple[str, ...]]]:
    """What rows of (image, caption) mean."""
    images = dict.fromkeys(name for name, _ in rows)
    found = [(name, name, clean(text for other, text in rows if other == name)) for name in images]
    return [row for row in found if row[2]]


@some(150)
@given(rows=ROWS, end=st.sampled_from(["\n", "\r\n"]), mark=st.booleans())
def test_token_files(rows: list[tuple[str, str]], end: str, mark: bool, root: Path) -> None:
    rows = [(name, text.replace("\n", " ").replace("\r", " ").replace("\ud83d", "?")) for name, text in rows]
    assume(all(text.isprintable() or text.encode(errors="ignore") for _, text in rows))
    lines = "".join(f"{name}#{n}\t{text}{end}" for n, (name, text) in enumerate(rows))
    try:
        (root / "c.token.txt").write_bytes(b"\xef\xbb\xbf" * mark + lines.encode())
    except UnicodeEncodeError:  # half of a pair cannot be written, by anybody
        return
    found = read(lambda: FlickrSource(root, captions="c.token.txt", images=".", lists=None))
    assert (found or []) == gathered(rows)


@some(150)
@given(rows=ROWS, kind=st.sampled_from(["csv", "tsv", "jsonl"]))
def test_tables(rows: list[tuple[str, str]], kind: str, root: Path) -> None:
    if kind == "jsonl":
        text = "".join(json.dumps({"image": name, "caption": caption}) + "\n" for name, caption in rows)
    else:
        rows = [(name, caption.replace("\ud83d", "?")) for name, caption in rows]
        file = io.StringIO(newline="")
        csv.writer(file, delimiter="\t" if kind == "tsv" else ",").writerows([("image", "caption"), *rows])
        text = file.getvalue()
    assume(text.encode(errors="ignore").decode() == text)
    (root / f"t.{kind}").write_text(text, encoding="utf-8", newline="")
    found = read(lambda: TableSource(root, file=f"t.{kind}", images="."))
    assert (found or []) == gathered(rows)


@some(150)
@given(
    rows=st.lists(st.tuples(IDS, st.one_of(TEXT, st.just("a dog"), JSON)), max_size=5),
    sound=st.booleans(),
    change=st.one_of(st.none(), JSON),
)
def test_results(rows: list[tuple[Any, Any]], sound: bool, change: Any, root: Path) -> None:
    rows = [(i, t) for i, t in rows if type(i) is int and isinstance(t, str)] if sound else rows
    content: Any = [{"image_id": i, "caption": text} for i, text in rows]
    content = content if change is None else [*content, change]
    (root / "results.json").write_text(json.dumps(content))
    found, error = outcome(lambda: read_results(root / "results.json"), ValueError)
    if error:
        assert not (sound and rows and change is None and len({i for i, _ in rows}) == len(rows))
    else:
        assert sorted(found.items(), key=str) == sorted(set(rows), key=str)


# captions

ANY = st.one_of(st.text(max_size=40), TEXT, st.text("aA'’.-&é\u0301ﬁİß١ <>|()", max_size=20))
KNOWN = ["a dog runs", "the dog's t-shirt & U.S. flag", "été ß İstanbul", "<eos> <unk> |||"]
TOKENIZERS = {kind: Tokenizer.train(KNOWN, kind=kind, min_count=1, vocab_size=300) for kind in ("word", "space", "bpe")}


@pytest.mark.parametrize("kind", TOKENIZERS)
@some(150)
@given(text=ANY)
@example(text="x" * 100_000)
@example(text="<pad><bos><eos><unk>")
def test_tokenizers(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert all(3 <= index < tokenizer.vocab_size for index in ids)  # never the start, the end, or padding
    words = tokenizer.words(ids)
    assert [span[1:] for span in words] == sorted(span[1:] for span in words)
    assert all(0 <= start < stop <= len(ids) for _, start, stop in words)
    assert all(before[2] <= after[1] for before, after in pairwise(words))
    assert tokenizer.decode(ids) == " ".join(word for word, _, _ in words)
    if kind == "bpe":
        assert tokenizer.decode(ids).split() == tokenizer.clean(text).split()
    elif 3 not in ids:
        assert tokenizer.decode(ids) == tokenizer.clean(text)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode(text) == ids


@some(200)
@given(texts=st.lists(ANY, max_size=5))
def test_ptb_gives_as_many_lines_as_it_gets(texts: list[str]) -> None:
    told = tokenize(texts)
    assert len(told) == len(texts)
    assert told == [tokenize([text])[0] for text in texts]
    assert all(len(line.splitlines()) <= 1 for line in told)


@some(300)
@given(text=ANY)
def test_clean_captions_are_one_line_and_stay_so(text: str) -> None:
    caption, _ = clean_caption(text)
    if caption is None:
        assert not any(c.isalnum() for c in text)
    else:
        assert caption.splitlines() == [caption]
        assert caption == " ".join(caption.split())
        assert clean_caption(caption) == (caption, None)
        assert caption.encode()


# config

KEYS = (
    *(
        "data.source.seed",
        "data.batch_size",
        "data.max_length",
        "data.min_count",
        "data.tokenizer",
        "data.resize",
        "data.crop_pct",
    ),
    *("data.captions_per_image", "data.num_workers", "data.on_bad", "data.train_limit", "data.source.train_size"),
    *("model.encoder.width", "model.encoder.depth", "model.encoder.heads", "model.encoder.patch_size"),
    *("model.encoder.dropout", "model.encoder.position", "model.encoder.pool", "model.encoder.trainable"),
    *("model.encoder.image_size", "model.encoder.weights", "model.decoder.width", "model.decoder.heads"),
    *("model.decoder.max_length", "decode.min_length", "task.lr", "init", "ema"),
)
VALUES = st.one_of(
    st.sampled_from(
        ["null", "true", "''", "word", "all", "none", "[]", "[32,32]", "{a: 1}", "nan", "inf", "-inf", "1e400"]
    ),
    st.integers(-3, 70).map(str),
    st.floats(-2, 2).map(repr),
    st.text("abé/.", min_size=1, max_size=5).map(lambda text: f"'{text}'"),
)
TINY = (
    *("data.source.train_size=6", "data.source.val_size=4", "data.min_count=1", "overlays=0", "data.batch_size=4"),
    *("model.encoder.width=16", "model.encoder.depth=1", "model.encoder.heads=2", "model.encoder.patch_size=32"),
    *("model.decoder.width=16", "model.decoder.depth=1", "model.decoder.heads=2", "model.decoder.max_length=41"),
)


@some(40)
@given(overrides=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=2, unique_by=lambda o: o[0]))
def test_config(overrides: list[tuple[str, str]], config: Callable[..., Any], capsys: Any) -> None:
    """Values of any type for the main options: data, model and task are built, or there is one line."""
    from vitcap.build import build, build_task

    cfg = config(*TINY, *(f"{key}={value}" for key, value in overrides))
    capsys.readouterr()
    status = 0
    try:
        command(lambda cfg: build_task(cfg, build(cfg)), cfg)
    except SystemExit as end:
        status = int(str(end.code))
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error: ")]
    assert (status, len(told)) in ((0, 0), (1, 1))
