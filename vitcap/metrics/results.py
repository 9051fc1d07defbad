"""Result and annotation files: what COCO's formats hold, scores of one file against another, COCO's server archive.

An id is a whole number or a text, one kind in a file, and 1 is not "1": no captions are ever paired by a guess.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitcap.metrics.captions import Scores, match, score, some

SERVER_IMAGES = {"val2014": 40_504, "test2014": 40_775}
"""Splits of the COCO captions server, which wants a caption for every image of both."""


def read_references(path: str | Path) -> dict[Any, list[str]]:
    """Image id -> reference captions, from a COCO captions annotation file or a plain {"id": [caption, ...]}.

    Keys of JSON objects are texts; those of a plain file that are all whole numbers are read as numbers.
    Raises ValueError, naming the file and the ids: an image listed twice or without a caption, a caption of an unlisted
    image or that is no text.
    """
    data = _read_json(path)
    references: dict[Any, list[str]]
    if isinstance(data, dict) and data and all(isinstance(captions, list) for captions in data.values()):
        if data.keys() & {"images", "annotations"}:
            references = _annotations(path, data)
        else:
            numbers = all(re.fullmatch("0|-?[1-9][0-9]*", key) for key in data)
            references = {int(key) if numbers else key: captions for key, captions in data.items()}
            if bad := [i for i, captions in references.items() if not all(isinstance(c, str) for c in captions)]:
                raise ValueError(f"{path}: captions that are no text, of image {some(bad)}")
    else:
        references = _annotations(path, data)
    if empty := [i for i, captions in references.items() if not captions]:
        raise ValueError(f"{path}: images without a reference caption: {some(empty)}; leave them out of the evaluation")
    return references


def _annotations(path: str | Path, data: Any) -> dict[Any, list[str]]:
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("images", "annotations")):
        raise ValueError(
            f'{path}: not a COCO annotation file: wanted an object with the lists "images" and "annotations", or one '
            "of image ids and lists of captions"
        )
    listed = _ids(path, data["images"], "id", "images")
    image_of = _ids(path, data["annotations"], "image_id", "annotations", repeated=True)
    references: dict[Any, list[str]] = {i: [] for i in listed}
    if unknown := [i for i in dict.fromkeys(image_of) if i not in references]:
        raise ValueError(f'{path}: captions of images that are not in "images": {some(unknown)}')
    for i, caption in zip(image_of, _texts(path, data["annotations"], image_of), strict=True):
        references[i].append(caption)
    return references


def read_results(path: str | Path, references: Iterable[Any] | None = None, *, partial: bool = False) -> dict[Any, str]:
    """Image id -> caption, from a file in the COCO results format: a list of {"image_id": ..., "caption": ...}.

    references: the image ids (or the mapping that `read_references` gives) that the file must cover exactly; partial:
    some of them will do. Equal entries for one image count once. Raises ValueError, naming the file and the ids, for
    missing, unknown or wrongly typed ids, two captions of one image, and captions that are no text.
    """
    return _read_results(path, references, partial)[0]


def _read_results(path: str | Path, references: Iterable[Any] | None, partial: bool) -> tuple[dict[Any, str], int]:
    """`read_results`, and how many entries repeat an earlier one (as samplers of several processes make them)."""
    data = _read_json(path)
    if not isinstance(data, list):
        raise ValueError(f"{path}: COCO results are a list of image_id and caption, found {type(data).__name__}")
    if not data:
        raise ValueError(f"{path}: no results in the file")
    ids = _ids(path, data, "image_id", "results", repeated=True)
    pairs = list(dict.fromkeys(zip(ids, _texts(path, data, ids), strict=True)))
    ids = _ids(path, [{"image_id": i} for i, _ in pairs], "image_id", "results")
    if references is not None:
        wanted = list(references)
        try:
            match(ids, wanted, str(path), "references", partial=partial)
        except ValueError as error:
            remedy = ""
            if {*ids} < {*wanted}:
                remedy = "; partial=true scores those that are there"
            elif type(ids[0]) is type(wanted[0]):
                remedy = "; are the two files of the same images?"
            raise ValueError(f"{error}{remedy}") from None
    return dict(pairs), len(data) - len(pairs)


def evaluate_files(
    results: str | Path,
    annotations: str | Path,
    *,
    partial: bool = False,
    as_lines: bool = True,
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> Scores:
    """Score a COCO results file against an annotation file; both as `read_results` and `read_references` read them.

    partial: score the images that have a caption, and say so; default: every image must have one. as_lines: tokenise as
    COCO's program does, to the last digit. about, options: of `score` (meteor, spice, training, frequencies, seed ...).
    Raises FileNotFoundError, and ValueError naming the file and the ids, before anything is computed.
    """
    references = read_references(annotations)
    hypotheses, merged = _read_results(results, references, partial)
    total = len(references)
    references = {i: captions for i, captions in references.items() if i in hypotheses}
    files: dict[str, Any] = {"results": str(results), "annotations": str(annotations)}
    card = score(hypotheses, references, as_lines=as_lines, about=files | dict(about or {}), **options)
    if merged:
        card.facts["repeated_results_merged"] = merged
        card.facts["warnings"].append(f"{merged} entries of the results repeat another, and count once")
    if len(references) < total:
        card.facts["images_without_caption"] = total - len(references)
        card.facts["warnings"].append(
            f"scored {len(references)} of {total} images: not comparable with scores of the whole set"
        )
    return card


def write_server_zip(
    path: str | Path,
    captions: Mapping[Any, str],
    *,
    split: str,
    algorithm: str,
    annotations: str | Path | None = None,
) -> list[str]:
    """Add captions_<split>_<algorithm>_results.json to a zip archive for the COCO captions server.

    The server wants val2014 and test2014 in one archive: a second call with the same path adds the other split; an
    archive of another algorithm is not touched. captions: image id (a whole number) -> caption. annotations: the file
    of the split ("image_info_test2014.json" will do), whose images must all have a caption; without it only the number
    of images of val2014 and test2014 is checked. Returns the names in the archive, which appears whole or not at all.
    Raises ValueError for other ids, other counts and names that the server could not read.
    """
    path = Path(path)
    for name, value in (("split", split), ("algorithm", algorithm)):
        if not re.fullmatch(r"[A-Za-z0-9.-]+", value):
            raise ValueError(f"{name}={value!r}: letters, digits, dots and hyphens are wanted, as in a file name")
    if bad := [i for i in captions if isinstance(i, bool) or not hasattr(i, "__index__")]:
        raise ValueError(f"{path}: the server wants whole numbers as image ids, found {some(bad)}")
    if bad := [i for i, caption in captions.items() if not isinstance(caption, str)]:
        raise ValueError(f"{path}: captions that are no text, of image {some(bad)}")
    if annotations is not None:
        data = _read_json(annotations)
        if not isinstance(data, dict) or not isinstance(data.get("images"), list):
            raise ValueError(f'{annotations}: not a COCO annotation file: wanted an object with the list "images"')
        match(captions, _ids(annotations, data["images"], "id", "images"), str(path), f"images of {annotations}")
    elif len(captions) != SERVER_IMAGES.get(split, len(captions)):
        raise ValueError(f"{path}: {split} has {SERVER_IMAGES[split]} images, captions were given for {len(captions)}")
    name = f"captions_{split}_{algorithm}_results.json"
    rows = [{"image_id": int(i), "caption": caption} for i, caption in captions.items()]
    kept: dict[str, bytes] = {}
    if path.exists():
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path}: exists and is no zip archive; choose another name")
        with zipfile.ZipFile(path) as old:
            kept = {n: old.read(n) for n in old.namelist() if n != name}
    if other := [n for n in kept if not re.fullmatch(rf"captions_[^_]+_{re.escape(algorithm)}_results\.json", n)]:
        raise ValueError(f"{path}: holds {some(other)} already; choose another name for the captions of {algorithm}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in sorted((kept | {name: json.dumps(rows).encode()}).items()):
            archive.writestr(each, content)
    part.replace(path)
    return sorted({*kept, name})


def _read_json(path: str | Path) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The object, unless it has a key twice: JSON readers keep the last and drop the others without a word."""
        content = dict(pairs)
        if len(content) < len(pairs):
            twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
            raise ValueError(f"{path}: an object has the same key more than once: {some(twice)}")
        return content

    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except (FileNotFoundError, IsADirectoryError):
        raise FileNotFoundError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: not JSON, or cut short: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, lists in lists without end
        reason = str(error).removeprefix(f"{path}: ").partition(";")[0]
        raise ValueError(f"{path}: JSON that cannot be read ({reason})") from None


