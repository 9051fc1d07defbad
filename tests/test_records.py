import json
import logging
import os
import pickle
from pathlib import Path

import pytest
from PIL import Image

from vitcap.data.coco import CocoSource, KarpathySource
from vitcap.data.images import ImageError
from vitcap.data.reading import clean_caption
from vitcap.data.records import CaptionRecord
from vitcap.data.tables import FlickrSource, TableSource


def data_folder(name):
    if "VITCAP_DATA" not in os.environ:
        pytest.skip("VITCAP_DATA is not set")
    return Path(os.environ["VITCAP_DATA"], name)


def pictures(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 6)).save(folder / name, "JPEG")


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def captions_of(records):
    return {record.image_id: record.captions for record in records}


# --- captions ---


@pytest.mark.parametrize(
    "separator", ["\n", "\r\n", "\r", "\t", "\x0b", "\x0c", "\0", "\x1c", "\x85", "\u2028", "\u2029", "   ", "\ufeff"]
)
def test_every_break_becomes_one_blank(separator):
    assert clean_caption(f"{separator}A dog{separator}runs .{separator}") == ("A dog runs .", None)


@pytest.mark.parametrize("text", ["", "  ", ".", "?!", "\u200b", "\n"])
def test_blank_captions(text):
    assert clean_caption(text) == (None, "blank captions skipped")


@pytest.mark.parametrize("value", [None, 7, 3.5, True, ["a"], float("nan")])
def test_captions_that_are_no_text(value):
    caption, remark = clean_caption(value)
    assert caption is None
    assert "no text" in remark


def test_unicode_captions():
    assert clean_caption("cafe\u0301 一只狗 قطة 👩\u200d🚀 |||")[0] == "café 一只狗 قطة 👩\u200d🚀 |||"
    assert clean_caption("a \ud83d dog") == ("a \ufffd dog", "captions with broken characters repaired")
    assert clean_caption("a \ud83d\ude00 dog")[0] == "a 😀 dog"  # two halves make one character


# --- COCO ---


def coco(number=6, **changes):
    data = {
        "images": [{"id": i, "file_name": f"base_{i}.jpg"} for i in range(1, number + 1)],
        "annotations": [
            {"id": 2 * i + k, "image_id": i, "caption": f"picture {i} told {k}"}
            for i in range(1, number + 1)
            for k in range(2)
        ],
    }
    return data | changes


@pytest.fixture
def coco_root(tmp_path):
    pictures(tmp_path / "train2017", *(f"base_{i}.jpg" for i in range(1, 7)))
    write(tmp_path / "annotations" / "captions_train2017.json", coco())
    return tmp_path


def read_coco(root, data):
    write(root / "annotations" / "captions_train2017.json", data)
    source = CocoSource(root)
    return source, source.split("train")


def test_coco_mini_equals_the_plain_json():
    root = data_folder("coco_mini")
    source = CocoSource(root)
    records = source.split("train")
    assert source.splits() == ("train",)
    assert source.report == {"images": 80, "captions": 400}
    data = json.loads((root / "annotations" / "captions_train2017.json").read_text(encoding="utf-8"))
    names = {image["id"]: image["file_name"] for image in data["images"]}
    assert len(records) == len(names) == 80
    for record in records:
        assert record.image == root / "train2017" / names[record.image_id]
        expected = [a["caption"] for a in data["annotations"] if a["image_id"] == record.image_id]
        assert list(record.captions) == [" ".join(caption.split()) for caption in expected]
    assert records[0].open().mode == "RGB"
    with pytest.raises(ValueError, match=r"no split 'val'; there is train .*val_fraction"):
        source.split("val")


