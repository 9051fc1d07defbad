"""The score card of a set of captions: COCO's scores, what they were computed on, and signs of trouble.

Ids are the keys everywhere; their order never matters. `read_references`, `read_results` and `write_results` speak
COCO's annotation and results formats.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitcap.metrics.bleu import bleu, count_ngrams
from vitcap.metrics.cider import DocumentFrequencies, cider_d
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.rouge import rouge_l

Id = TypeVar("Id", bound=Hashable)

SCALE = "fractions of 1; CIDEr-D on its own scale, which ends at 10"
_BAD_ENDINGS = """a an the this that these those his her its their my your our some another of in on at by with from to
    into onto for near under over above below behind between beside next against through across along and or but as than
    while which who is are was were be being has have"""
BAD_ENDINGS = frozenset(_BAD_ENDINGS.split())
"""Words on which no finished caption ends; self-critical training without the end token produces such endings."""


@dataclass(frozen=True)
class Scores:
    """corpus: "BLEU-1" to "BLEU-4", "ROUGE-L", "CIDEr-D" -> score of the whole set, None where it is not defined.

    All are fractions of 1 but CIDEr-D, which has a scale of its own, ending at 10 (papers print all times 100).
    per_image: image id -> the same names -> the score of that image alone; BLEU of the set is not the mean of these.
    facts: how the figures came about and what the captions look like, as plain JSON types.
    """

    corpus: dict[str, float | None]
    per_image: dict[Any, dict[str, float | None]]
    facts: dict[str, Any]

    def table(self) -> str:
        """The corpus scores and the facts as text. Scores are multiplied by 100, as papers print them."""
        lines = [
            "scores x 100",
            *(f"  {k:<8} {'-' if v is None else f'{100 * v:.2f}':>7}" for k, v in self.corpus.items()),
        ]
        facts = {k: _readable(v) for k, v in self.facts.items() if v not in (None, [])}
        width = max(map(len, facts))
        return "\n".join(
            [*lines, "", *(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in facts.items())]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the scale, the corpus scores and the facts (not the single images)."""
        return {"scale": SCALE, "scores": self.corpus, "facts": self.facts}


def _readable(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_readable(value)}" for name, value in fact.items())
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


