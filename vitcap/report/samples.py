"""What a model in training makes of a few fixed validation records, for the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitcap.captioner import Captioner
from vitcap.data.images import ImageError
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.drawing import alignment_page
from vitcap.explain import explain
from vitcap.explain.methods import available
from vitcap.metrics.classification import confusion
from vitcap.tasks.logs import LogSamples, Samples
from vitcap.translator import Translator
from vitcap.viz.confusion import confusion_picture
from vitcap.viz.overlay import sheet

if TYPE_CHECKING:
    from vitcap.build import Parts

_TILE = 112
"""Pixels of a tile, so that the pictures of every epoch fill no disk."""
_MATRIX = 480


def log_samples(parts: Parts, *, search: Any, count: int, seed: int = 0) -> LogSamples:
    """A callback that logs, after each epoch, what the model makes of the first `count` readable validation records.

    Captions: their texts, and sheets of attention. Translations: their texts, and alignments. Classes: predictions, and
    the confusion matrix of the whole split. search: what captions are validated with. seed: of a sampling search.
    """
    if not count:
        return LogSamples()
    if parts.kind == "classify":
        return LogSamples(scored=lambda task: of_classes(parts, task.predictions, count=count))

    def draw(task: Any) -> Samples:
        door = parts.door(search)
        if isinstance(door, Translator):
            return of_sentences(door, parts.data, count=count, seed=seed)  # type: ignore[arg-type]
        return of_captions(door, parts.data, count=count, seed=seed)  # type: ignore[arg-type]

    return LogSamples(draw)


def of_captions(captioner: Captioner, data: CaptionData, *, count: int, seed: int = 0) -> Samples:
    """Captions of the first validation pictures, and where the model looked."""
    samples = Samples(("picture", "caption", "reference"), [])
    attends = bool(available(captioner.model))
    for record in data.records("val"):
        if len(samples.rows) == count:
            break
        try:
            picture = record.open()
        except ImageError:  # validation has said so
            continue
        if attends:
            found = explain(captioner, picture, seed=seed, photo_side=4 * _TILE)
            text = found.text
            samples.pictures[str(len(samples.rows) + 1)] = (sheet(found, tile=_TILE), f"{record.image_id}: {text}")
        else:
            text = captioner.caption(picture, seed=seed).text
        samples.rows.append((str(record.image_id), text, next(iter(record.captions), "")))
    return samples


def of_sentences(translator: Translator, data: SentenceData, *, count: int, seed: int = 0) -> Samples:
    """Translations of the first validation sentences, and what each word attends to."""
    samples = Samples(("source", "translation", "target"), [])
    for record in data.records("val"):
        if len(samples.rows) == count:
            break
        if record.id in data.bad["val"]:
            continue
        found = translator.translate(record.source, need_attention=True, seed=seed)
        if found.attention is not None and found.text:
            page, _ = alignment_page(translator, record.source, found)
            samples.pictures[str(len(samples.rows) + 1)] = (page, f"{record.source}: {found.text}")
        samples.rows.append((record.source, found.text, record.targets[0]))
    return samples


def of_classes(parts: Parts, predictions: Any, *, count: int) -> Samples:
    """Predictions of the first validation pictures, and the confusion matrix of all."""
    samples = Samples(("picture", "class", "predicted", "probability"), [])
    if predictions is None:  # no picture could be read
        return samples
    names = [name for _, name in parts.description["classes"]]
    p = predictions
    for id_, label, guess, sure in zip(p.ids[:count], p.labels, p.predicted, p.confidence, strict=False):
        samples.rows.append((str(id_), names[label], names[guess], f"{100 * sure:.1f} %"))
    matrix = confusion_picture(confusion(p.labels, p.predicted, p.classes), names, side=_MATRIX)
    samples.pictures["confusion"] = (matrix, f"confusion matrix of {len(p)} pictures, true classes by predicted ones")
    return samples