@pytest.mark.parametrize("first", ["train", "val"])
def test_coco_mini_val_is_carved_out_of_train(first, caplog):
    root = data_folder("coco_mini")
    source = CocoSource(root, val_fraction=0.1)
    assert source.splits() == ("train", "val")
    source.split(first)
    ids = {name: {record.image_id for record in source.split(name)} for name in ("train", "val")}
    assert len(ids["train"]) == 72
    assert len(ids["val"]) == 8
    assert not ids["train"] & ids["val"]
    assert "val is 8 of the 80 train images (val_fraction=0.1, split_seed=0)" in caplog.text
    assert captions_of(CocoSource(root, val_fraction=0.1).split("val")).keys() == ids["val"]
    assert captions_of(CocoSource(root, val_fraction=0.1, split_seed=1).split("val")).keys() != ids["val"]
    assert ids["val"] < captions_of(CocoSource(root, val_fraction=0.3).split("val")).keys()  # places do not move


def test_coco_2014_layout_with_two_splits(tmp_path):
    for split in ("train", "val"):
        name = f"COCO_{split}2014_000000000001.jpg"
        pictures(tmp_path / f"{split}2014", name)
        data = {"images": [{"id": 1 if split == "train" else 2, "file_name": name}]}
        data["annotations"] = [{"id": 1, "image_id": data["images"][0]["id"], "caption": f"one of {split}"}]
        write(tmp_path / "annotations" / f"captions_{split}2014.json", data)
    source = CocoSource(tmp_path)
    assert captions_of(source.split("val")) == {2: ("one of val",)}
    assert captions_of(source.split("train")) == {1: ("one of train",)}
    with pytest.raises(ValueError, match="val_fraction is for data with a train and no val split"):
        CocoSource(tmp_path, val_fraction=0.5).split("val")
    write(tmp_path / "annotations" / "captions_val2017.json", coco())
    with pytest.raises(ValueError, match=r"captions_val2014.json and captions_val2017.json both fit; .*annotations="):
        CocoSource(tmp_path)


def test_coco_named_files_and_overlapping_splits(coco_root):
    files = {"train": "annotations/captions_train2017.json", "val": "annotations/captions_train2017.json"}
    source = CocoSource(coco_root, annotations=files, images={"val": "train2017"})
    source.split("train")
    with pytest.raises(ValueError, match="6 images are in train and in val"):
        source.split("val")


def test_coco_windows_paths_and_byte_order_mark(coco_root):
    data = coco(images=[{"id": i, "file_name": f"train2017\\base_{i}.jpg"} for i in range(1, 7)])
    _, records = read_coco(coco_root, b"\xef\xbb\xbf" + json.dumps(data).encode())
    assert len(records) == 6
    assert records[0].image == coco_root / "train2017" / "base_1.jpg"


