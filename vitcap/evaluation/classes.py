"""A classifier against a split: predictions, scores and the confusion matrix on disk."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitcap import processes
from vitcap.classifier import Classifier
from vitcap.data.pictures import CaptionData
from vitcap.evaluation.report import headline, write_json
from vitcap.files import whole
from vitcap.metrics.classification import Predictions, score
from vitcap.viz.confusion import confusion_picture


def predict_split(
    classifier: Classifier, data: CaptionData, split: str, *, progress: Callable[[int, int], None] | None = None
) -> Predictions:
    """Predictions for every readable picture of a split, in its order; the others are added to `data.bad`.

    Each picture once: several processes take the batches in turn, and all get all predictions, the same as of one.
    Raises ValueError where the data's classes are not the model's.
    """
    loader = data.loader(split, share=processes.share())
    total, world = len(data.records(split)), processes.share()[1]
    subset = getattr(data.source, "subset", None)
    found: dict[int, Predictions] = {}
    done = 0
    for batch in loader:
        if batch.labels is None:
            raise ValueError(f"data={data.source.name}, split {split}: the pictures have no labels")
        found[loader.number] = Predictions.of(classifier.logits(batch), batch.labels, batch.ids, subset=subset)
        done += len(batch)
        if progress is not None:
            progress(min(done * world, total), total)
    parts = processes.collect(found)
    for bad in processes.gather(loader.bad):
        data.bad[split].update(bad)
    data.require_all(split, (id_ for part in parts for id_ in part.ids))
    if not parts:
        first = next(iter(data.bad[split].values()), "the split is empty")
        raise ValueError(f"data={data.source.name}, split {split}: no picture can be read ({first})")
    return Predictions.join(parts)


def evaluate_classes(
    classifier: Classifier,
    data: CaptionData,
    split: str,
    *,
    out: Path,
    facts: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Score a classifier on a split and write `scores.json`, `per_class.json`, `predictions.csv`, `confusion.png`.

    facts: further facts for scores.json. Returns the score card as text and the content of scores.json, which states
    how every figure was obtained. Of several processes the first scores and writes, and the others return nothing.
    """
    data.records(split)
    real = getattr(data.source, "real", None)  # now, and not after the predictions, if they cannot be read
    used = data.preprocess if data.preprocess is not None else classifier.preprocess
    found = predict_split(classifier, data, split, progress=progress)
    if not processes.is_first():
        return "", {}
    names = classifier.class_names
    out.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    with whole(out / "predictions.csv") as part, open(part, "w", **options) as file:
        rows = csv.writer(file)
        rows.writerow(("id", "class", "predicted", "probability"))
        for id_, label, guess, sure in zip(found.ids, found.labels, found.predicted, found.confidence, strict=True):
            rows.writerow((id_, names[label], names[guess], f"{sure:.6f}"))
    about = {
        "data": data.source.name,
        "split": split,
        "unreadable_images": len(data.bad[split]),
        "preprocessing": used.to_dict(),
        **(facts or {}),
    }
    card = score(found, classes=names, real=real, about=about)
    report = {"scores": card.corpus, "facts": card.facts}
    write_json(out / "scores.json", report)
    write_json(out / "per_class.json", {"facts": about, "accuracy": card.per_class})
    with whole(out / "confusion.png") as part:
        confusion_picture(card.confusion, names).save(part, "PNG")
    return f"{headline(about, f'{len(found)} images')}\n{card.table()}", report