def score(
    hypotheses: Mapping[Id, str],
    references: Mapping[Id, Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
    idf: str = "given document frequencies",
    training: Iterable[str] | None = None,
    tokenized: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Scores:
    """Score one caption per image against its references.

    frequencies: idf weights of CIDEr-D from elsewhere, named by `idf`; default: the references scored, as COCO does.
    training: raw training captions, to tell how many hypotheses are not among them. tokenized: the captions are tokens
    joined by blanks already. about: further facts to keep with the scores (split, decoding rules, seed).
    Raises ValueError, naming the ids, unless every image has exactly one caption and at least one reference.
    """
    ids = list(references)
    _check(hypotheses, references)
    raw = [references[i] for i in ids]
    if tokenized:
        told, gold = [hypotheses[i] for i in ids], [list(captions) for captions in raw]
    else:
        told, flat = tokenize(hypotheses[i] for i in ids), iter(tokenize(chain.from_iterable(raw)))
        gold = [[next(flat) for _ in captions] for captions in raw]

    corpus: dict[str, float | None] = {}
    each: dict[str, list[float] | list[None]] = {}
    for order, (value, values) in enumerate(zip(*bleu(told, gold), strict=True), 1):
        corpus[f"BLEU-{order}"], each[f"BLEU-{order}"] = float(value), values.tolist()
    corpus["ROUGE-L"], values = rouge_l(told, gold)
    each["ROUGE-L"] = values.tolist()
    if frequencies or len(ids) > 1:
        corpus["CIDEr-D"], values = cider_d(told, gold, frequencies=frequencies)
        each["CIDEr-D"] = values.tolist()
        source = f"{idf} ({frequencies.images} images)" if frequencies else f"references scored ({len(ids)} images)"
    else:
        corpus["CIDEr-D"], each["CIDEr-D"] = None, [None]
        source = "none: CIDEr-D is not defined on one image, whose idf weights are all 0; give document frequencies"

    known = None if training is None else set(training if tokenized else tokenize(training))
    facts = dict(about or {}) | _describe_references(ids, raw)
    facts["tokeniser"] = "none (captions were given as tokens)" if tokenized else "PTB (rules of CoreNLP 3.4.1)"
    facts |= {"idf": source} | _describe_hypotheses(told, gold, known)
    names, rows = list(each), zip(*each.values(), strict=True)
    return Scores(corpus, {i: dict(zip(names, row, strict=True)) for i, row in zip(ids, rows, strict=True)}, facts)


def _check(hypotheses: Mapping[Any, Any], references: Mapping[Any, Any]) -> None:
    if not references:
        raise ValueError("no images to score: the references are empty")
    _match(hypotheses, references, "hypotheses", "references")
    if bad := [i for i, v in hypotheses.items() if not isinstance(v, str)]:
        raise ValueError(f"captions that are no text: {_some(bad)} (found {type(hypotheses[bad[0]]).__name__})")
    if bad := [i for i, v in references.items() if isinstance(v, str) or not all(isinstance(c, str) for c in v)]:
        raise ValueError(f"references must be a list of captions for each image; they are not for {_some(bad)}")
    if bad := [i for i, v in references.items() if not len(v)]:
        raise ValueError(f"images without a reference caption: {_some(bad)}; leave them out of the evaluation")


def _match(found: Iterable[Any], wanted: Iterable[Any], where: str, against: str) -> None:
    """Raise a ValueError that begins with `where` unless both have the same ids."""
    found, wanted = dict.fromkeys(found), dict.fromkeys(wanted)
    missing, extra = [i for i in wanted if i not in found], [i for i in found if i not in wanted]
    if missing and extra and {str(i) for i in extra} & {str(i) for i in missing}:
        kinds = [f"{type(i).__name__} ({i!r})" for i in (extra[0], missing[0])]
        raise ValueError(f"{where}: image ids are {kinds[0]}, those of the {against} {kinds[1]}; write both alike")
    problems = []
    if missing:
        have = len(wanted) - len(missing)
        problems.append(f"{have} of {len(wanted)} images have a caption, missing are {_some(missing)}")
    if extra:
        problems.append(f"the {against} have no images {_some(extra)}")
    if problems:
        raise ValueError(f"{where}: " + "; ".join(problems))


def _some(ids: Sequence[Any]) -> str:
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return ", ".join(map(repr, ids[:5])) + more


def _describe_references(ids: Sequence[Any], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    counts = [len(captions) for captions in references]
    pairs = sorted((str(i), list(captions)) for i, captions in zip(ids, references, strict=True))
    return {
        "images": len(ids),
        "references": sum(counts),
        "references_per_image": {"min": min(counts), "mean": float(np.mean(counts)), "max": max(counts)},
        "references_sha256": hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16],
    }


def _describe_hypotheses(told: list[str], gold: list[list[str]], training: set[str] | None) -> dict[str, Any]:
    words = [caption.split() for caption in told]
    lengths = [len(w) for w in words]
    grams = count_ngrams(words, 2)
    distinct = [float((g.gram.max(initial=-1) + 1) / max(g.times.sum(), 1)) for g in grams]
    unique = len(set(told)) / len(told)
    facts: dict[str, Any] = {
        "caption_length": {"min": min(lengths), "mean": float(np.mean(lengths)), "max": max(lengths)},
        "vocabulary_used": len(set(chain.from_iterable(words))),
        "vocabulary_of_references": len({w for captions in gold for caption in captions for w in caption.split()}),
        "distinct_1": distinct[0],
        "distinct_2": distinct[1],
        "unique_captions": unique,
        "novel_captions": None if training is None else sum(c not in training for c in told) / len(told),
        "repeated_word_rate": sum(any(a == b for a, b in pairwise(w)) for w in words) / len(words),
        "bad_ending_rate": sum(bool(w) and w[-1] in BAD_ENDINGS for w in words) / len(words),
        "empty_captions": lengths.count(0),
        "warnings": [],
    }
    if len(told) >= 20 and unique < 0.1:
        facts["warnings"].append(
            f"only {len(set(told))} different captions for {len(told)} images: the model hardly looks at the pictures"
        )
    if facts["empty_captions"]:
        facts["warnings"].append(f"{facts['empty_captions']} captions are empty after tokenisation and score 0")
    return facts


def read_references(path: str | Path) -> dict[Any, list[str]]:
    """Image id -> reference captions, from a COCO captions annotation file.

    Raises ValueError, naming the file and the ids: an image listed twice or without a caption, a caption of an unlisted
    image or that is no text.
    """
    data = _read_json(path)
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("images", "annotations")):
        raise ValueError(
            f'{path}: not a COCO annotation file: wanted an object with the lists "images" and "annotations"'
        )
    listed = _ids(path, data["images"], "id", "images")
    image_of = _ids(path, data["annotations"], "image_id", "annotations", repeated=True)
    references: dict[Any, list[str]] = {i: [] for i in listed}
    if unknown := [i for i in dict.fromkeys(image_of) if i not in references]:
        raise ValueError(f'{path}: captions of images that are not in "images": {_some(unknown)}')
    for i, caption in zip(image_of, _texts(path, data["annotations"], image_of), strict=True):
        references[i].append(caption)
    if empty := [i for i, captions in references.items() if not captions]:
        raise ValueError(
            f"{path}: images without a reference caption: {_some(empty)}; leave them out of the evaluation"
        )
    return references


def read_results(path: str | Path, references: Iterable[Any] | None = None) -> dict[Any, str]:
    """Image id -> caption, from a file in the COCO results format: a list of {"image_id": ..., "caption": ...}.

    references: the image ids (or the mapping that `read_references` gives) that the file must cover exactly.
    Raises ValueError, naming the file and the ids, for duplicate, missing, unknown or wrongly typed ids and for
    captions that are no text.
    """
    data = _read_json(path)
    if not isinstance(data, list):
        raise ValueError(f"{path}: COCO results are a list of image_id and caption, found {type(data).__name__}")
    if not data:
        raise ValueError(f"{path}: no results in the file")
    ids = _ids(path, data, "image_id", "results")
    captions = _texts(path, data, ids)
    if references is not None:
        _match(ids, references, str(path), "references")
    return dict(zip(ids, captions, strict=True))


def write_results(path: str | Path, captions: Mapping[Any, str]) -> None:
    """Write the COCO results format, in the order of `captions`; the file appears whole or not at all."""
    rows = [{"image_id": i if isinstance(i, str) else int(i), "caption": caption} for i, caption in captions.items()]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(rows, indent=0), encoding="utf-8")
    part.replace(target)