def test_coco_counts_what_it_skips(coco_root, caplog):
    data = coco()
    data["annotations"][0]["caption"] = None
    del data["annotations"][2]["caption"]
    data["annotations"][4]["caption"] = " . "
    data["annotations"][6]["caption"] = "a \ud83d dog\nruns"
    data["annotations"][9]["caption"] = data["annotations"][8]["caption"]
    data["annotations"][7]["id"] = data["annotations"][6]["id"]
    data["annotations"] = [a for a in data["annotations"] if a["image_id"] != 6]
    source, records = read_coco(coco_root, data)
    assert source.report == {
        "images": 5,
        "captions": 7,
        "captions that are missing or no text skipped": 2,
        "blank captions skipped": 1,
        "captions with broken characters repaired": 1,
        "images without captions skipped": 1,
        "repeated captions kept": 1,
        "repeated annotation ids kept": 1,
    }
    assert captions_of(records)[4] == ("a \ufffd dog runs", "picture 4 told 1")
    for what in source.report:
        assert what in caplog.text
    assert "captions_train2017.json, image id 6" in caplog.text
    source.split("train")  # reading again counts nothing twice
    assert source.report["captions"] == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(coco())[:500], r"captions_train2017\.json: line 1 column \d+: .*cut"),
        ("", r"captions_train2017\.json: line 1 column 1"),
        ([{"image_id": 1, "caption": "a dog"}], "a list, as COCO results files are"),
        ({"images": [{"filename": "a.jpg", "sentences": []}]}, "a Karpathy split file"),
        ({"data": 1}, "an object with the keys data"),
        (coco(annotations={"1": "a dog"}), "lists of images and of annotations"),
        (coco(annotations=[{"id": 1, "image_id": 1, "bbox": [1, 2, 3, 4]}]), "instances file"),
        (coco(annotations=[{"id": 1, "image_id": 999, "caption": "a"}]), "1 of 1 annotations .*image id 999"),
        (coco(annotations=[{"id": 1, "image_id": "1", "caption": "a"}]), "image id '1'"),
        (coco(annotations=[{"id": 1, "caption": "a"}]), "annotation 0 of the list has no image_id"),
        (coco(images=[{"id": 1}]), "image 0 of the list has no id and file_name"),
        (
            coco(images=[{"id": 2, "file_name": n} for n in ("a.jpg", "b.jpg")]),
            "id 2 stands for two files, a.jpg and b",
        ),
        (coco(images=[], annotations=[]), "no images in it"),
        (coco(annotations=[]), "split 'train' has no image with a caption"),
        ("{}".encode("utf-16"), "UTF-16; save it as UTF-8"),
        ('{"images": [\n"狗"]}'.encode("gbk"), "line 2 is not UTF-8"),
    ],
)
def test_coco_refuses(coco_root, content, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_coco(coco_root, content)
    assert "\n" not in str(caught.value)


def test_missing_pictures_are_told_at_once_or_skipped(coco_root):
    for i in (2, 3, 4, 5):
        (coco_root / "train2017" / f"base_{i}.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"4 of 6 train images are not there: .*base_2.*image id 2.*and 1 more"):
        CocoSource(coco_root).split("train")
    source = CocoSource(coco_root, on_missing="skip")
    assert len(source.split("train")) == 2
    assert source.report["missing images skipped"] == 4


def test_split_file_without_its_image_folder(coco_root):
    write(
        coco_root / "annotations" / "captions_val2017.json",
        coco(2, images=[{"id": i, "file_name": f"v{i}.jpg"} for i in (1, 2)]),
    )
    with pytest.raises(FileNotFoundError, match="2 of 2 val images are not there"):
        CocoSource(coco_root).split("val")


@pytest.mark.parametrize("kind", [CocoSource, KarpathySource, FlickrSource, TableSource])
def test_roots_that_are_none(tmp_path, kind):
    with pytest.raises(FileNotFoundError, match="gone: no such folder"):
        kind(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="a file; a folder is wanted"):
        kind(write(tmp_path / "file", "x"))
    with pytest.raises(ValueError, match=r"data\.root="):
        kind()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty: no .*(annotations|json|captions|file)="):
        kind(tmp_path / "empty")


@pytest.mark.parametrize(("option", "value"), [("val_fraction", 1.5), ("on_missing", "ignore")])
def test_options_are_checked(coco_root, option, value):
    with pytest.raises(ValueError, match=option):
        CocoSource(coco_root, **{option: value})


# --- Karpathy ---


def karpathy_image(number, split, sentences=None, **extra):
    sentences = sentences or [{"raw": f"Picture {number}.", "tokens": ["picture", str(number)]}]
    return {"filename": f"{number}.jpg", "imgid": number, "split": split, "sentences": sentences, **extra}


def read_karpathy(root, images, **options):
    write(root / "dataset_coco.json", {"dataset": "coco", "images": images})
    pictures(root / "val2014", *(f"{n}.jpg" for n in range(4)))
    return KarpathySource(root, **options)


def test_karpathy_splits_and_ids(tmp_path):
    splits = ["train", "restval", "val", "test"]
    images = [karpathy_image(n, s, filepath="val2014", cocoid=100 + n) for n, s in enumerate(splits)]
    source = read_karpathy(tmp_path, images)
    assert source.splits() == ("train", "val", "test")
    assert captions_of(source.split("train")) == {100: ("Picture 0.",), 101: ("Picture 1.",)}
    assert source.split("test")[0].image == tmp_path / "val2014" / "3.jpg"
    apart = read_karpathy(tmp_path, images, restval=False)
    assert set(apart.splits()) == set(splits)
    assert captions_of(apart.split("restval")) == {101: ("Picture 1.",)}


def test_karpathy_flickr_without_filepath(tmp_path):
    pictures(tmp_path / "Flicker8k_Dataset", "0.jpg")
    source = read_karpathy(tmp_path, [karpathy_image(0, "train")])
    assert source.split("train")[0].image == tmp_path / "Flicker8k_Dataset" / "0.jpg"
    with pytest.raises(ValueError, match="no split 'val'"):
        source.split("val")


def test_karpathy_sentences_without_raw_text_or_tokens(tmp_path):
    sentences = [{"raw": "A red box.", "tokens": []}, {"tokens": ["one", "box"]}, {"raw": "", "tokens": []}, None]
    source = read_karpathy(tmp_path, [karpathy_image(0, "train", sentences, filepath="val2014")])
    assert captions_of(source.split("train")) == {0: ("A red box.", "one box")}
    assert source.report["empty token lists, raw text used"] == 1
    assert source.report["blank captions skipped"] == 1
    assert source.report["captions that are missing or no text skipped"] == 1


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([karpathy_image(0, "train"), karpathy_image(0, "val", imgid=1)], r"0\.jpg \(id 1\) is there twice: .*image 0"),
        ([karpathy_image(0, "train"), karpathy_image(1, "val", imgid=0)], r"1\.jpg \(id 0\) is there twice"),
        ([{"file_name": "a.jpg", "id": 1}], "image 0 has no filename, split and sentences"),
        ([], "not a Karpathy split file"),
        ({"a": 1}, "not a Karpathy split file"),
    ],
)
def test_karpathy_refuses(tmp_path, images, message):
    with pytest.raises(ValueError, match=rf"dataset_coco\.json.*{message}"):
        read_karpathy(tmp_path, images).splits()


