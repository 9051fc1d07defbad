"""What a COCO file of captions must hold, and what a JSON file is that holds something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


def validate(data: Any, path: Path, refuse: Callable[[str], None], *, skip: bool = False) -> Counter[str]:
    """One clear error for what is no COCO captions file; counts of what is odd but harmless.

    refuse: called with what is wrong with a record, which is left out if it returns. skip: leave out annotations of
    images that are not in the list.
    """
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("images", "annotations")):
        raise ValueError(f"{path}: {kind_of(data)}, not a COCO captions file (lists of images and of annotations)")
    counts: Counter[str] = Counter()
    files: dict[object, str] = {}
    images, annotations = [], []
    for number, image in enumerate(data["images"]):
        image_id, name = (image.get("id"), image.get("file_name")) if isinstance(image, dict) else (None, None)
        if not is_id(image_id) or not isinstance(name, str) or not name.strip():
            refuse(f"{path}: image {number} of the list has no id and file_name: {str(image)[:80]}")
        elif files.setdefault(image_id, name) != name:
            refuse(f"{path}: image id {image_id!r} stands for two files, {files[image_id]} and {name}")
        else:
            images.append(image)
    data["images"] = images
    counts["images listed twice merged"] = len(images) - len(files)
    unknown, ids = [], set()
    for number, annotation in enumerate(data["annotations"]):
        image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
        if not is_id(image_id):
            refuse(f"{path}: annotation {number} of the list has no image_id: {str(annotation)[:80]}")
            continue
        if not is_id(annotation.setdefault("id", number)):
            refuse(f"{path}: annotation {number} has the id {annotation['id']!r}; a number is wanted")
            continue
        if image_id not in files:
            unknown.append(image_id)
        ids.add(str(annotation["id"]))
        annotations.append(annotation)
    data["annotations"] = annotations
    if unknown and not skip:
        raise ValueError(
            f"{path}: {len(unknown)} of {len(data['annotations'])} annotations are of images that are not in its image "
            f"list, first of image id {unknown[0]!r} (data.source.on_missing=skip leaves them out)"
        )
    if unknown:
        data["annotations"] = [a for a in data["annotations"] if a["image_id"] in files]
        counts[f"annotations of unlisted images skipped (first of image id {unknown[0]!r})"] = len(unknown)
    if data["annotations"] and not any("caption" in annotation for annotation in data["annotations"]):
        raise ValueError(f"{path}: no annotation has a caption (an instances file?); a captions file is wanted")
    counts["repeated annotation ids kept"] = len(data["annotations"]) - len(ids)
    return +counts


def is_id(value: object) -> bool:
    """Whether a value of a JSON file can be an id: a whole number or a text."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def kind_of(data: Any) -> str:
    """What a JSON file is that was taken for another format."""
    if isinstance(data, list):
        results = data and isinstance(data[0], dict) and {"image_id", "caption"} <= set(data[0])
        return "a list, as COCO results files are" if results else "a list"
    if not isinstance(data, dict):
        return f"a single {type(data).__name__}"
    first = data["images"][0] if isinstance(data.get("images"), list) and data["images"] else None
    if isinstance(first, dict) and "sentences" in first:
        return "a Karpathy split file"
    return f"an object with the keys {', '.join(map(str, list(data)[:6])) or '(none)'}"
