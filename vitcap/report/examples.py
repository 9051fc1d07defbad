"""The best and the worst of a split, as examples with photo, texts and what was looked at."""

from __future__ import annotations

import logging
import math
from typing import Any

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.images import ImageError
from vitcap.drawing import alignment_page
from vitcap.explain import explain
from vitcap.explain.methods import available
from vitcap.record import AttentionRecord
from vitcap.report.blocks import Example, Tile
from vitcap.report.folder import RunFolder
from vitcap.translator import Translator
from vitcap.viz.overlay import Scale, below, fit_in, paint_lift, photo_of, sheet
from vitcap.viz.shown import cells_of, describe_word, note, of_classes, probability, show, window_of

log = logging.getLogger(__name__)

PHOTO, TILE, MOST = (480, 400), 132, 24
"""Most pixels of a photo and of a tile; words of an example that have a tile."""


def rank(run: RunFolder, count: int) -> tuple[list[str], list[str], str]:
    """The ids of the best and of the worst `count` records, none in both, and what they were ranked by, in words.

    Captions: by their CIDEr-D, of equal ones those that the model is surest of. Classes: the right and the wrong ones
    that it is surest of. Translations: by exactness, then BLEU-4, then BLEU-1.
    """
    each = run.each
    if run.kind == "classify":
        right = [id_ for id_, one in each.items() if one["class"] == one["predicted"]]
        wrong = [id_ for id_, one in each.items() if one["class"] != one["predicted"]]
        surest = {id_: -float(one["probability"]) for id_, one in each.items()}
        told = "Right ones and wrong ones that the model was surest of."
        return sorted(right, key=surest.get)[:count], sorted(wrong, key=surest.get)[:count], told  # type: ignore[arg-type]
    keys: dict[str, tuple[float, ...]]
    if run.kind == "translate":
        keys = {id_: (float(one["exact"]), round(one["BLEU-4"], 6), one["BLEU-1"], 0.0) for id_, one in each.items()}
        told = "Ranked by sentences without a mistake, then by their BLEU-4, then by their BLEU-1."
    else:
        by = next((name for name in ("CIDEr-D", "BLEU-4") if any(_known(one.get(name)) for one in each.values())), None)
        if by is None:
            return [], [], ""
        keys = {
            id_: (one[by], one["score"] if _known(one.get("score")) else 0.0)
            for id_, one in each.items()
            if _known(one.get(by))
        }
        told = f"Ranked by the {by} of each picture; of equal ones, those that the model was surest of come first."
    best = sorted(keys, key=lambda id_: tuple(-key for key in keys[id_]))
    worst = sorted(keys, key=lambda id_: (*keys[id_][:-1], -keys[id_][-1]))
    half = min(count, (len(keys) + 1) // 2)
    taken = set(best[:half])
    return best[:half], [id_ for id_ in worst if id_ not in taken][:count], told


def examples(run: RunFolder, ids: list[str], name: str, *, door: Any, data: Any) -> list[Example]:
    """Examples of these records. name: of their files, numbered. door, data: the model and the data of the run; None:
    without pictures."""
    split = str(run.facts.get("split"))
    records = {}
    if data is not None and ids:
        wanted = set(ids)
        for record in data.records(split):
            id_ = str(record.id if run.kind == "translate" else record.image_id)
            if id_ in wanted:
                records[id_] = record
    return [_example(run, id_, f"{name}-{number + 1}", records.get(id_), door) for number, id_ in enumerate(ids)]


def _example(run: RunFolder, id_: str, name: str, record: Any, door: Any) -> Example:
    one = run.each[id_]
    texts: dict[str, Any]
    if run.kind == "classify":
        sure = f"{100 * float(one['probability']):.1f} % sure"
        texts = {"said": one["predicted"], "score": sure, "wanted": [one["class"]], "wanted_label": "class"}
    elif run.kind == "translate":
        score = f"BLEU-4 {100 * one['BLEU-4']:.1f}, BLEU-1 {100 * one['BLEU-1']:.1f}"
        score = f"without a mistake; {score}" if one["exact"] else score
        texts = {"said": one["output"] or "", "score": score, "wanted": [one["target"]], "wanted_label": "target"}
        texts["source"] = one["source"]
    else:
        figures = ", ".join(f"{n} {100 * one[n]:.1f}" for n in ("CIDEr-D", "BLEU-4") if _known(one.get(n)))
        wanted = [] if record is None else list(record.captions)
        texts = {"said": one["caption"], "score": figures, "wanted": wanted, "wanted_label": "references"}
    drawn: dict[str, Any] = {}
    if record is not None and door is not None:
        try:
            drawn = _alignment(door, record, run) if isinstance(door, Translator) else _maps(door, record, one)
        except (ImageError, ValueError, OSError, ArithmeticError) as error:  # one of many
            drawn = {"problem": f"not drawn: {' '.join(str(error).split())}"}
            log.warning("report: %s: %s", id_, drawn["problem"])
    return Example(name=name, label=id_, **texts, **drawn)


def _maps(door: Any, record: Any, one: dict[str, Any]) -> dict[str, Any]:
    """Photo, tiles and sheet of a picture; the photo alone for a model without maps, or a caption without words."""
    picture = record.open()
    plain = picture.convert("RGB")
    plain.thumbnail(PHOTO)
    have = available(door.model) if door.grid is not None else {}
    if isinstance(door, Captioner) and have and one["caption"].strip():
        found = explain(door, picture, caption=one["caption"], methods=_methods(door, have), photo_side=800)
    elif isinstance(door, Classifier) and have:
        # Of the predicted class: it was told by its name, which several may have.
        found = explain(door, picture, top=1, methods=_methods(door, have), photo_side=800)
    else:
        return {"photo": _larger(plain)}
    return _drawn(found) | {"photo": _larger(plain)}


def _methods(door: Any, have: dict[str, str]) -> tuple[str, ...]:
    """What the model file shows; else attention, of classes what tells one from another."""
    if door.view is not None:
        return (door.view.method,)
    order = ("attention", "relevance", "rollout", "grad-cam")
    if isinstance(door, Classifier):
        order = ("relevance", "grad-cam", "attention", "rollout")
    return tuple(method for method in order if method in have)[:1]


def _drawn(found: AttentionRecord) -> dict[str, Any]:
    view, shown = found.shown, show(found)
    scale = Scale.of(shown)
    width, height = fit_in(found, TILE, TILE)
    small = photo_of(found, width, height)
    window, cells = window_of(found, width, height), cells_of(found, width, height)
    tiles = []
    for index, word in enumerate(found.words[:MOST]):
        painted = paint_lift(small, shown.lifts[index, 0], window, cells=cells, top=scale.end, alpha=scale.alpha)
        told = f"{100 * probability(found, index):.0f} %, {below(found, shown, index)}"
        tiles.append(Tile(word.text, told, painted, describe_word(found, shown, index)))
    colours = (
        f"{note(found, view, shown)}. Colours from black (0) over red to yellow ({scale.end:g} times {shown.unit})"
    )
    what = "class" if of_classes(found) else "word"
    colours += f"; under a {what} its probability and its peak."
    if len(found.words) > MOST:
        colours += f" The first {MOST} of {len(found.words)} words."
    page = sheet(found, view, tile=150)
    return {"tiles": tiles, "sheet": page, "sheet_alt": f"one tile for each {what} of: {found.text}", "note": colours}


def _larger(photo: Any) -> Any:
    """Tiny pictures, such as drawn scenes, up to four times as large."""
    times = min(4, PHOTO[0] // max(photo.width, 1), PHOTO[1] // max(photo.height, 1))
    return photo.resize((photo.width * times, photo.height * times)) if times > 1 else photo


def _alignment(translator: Translator, record: Any, run: RunFolder) -> dict[str, Any]:
    found = translator.translate(record.source, need_attention=True, seed=int(run.facts.get("seed") or 0))
    if found.attention is None or not found.text:
        return {}
    page, lines = alignment_page(translator, record.source, found)
    return {"sheet": page, "sheet_alt": "; ".join(lines[2:])}


def _known(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