# --- Flickr ---

TOKENS = "a.jpg#0\tA dog runs .\na.jpg#1\tThe dog is fast .\nb.jpg#0\tTwo cats sleep .\nb.jpg#1\tCats on a bed .\n"
CLEAN = {"a.jpg": ("A dog runs .", "The dog is fast ."), "b.jpg": ("Two cats sleep .", "Cats on a bed .")}


def read_flickr(root, text, name="Flickr8k.token.txt", **options):
    pictures(root / "images", "a.jpg", "b.jpg")
    write(root / name, text)
    return FlickrSource(root, **options)


def test_flickr8k():
    root = data_folder("flickr8k")
    source = FlickrSource(root)
    train, val = source.split("train"), source.split("val")
    assert (len(train), len(val)) == (6000, 1000)
    assert all(len(record.captions) == 5 for record in train + val)
    assert not captions_of(train).keys() & captions_of(val).keys()
    listed = (root / "Flickr_8k.devImages.txt").read_text(encoding="utf-8").split()
    assert [record.image_id for record in val] == listed
    line = next(
        s for s in (root / "Flickr8k.token.txt").read_text(encoding="utf-8").split("\n") if s.startswith(listed[0])
    )
    assert val[0].captions[0] == line.split("\t")[1].strip()
    assert val[0].open().size == (224, 224)
    assert source.splits() == ("train", "val")
    with pytest.raises(ValueError, match=r"no split 'test'; there is train, val \(no Flickr_8k\.testImages\.txt"):
        source.split("test")


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        (TOKENS, {}),
        (TOKENS.replace("\n", "\r\n") + "\r\n\r\n", {}),
        ("image_id\tcaption\n" + TOKENS, {}),
        ("\ufeff" + TOKENS, {}),
        (TOKENS + "b.jpg#2\tCats\tand tabs\n", {"b.jpg": (*CLEAN["b.jpg"], "Cats and tabs")}),
    ],
)
def test_flickr_token_files(tmp_path, text, extra):
    assert captions_of(read_flickr(tmp_path, text).split("train")) == CLEAN | extra