def _ids(path: str | Path, rows: list[Any], key: str, where: str, *, repeated: bool = False) -> list[Any]:
    """The ids of the rows: all numbers or all texts, and unless `repeated` each only once."""
    if bad := [n for n, row in enumerate(rows) if not isinstance(row, dict) or key not in row]:
        raise ValueError(f'{path}: entry {bad[0]} of the {where} has no "{key}"')
    ids = [row[key] for row in rows]
    if bad_ids := [i for i in ids if isinstance(i, bool) or not isinstance(i, int | str)]:
        raise ValueError(f'{path}: "{key}" must be a whole number (or a text), found {some(bad_ids)}')
    if len({type(i) for i in ids}) > 1:
        texts = [i for i in ids if isinstance(i, str)]
        raise ValueError(f'{path}: "{key}" is a number in some entries and a text in others: {some(texts)}')
    if not repeated and (twice := [i for i, count in Counter(ids).items() if count > 1]):
        raise ValueError(
            f"{path}: more than one entry of the {where} for id {some(twice)} ({len(twice)} ids of {len(set(ids))}); "
            "keep one entry for each image"
        )
    return ids


def _texts(path: str | Path, rows: list[dict[str, Any]], ids: list[Any]) -> list[str]:
    captions: list[Any] = [row.get("caption") for row in rows]
    if bad := [i for i, caption in zip(ids, captions, strict=True) if not isinstance(caption, str)]:
        raise ValueError(
            f'{path}: "caption" is missing or no text for image {some(list(dict.fromkeys(bad)))}; write a text, "" for '
            "an image without one"
        )
    return captions
