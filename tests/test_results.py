"""COCO's files: what is read, what is refused and how; scores of one file against another; the server archive."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vitcap.metrics.captions import score, write_results
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.results import SERVER_IMAGES, evaluate_files, read_references, read_results, write_server_zip

REFERENCES = {1: ["A red box.", "one red box"], 2: ["a dog runs on grass"], 7: ["two men, and a horse", "two men"]}
HYPOTHESES = {1: "a red box", 2: "A dog runs on the", 7: "men men and a horse"}


def test_results_round_trip(tmp_path: Path) -> None:
    captions = {np.int64(7): 'a "quoted"\ndog', 1: "café 😀 \ud83d"}
    write_results(tmp_path / "new" / "results.json", captions)
    assert read_results(tmp_path / "new" / "results.json", [1, 7]) == {7: 'a "quoted"\ndog', 1: "café 😀 \ud83d"}
    assert json.loads((tmp_path / "new" / "results.json").read_text())[0].keys() == {"image_id", "caption"}
    write_results(tmp_path / "results.json", {"a b.jpg": "a dog"})
    assert read_results(tmp_path / "results.json") == {"a b.jpg": "a dog"}
    assert [p.name for p in tmp_path.glob("*.part*")] == []


def test_results_as_pycocotools_reads_them(tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco").COCO()
    coco.dataset = {"images": [{"id": i} for i in REFERENCES], "annotations": []}
    coco.createIndex()
    write_results(tmp_path / "results.json", HYPOTHESES)
    loaded = coco.loadRes(str(tmp_path / "results.json"))
    assert {a["image_id"]: a["caption"] for a in loaded.dataset["annotations"]} == HYPOTHESES


def row(image: object, caption: object = "a dog") -> dict[str, object]:
    return {"image_id": image, "caption": caption}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "no results in the file"),
        ({"annotations": [row(1)]}, "list of image_id and caption, found dict"),
        ([row(1), row(2), row(1, "other")], "more than one entry of the results for id 1"),
        ([row(1)], "1 of 2 images have a caption, missing are 2"),
        ([row(1), row(2), row(3)], "references have no images 3"),
        ([row("1"), row("2")], r"ids are str \('1'\), those of the references int \(1\)"),
        ([row(1), row("2")], "number in some entries and a text in others: '2'"),
        ([row(1.0), row(2.0)], "whole number .* found 1.0, 2.0"),
        ([row(True), row(2)], "whole number .* found True"),
        ([row(1, None), row(2)], "missing or no text for image 1"),
        ([row(1), {"image_id": 2}], "missing or no text for image 2"),
        ([row(1), {"caption": "a"}], 'entry 1 of the results has no "image_id"'),
        ([row(1), "a dog"], 'entry 1 of the results has no "image_id"'),
    ],
)
def test_read_results_refuses(content, message, tmp_path: Path) -> None:
    path = tmp_path / "told.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"told.json: .*{message}"):
        read_results(path, {1: ["a"], 2: ["b"]})


def test_read_references(tmp_path: Path) -> None:
    path = tmp_path / "gold.json"
    content = {"images": [{"id": 2}, {"id": 1}], "annotations": [row(1, "a"), row(2, "b"), row(1, "c")]}
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(content).encode())  # with the mark that Windows editors write
    assert read_references(path) == {2: ["b"], 1: ["a", "c"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([row(1)], "not a COCO annotation file"),
        ({"images": [], "captions": []}, "not a COCO annotation file"),
        ({"images": [{"id": 1}, {"id": 1}], "annotations": [row(1)]}, "more than one entry of the images for id 1"),
        ({"images": [{"id": 1}, {"id": 2}], "annotations": [row(1)]}, "images without a reference caption: 2"),
        ({"images": [{"id": 1}], "annotations": [row(1), row(5)]}, 'not in "images": 5'),
        ({"images": [{"id": 1}], "annotations": [row("1")]}, "not in \"images\": '1'"),
        ({"images": [{"id": 1}], "annotations": [row(1, None)]}, "missing or no text for image 1"),
        ({"images": [{"file_name": "x"}], "annotations": [row(1)]}, 'entry 0 of the images has no "id"'),
    ],
)
def test_read_references_refuses(content, message, tmp_path: Path) -> None:
    path = tmp_path / "gold.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"gold.json: .*{message}"):
        read_references(path)


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text('[{"image_id": 1,\n "capt')
    with pytest.raises(ValueError, match=r"cut.json: not JSON, or cut short: line 2, column 2"):
        read_results(path)
    path.write_bytes('[{"image_id": 1, "caption": "狗"}]'.encode("gbk"))
    with pytest.raises(ValueError, match=r"cut.json: not UTF-8"):
        read_references(path)
    with pytest.raises(FileNotFoundError, match=r"none.json: no such file"):
        read_results(tmp_path / "none.json")


def annotations(path: Path, references: dict[int, list[str]] = REFERENCES) -> Path:
    rows = [row(i, caption) for i, captions in references.items() for caption in captions]
    path.write_text(json.dumps({"images": [{"id": i} for i in references], "annotations": rows}))
    return path


def test_plain_references(tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_text('{"2": ["b"], "10": ["a", "c"]}')
    assert read_references(path) == {2: ["b"], 10: ["a", "c"]}
    path.write_text('{"2": ["b"], "007": ["a"]}')  # no number is written with leading zeros
    assert read_references(path) == {"2": ["b"], "007": ["a"]}
    for content, message in (
        ('{"1": ["a"], "1": ["b"]}', "same key more than once: '1'"),
        ('{"1": ["a", 3]}', "no text, of image 1"),
        ('{"1": ["a"], "2": []}', "without a reference caption: 2"),
        ('{"1": "a"}', "not a COCO annotation file"),
        ("{}", "not a COCO annotation file"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=f"plain.json: .*{message}"):
            read_references(path)


def test_evaluate_files(tmp_path: Path) -> None:
    gold = annotations(tmp_path / "gold.json")
    write_results(tmp_path / "told.json", dict(reversed(HYPOTHESES.items())))
    card = evaluate_files(tmp_path / "told.json", gold, about={"split": "val"}, training=["a red box"])
    plain = score(HYPOTHESES, REFERENCES)
    assert card.corpus == plain.corpus
    assert card.per_image == plain.per_image
    assert card.facts["results"] == str(tmp_path / "told.json")
    assert (card.facts["split"], card.facts["novel_captions"]) == ("val", 2 / 3)
    (tmp_path / "plain.json").write_text(json.dumps(REFERENCES))
    assert evaluate_files(tmp_path / "told.json", tmp_path / "plain.json").corpus == plain.corpus


def test_files_are_tokenised_as_cocos_program_does(tmp_path: Path) -> None:
    """It reads all captions as one text, in which "K." before "A man" is a letter and a full stop."""
    references = {5: ["the letter K.", "a man"], 3: ["A man waits"]}
    told = {3: "A man", 5: "the letter K."}
    gold = annotations(tmp_path / "gold.json", references)
    write_results(tmp_path / "told.json", told)
    assert tokenize(["the letter K.", "A man"], as_lines=True) == ["the letter k", "a man"]
    card = evaluate_files(tmp_path / "told.json", gold)
    # In the order of the annotations the caption of image 5 is before that of image 3, its reference before "a man".
    want = score({5: "the letter k", 3: "a man"}, {5: ["the letter k.", "a man"], 3: ["a man waits"]}, tokenized=True)
    assert card.corpus == want.corpus
    assert "lines of one file" in card.facts["tokeniser"]
    assert evaluate_files(tmp_path / "told.json", gold, as_lines=False).per_image[5]["BLEU-1"] == pytest.approx(1)


def test_partial_results_only_when_asked_for(tmp_path: Path) -> None:
    gold, told = annotations(tmp_path / "gold.json"), tmp_path / "told.json"
    write_results(told, {1: "a red box", 7: "two men"})
    with pytest.raises(ValueError, match=r"told.json: 2 of 3 images have a caption, missing are 2; partial=true"):
        evaluate_files(told, gold)
    card = evaluate_files(told, gold, partial=True)
    assert list(card.per_image) == [1, 7]
    assert card.facts["images_without_caption"] == 1
    assert "scored 2 of 3 images" in card.facts["warnings"][-1]
    write_results(told, {1: "a red box", 9: "two men"})
    with pytest.raises(ValueError, match=r"references have no images 9; are the two files of the same images\?"):
        evaluate_files(told, gold, partial=True)
    write_results(told, {"1": "a red box"})
    with pytest.raises(ValueError, match=r"ids are str \('1'\), those of the references int \(1\); write both alike"):
        evaluate_files(told, gold, partial=True)


def test_equal_answers_in_any_order(tmp_path: Path) -> None:
    """One perfect caption among wrong ones stays with its own image, whatever the order of the files."""
    gold = annotations(tmp_path / "gold.json", {i: [f"w{i} x{i} y{i} z{i}"] for i in (6, 2, 5, 1, 4, 3)})
    write_results(tmp_path / "told.json", {i: f"w{i} x{i} y{i} z{i}" if i == 4 else "q q q q" for i in range(1, 7)})
    scores = {i: values["CIDEr-D"] for i, values in evaluate_files(tmp_path / "told.json", gold).per_image.items()}
    assert scores == {i: pytest.approx(10) if i == 4 else 0 for i in range(1, 7)}


def test_server_zip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.zip"
    captions = {np.int64(3): "a café", 2: "two dogs"}
    info = tmp_path / "image_info.json"
    info.write_text(json.dumps({"images": [{"id": 2}, {"id": 3}]}))
    names = write_server_zip(path, captions, split="val2017", algorithm="vitcap", annotations=info)
    assert names == ["captions_val2017_vitcap_results.json"]
    write_server_zip(path, {2: "old"}, split="test2017", algorithm="vitcap")
    names = write_server_zip(path, {2: "new"}, split="test2017", algorithm="vitcap")
    assert names == ["captions_test2017_vitcap_results.json", "captions_val2017_vitcap_results.json"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == names
        assert json.loads(archive.read(names[0])) == [row(2, "new")]
        assert json.loads(archive.read(names[1])) == [row(3, "a café"), row(2, "two dogs")]
    assert [p.name for p in path.parent.iterdir()] == ["results.zip"]
    full = dict.fromkeys(range(SERVER_IMAGES["test2014"]), "a dog")
    assert write_server_zip(tmp_path / "all.zip", full, split="test2014", algorithm="x") == [
        "captions_test2014_x_results.json"
    ]


@pytest.mark.parametrize(
    ("captions", "split", "algorithm", "message"),
    [
        ({1: "a"}, "val2014", "x", "val2014 has 40504 images, captions were given for 1"),
        ({"1": "a"}, "val2017", "x", "whole numbers as image ids, found '1'"),
        ({True: "a"}, "val2017", "x", "whole numbers as image ids, found True"),
        ({1: None}, "val2017", "x", "no text, of image 1"),
        ({1: "a"}, "val2017", "my_model", "algorithm='my_model': letters"),
        ({1: "a"}, "../val", "x", "split='../val': letters"),
        ({1: "a"}, "val2017", "other", r"holds 'captions_val2017_first_results.json' already"),
    ],
)
def test_server_zip_refuses(captions, split, algorithm, message, tmp_path: Path) -> None:
    path = tmp_path / "results.zip"
    write_server_zip(path, {1: "a"}, split="val2017", algorithm="first")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        write_server_zip(path, captions, split=split, algorithm=algorithm)
    assert path.read_bytes() == before


def test_server_zip_wants_the_images_of_the_split(tmp_path: Path) -> None:
    gold = annotations(tmp_path / "gold.json")
    for captions, message in (({1: "a", 2: "b"}, "missing are 7"), (HYPOTHESES | {8: "a"}, "have no images 8")):
        with pytest.raises(ValueError, match=message):
            write_server_zip(tmp_path / "x.zip", captions, split="val2014", algorithm="x", annotations=gold)
    (tmp_path / "x.zip").write_text("no archive")
    with pytest.raises(ValueError, match="is no zip archive"):
        write_server_zip(tmp_path / "x.zip", HYPOTHESES, split="val2014", algorithm="x", annotations=gold)