def test_flickr_missing_picture_is_told_with_its_line(tmp_path):
    text = TOKENS + "c.jpg.1#0\tA fence .\n"
    with pytest.raises(FileNotFoundError, match=r"1 of 3 train images.*c\.jpg\.1 \(Flickr8k\.token\.txt line 5\)"):
        read_flickr(tmp_path, text).split("train")
    assert captions_of(read_flickr(tmp_path, text, on_missing="skip").split("train")) == CLEAN


def test_flickr_line_without_tab(tmp_path):
    with pytest.raises(
        ValueError, match=r"Flickr8k\.token\.txt: line 5 is not name#number<TAB>caption: 'b\.jpg#2 Cats"
    ):
        read_flickr(tmp_path, TOKENS + "b.jpg#2 Cats without a tab\n").split("train")


def test_flickr30k_pipe_file_with_its_defect(tmp_path):
    rows = (
        "image_name| comment_number| comment\na.jpg| 0| A dog | runs .\na.jpg| 4   A dog too .\nb.jpg| 0| Two cats .\n"
    )
    source = read_flickr(tmp_path, rows, "results.csv")
    assert captions_of(source.split("train")) == {"a.jpg": ("A dog | runs .", "A dog too ."), "b.jpg": ("Two cats .",)}
    assert source.report["rows that lack a bar repaired"] == 1
    with pytest.raises(ValueError, match=r"results\.csv: line 2 has no caption"):
        read_flickr(tmp_path, "image_name| comment_number| comment\na.jpg| 0\n", "results.csv").split("train")


def test_flickr_comma_file(tmp_path):
    rows = 'image,caption\na.jpg,A dog, a cat and a bird .\nb.jpg,"Two ""fat"" cats, one bed ."\nb.jpg,NA\n'
    expected = {"a.jpg": ("A dog, a cat and a bird .",), "b.jpg": ('Two "fat" cats, one bed .', "NA")}
    assert captions_of(read_flickr(tmp_path, rows, "captions.txt").split("train")) == expected


def test_flickr30k_lists_without_suffix_and_official_folders(tmp_path):
    pictures(tmp_path / "flickr30k-images", "a.jpg", "b.jpg")
    write(tmp_path / "results_20130124.token", TOKENS)
    write(tmp_path / "train.txt", "a\n")
    write(tmp_path / "val.txt", "b\r\n\r\n")
    source = FlickrSource(tmp_path)
    assert captions_of(source.split("train")) == {"a.jpg": CLEAN["a.jpg"]}
    assert captions_of(source.split("val")) == {"b.jpg": CLEAN["b.jpg"]}
    assert source.split("val")[0].image == tmp_path / "flickr30k-images" / "b.jpg"


def test_flickr8k_text_folder(tmp_path):
    pictures(tmp_path / "Flicker8k_Dataset", "a.jpg", "b.jpg")
    write(tmp_path / "Flickr8k_text" / "Flickr8k.token.txt", TOKENS)
    write(tmp_path / "Flickr8k_text" / "Flickr_8k.devImages.txt", "b.jpg\n")
    assert captions_of(FlickrSource(tmp_path).split("val")) == {"b.jpg": CLEAN["b.jpg"]}


def test_flickr_lists_that_overlap_or_name_unknown_images(tmp_path):
    lists = {"train": "train.txt", "val": "dev.txt", "test": "gone.txt"}
    write(tmp_path / "train.txt", "a.jpg\nx.jpg\n")
    write(tmp_path / "dev.txt", "b.jpg\n")
    source = read_flickr(tmp_path, TOKENS, lists=lists)
    assert len(source.split("train")) == 1
    assert source.report["images without captions skipped"] == 1
    with pytest.raises(ValueError, match=r"no split 'test'.*gone\.txt is not there"):
        source.split("test")
    write(tmp_path / "dev.txt", "b.jpg\na.jpg\n")
    with pytest.raises(ValueError, match=r"dev\.txt: line 2: a\.jpg is listed already: train\.txt line 1"):
        read_flickr(tmp_path, TOKENS, lists=lists).split("train")


