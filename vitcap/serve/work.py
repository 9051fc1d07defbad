"""The models' work on pictures that were uploaded: captions, and maps, as what the answers say in JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image

from vitcap.data.images import ImageError
from vitcap.decoding import Sample
from vitcap.evaluation.report import describe_search
from vitcap.explain.methods import CAPTION_METHODS
from vitcap.explain.options import choose
from vitcap.explain.records import record_of
from vitcap.explain.seen import Seen, join, see
from vitcap.explain.words import Sentence, of_caption, read
from vitcap.memory import NotEnoughMemory
from vitcap.record import AttentionRecord, View
from vitcap.serve.asked import Asked, Served
from vitcap.serve.limits import MOST_LENGTH, Refused, busy
from vitcap.viz.viewer import PHOTO_SIDE, viewer_entry
from vitcap.writer import Caption, Search

ABOUT = {name: f"{text[:1].upper()}{text[1:]}." for name, text in CAPTION_METHODS.items()}


def served(name: str, door: Any) -> Served:
    """A model to be served, and what is told of it; a pass through it shows that it can do all that it will be asked.

    Raises ValueError for a model that has no maps to show.
    """
    methods, shown = choose(door, "all")
    see(door, Image.new("RGB", (8, 8)), 8)  # finds out where the grid lies, which takes a pass
    limit = getattr(door.model.decoder, "max_length", None) or MOST_LENGTH
    facts = {
        "name": name,
        "fingerprint": door.fingerprint,
        "parameters": sum(p.numel() for p in door.model.parameters()),
        "image_size": list(door.preprocess.size),
        "grid": list(door.grid),
        "vocabulary": door.model.decoder.vocab_size,
        "max_length": min(MOST_LENGTH, limit),
        "search": describe_search(door.search),
        "methods": list(methods),
        "shown": shown.method,
    }
    return Served(name, door, facts)


def work(asks: Sequence[Asked]) -> list[Any]:
    """For each of some asks of one kind, in their order: the JSON of its answer, or the Refused of it.

    All pictures go through the model together; where that fails, each goes alone, so that none spoils the others.
    """
    began = time.monotonic()
    try:
        return [_json(ask, one, began) for ask, one in zip(asks, _answers(asks), strict=True)]
    except Refused as error:
        failed: Exception = error
    except NotEnoughMemory:
        failed = busy("there is not enough memory for this picture now")
    except Exception as error:
        failed = error
    return [failed] if len(asks) == 1 else [work([ask])[0] for ask in asks]


def _json(ask: Asked, found: list[dict[str, Any]] | Refused, began: float) -> bytes | Refused:
    if isinstance(found, Refused):
        return found
    records = [answer.pop("record") for answer in found]
    seconds = round(time.monotonic() - began, 4)
    if ask.view:
        names = [model.name for model in ask.models]
        content: Any = {"photo": viewer_entry(records, None, names, ABOUT), "answers": found, "seconds": seconds}
    else:
        content = found[0] | {"seconds": seconds}
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _answers(asks: Sequence[Asked]) -> list[list[dict[str, Any]] | Refused]:
    """What each of the models says of each picture, or why there is nothing to say."""
    found: list[list[dict[str, Any]] | Refused] = [[] for _ in asks]
    for index, model in enumerate(asks[0].models):
        seen: dict[int, Seen] = {}
        for place, ask in enumerate(asks):
            answers = found[place]
            if isinstance(answers, list):
                try:
                    seen[place] = see(model.door, ask.picture, PHOTO_SIDE if ask.view else 64)
                except ImageError as error:
                    found[place] = Refused(422, str(error))
        if not seen:
            break
        captions = _captions(model, [asks[place] for place in seen], list(seen.values()), asks[0].searches[index])
        for (place, one), sentence in zip(seen.items(), captions, strict=True):
            answers = found[place]
            assert isinstance(answers, list)
            answers.append(_answer(model, asks[place], one, sentence))
    return found


def _captions(model: Served, asks: Sequence[Asked], seen: Sequence[Seen], search: Search) -> list[Sentence]:
    ask, door = asks[0], model.door
    wants = ask.methods is not None and "attention" in model.facts["methods"]
    if ask.caption is not None:
        try:
            return [read(door, seen[0].batch, ask.caption, need_attention=wants)]
        except ValueError as error:
            raise Refused(400, f"caption: {error}") from None
    seed = ask.seed if isinstance(search, Sample) else None
    generator = None if seed is None else torch.Generator(door.device).manual_seed(seed)
    batch = join([one.batch for one in seen])
    facts = {"words": "generated", "decoding": describe_search(search), "seed": seed}
    written = door.write(batch, search=search, generator=generator, need_attention=wants)
    return [Sentence(caption, facts) for caption in written]


def _answer(model: Served, ask: Asked, seen: Seen, sentence: Sentence) -> dict[str, Any]:
    """What the answer says of one model; its record, where maps are wanted, under "record"."""
    caption = sentence.caption
    width, height = seen.fields["size"]
    answer: dict[str, Any] = {
        **plain_caption(caption),
        "n_best": [plain_caption(one) for one in (caption, *caption.alternatives) if one.tokens],
        "picture": {"name": seen.fields["source"], "width": width, "height": height},
        "model": model.facts,
        **{name: sentence.facts[name] for name in ("decoding", "seed", "unknown_words") if name in sentence.facts},
        "record": None,
    }
    if ask.methods is not None:
        methods, shown = choose(model.door, ask.methods)
        if ask.methods != "all" and shown.method != methods[0]:
            shown = View(methods[0])
        record = record_of(model.door, of_caption(model.door, seen.batch, sentence, methods), shown, seen)
        answer["record"] = record
        if not ask.view:
            answer["attention"] = plain_maps(record)
    return answer


def plain_caption(caption: Caption) -> dict[str, Any]:
    """A caption in plain JSON types. probability: the geometric mean over its tokens, the end among them, as `vitcap
    caption` has it; joint_probability: of the whole. Of a word: of the tokens that spell it."""
    total = sum(caption.log_probs)
    return {
        "caption": caption.text,
        "probability": _short(math.exp(total / max(len(caption.log_probs), 1))),
        "joint_probability": _short(math.exp(total)),
        "score": _short(caption.score),
        "finished": caption.finished,
        "words": [
            {"text": word.text, "probability": _short(math.exp(word.log_prob)), "log_prob": _short(word.log_prob)}
            for word in caption.words
        ],
    }


def plain_maps(record: AttentionRecord) -> dict[str, Any]:
    """The maps of a record's words as they are shown, in plain JSON types: lists (rows, columns), and where they lie
    on the photo, in its pixels."""
    view = record.shown

    def rounded(values: NDArray[Any]) -> list[list[float]]:
        return [[_short(value) for value in row] for row in values.tolist()]

    return {
        "method": view.method,
        "layers": view.layers,
        "heads": view.heads,
        "grid": record.grid,
        "box": record.grid_window,
        "seen": record.window,
        "maps": [rounded(record.map(index)) for index in range(len(record.words))],
    }


def _short(value: float) -> float:
    """A number to six digits: those of float32 that mean something."""
    return float(f"{value:.6g}")