def _read_json(path: str | Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: not JSON, or cut short: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def _ids(path: str | Path, rows: list[Any], key: str, where: str, *, repeated: bool = False) -> list[Any]:
    """The ids of the rows: all numbers or all texts, and unless `repeated` each only once."""
    if bad := [n for n, row in enumerate(rows) if not isinstance(row, dict) or key not in row]:
        raise ValueError(f'{path}: entry {bad[0]} of the {where} has no "{key}"')
    ids = [row[key] for row in rows]
    if bad_ids := [i for i in ids if isinstance(i, bool) or not isinstance(i, int | str)]:
        raise ValueError(f'{path}: "{key}" must be a whole number (or a text), found {_some(bad_ids)}')
    if len({type(i) for i in ids}) > 1:
        texts = [i for i in ids if isinstance(i, str)]
        raise ValueError(f'{path}: "{key}" is a number in some entries and a text in others: {_some(texts)}')
    if not repeated and (twice := [i for i, count in Counter(ids).items() if count > 1]):
        raise ValueError(f"{path}: more than one entry of the {where} for id {_some(twice)}")
    return ids


def _texts(path: str | Path, rows: list[dict[str, Any]], ids: list[Any]) -> list[str]:
    captions: list[Any] = [row.get("caption") for row in rows]
    if bad := [i for i, caption in zip(ids, captions, strict=True) if not isinstance(caption, str)]:
        raise ValueError(f'{path}: "caption" is missing or no text for image {_some(list(dict.fromkeys(bad)))}')
    return captions