def test_flickr_without_lists_carves(tmp_path):
    source = read_flickr(tmp_path, TOKENS, val_fraction=0.5)
    assert len(source.split("train")) == len(source.split("val")) == 1
    with pytest.raises(ValueError, match=r"val_fraction 0\.9 of 2 images leaves none"):
        read_flickr(tmp_path, TOKENS, val_fraction=0.9).split("train")


# --- tables ---


def read_table(root, text, name="data.csv", **options):
    pictures(root / "images", "a.jpg", "b.jpg", "c d.jpg")
    write(root / name, text)
    return TableSource(root, **options)


TABLE = {"a.jpg": ("A dog, running", "A fast dog"), "b.jpg": ("NA",)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.csv", 'image,caption\na.jpg,"A dog, running"\nb.jpg,NA\na.jpg,A fast dog\n'),
        ("data.csv", "\ufeffimage,caption\r\na.jpg,A dog, running\r\nb.jpg,NA\r\n\r\na.jpg,A fast dog\r\n"),
        ("data.csv", 'caption,n,image\n"A dog,\nrunning",1,a.jpg\nNA,2,b.jpg\nA\u2028fast\x0bdog,3,a.jpg\n'),
        ("data.tsv", "image\tcaption\na.jpg\tA dog, running\nb.jpg\tNA\na.jpg\tA fast\tdog\n"),
        (
            "data.jsonl",
            '{"image": "a.jpg", "captions": ["A dog, running", "A fast dog"]}\n\n{"image": "b.jpg", "caption": "NA"}\n',
        ),
    ],
)
def test_tables(tmp_path, name, text):
    source = read_table(tmp_path, text, name)
    records = source.split("train")
    assert captions_of(records) == TABLE
    assert records[0].image == tmp_path / "images" / "a.jpg"
    assert source.splits() == ("train",)


def test_table_splits_and_column_names(tmp_path):
    text = "file,text,part\na.jpg,one,train\nb.jpg,two,validation\nc d.jpg,three,test\n"
    source = read_table(tmp_path, text, image_column="file", caption_column="text", split_column="part")
    assert source.splits() == ("train", "val", "test")
    assert captions_of(source.split("val")) == {"b.jpg": ("two",)}
    assert captions_of(source.split("test")) == {"c d.jpg": ("three",)}


def test_table_numbers_in_json_are_no_captions(tmp_path):
    source = read_table(tmp_path, '{"image": "a.jpg", "captions": ["a dog", 7, null]}\n', "data.jsonl")
    assert captions_of(source.split("train")) == {"a.jpg": ("a dog",)}
    assert source.report["captions that are missing or no text skipped"] == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("data.csv", "picture,caption\na.jpg,a\n", r"no column image; line 1 names \['picture', 'caption'\]"),
        ("data.csv", "image;caption\na.jpg;a\n", "separated by ;"),
        ("data.csv", "image,caption,split\na.jpg,one, two,train\n", "line 2 has 4 fields, line 1 has 3"),
        ("data.csv", "image,caption,split\na.jpg,one\n", "line 2 has 2 fields"),
        ("data.csv", 'image,caption\na.jpg,"one\nb.jpg,two\n', "line 3: unexpected end of data; check the quotes"),
        ("data.csv", "image,caption,split\na.jpg,one,train\na.jpg,two,val\n", r"a\.jpg is in train .*line 2\) and val"),
        ("data.csv", "image,caption,split\na.jpg,one,\n", "line 2: no split in 'split'"),
        ("data.csv", "image,caption\n,one\n", "line 2: no image in 'image'"),
        ("data.csv", "image,caption\nhttps://example.org/a.jpg,one\n", "web address"),
        ("data.csv", "image,caption\n", "no rows"),
        ("data.csv", "", "no column image"),
        ("data.csv", "image,caption\na.jpg,caf\xe9\n".encode("latin-1"), "line 2 is not UTF-8"),
        ("data.jsonl", '{"image": "a.jpg", "caption": "one"}\n{"image": "b.j', "line 2 is cut or not JSON"),
        ("data.jsonl", '["a.jpg", "one"]\n', "line 1 is no object"),
    ],
)
def test_tables_refused(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_table(tmp_path, text, name).split("train")
    assert name in str(caught.value)


def test_table_choice_of_file(tmp_path):
    write(tmp_path / "other.tsv", "image\tcaption\n")
    with pytest.raises(
        ValueError, match=r"several files fit \(data.csv, other.tsv\); choose one with data\.source\.file="
    ):
        read_table(tmp_path, "image,caption\na.jpg,one\n")
    assert len(read_table(tmp_path, "image,caption\na.jpg,one\n", file="data.csv").split("train")) == 1
    with pytest.raises(ValueError, match=r"data\.xlsx: a \.csv, \.tsv or \.jsonl file is wanted"):
        TableSource(tmp_path, file="data.xlsx")
    with pytest.raises(FileNotFoundError, match=r"gone\.csv: no such file"):
        TableSource(tmp_path, file="gone.csv").split("train")


# --- records ---


def test_records_open_and_pickle(tmp_path):
    source = read_table(tmp_path, "image,caption\nc d.jpg,one\n")
    record = pickle.loads(pickle.dumps(source.split("train")[0]))
    assert record.open().size == (8, 6)
    drawn = CaptionRecord(1, lambda: Image.new("RGB", (3, 2)), ("one",))
    assert drawn.open().size == (3, 2)
    with pytest.raises(ImageError, match="does not exist"):
        CaptionRecord(1, tmp_path / "gone.jpg", ("one",)).open()


def test_clean_data_is_told_without_a_warning(coco_root, caplog):
    with caplog.at_level(logging.INFO):
        CocoSource(coco_root).split("train")
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("INFO", f"{coco_root}, train: 6 images, 12 captions")
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "x.csv",
            "image,caption,caption\na.jpg,one dog,two dogs\n",
            r"x\.csv: line 1 names the column 'caption' more than",
        ),
        ("x.jsonl", "[" * 100_000 + "\n", r"x\.jsonl: line 1 is cut or not JSON: maximum recursion"),
        ("x.jsonl", "1" * 5000 + "\n", r"x\.jsonl: line 1 is cut or not JSON: Exceeds the limit"),
    ],
    ids=["column twice", "nested", "huge number"],
)
def test_tables_that_python_itself_trips_over(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        TableSource(tmp_path).splits()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, r"captions_train\.json: JSON that cannot be read \(maximum recursion"),
        (
            '{"images": [{"id": ' + "1" * 5000 + "}]}",
            r"captions_train\.json: JSON that cannot be read \(Exceeds the limit",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"id": [1], "image_id": 1}]}',
            r"captions_train\.json: annotation 0 has the id \[1\]",
        ),
    ],
    ids=["nested", "huge number", "list as id"],
)
def test_json_that_python_itself_trips_over(text, message, tmp_path):
    (tmp_path / "captions_train.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        CocoSource(tmp_path).split("train")


@pytest.mark.parametrize("change", [{"sentences": None}, {"sentences": 5}, {"split": None}, {"filename": ["a.jpg"]}])
def test_karpathy_fields_of_another_kind_are_named(change, tmp_path):
    image = {"filename": "a.jpg", "split": "train", "sentences": [{"raw": "a dog"}], **change}
    (tmp_path / "dataset_x.json").write_text(json.dumps({"images": [image]}))
    with pytest.raises(ValueError, match=rf"dataset_x\.json: image 0 has {next(iter(change))}"):
        KarpathySource(tmp_path).splits()


@pytest.mark.parametrize("option", ["annotations", "images"])
def test_a_single_name_where_one_for_each_split_is_wanted(option, tmp_path):
    with pytest.raises(ValueError, match=rf"data\.source\.{option}=x: one a split"):
        CocoSource(tmp_path, **{option: "x"})
