"""The score card of a set of captions: COCO's scores, what they were computed on, and signs of trouble.

Ids are the keys everywhere; their order never matters (but to the three or so captions in 25,000 that `as_lines` is
about). Files are read by `vitcap.metrics.results`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitcap.files import whole
from vitcap.metrics import java
from vitcap.metrics.bleu import bleu
from vitcap.metrics.cider import DocumentFrequencies, cider_d
from vitcap.metrics.diversity import is_unsegmented, shuffled_control, statistics, warnings
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.rouge import rouge_l

Id = TypeVar("Id", bound=Hashable)

SCALE = "fractions of 1; CIDEr-D on its own scale, which ends at 10"
CONTROL = "CIDEr-D_of_other_images"
"""Name, among the facts, of what the captions score against the references of other images."""


@dataclass(frozen=True)
class Scores:
    """corpus: "BLEU-1" to "BLEU-4", "ROUGE-L", "CIDEr-D" -> score of the whole set, None where it is not defined; where
    asked for also "METEOR", "SPICE" and the F-scores of SPICE by category ("SPICE-Object", ...).

    All are fractions of 1 but CIDEr-D, which has a scale of its own, ending at 10 (papers print all times 100).
    per_image: image id -> the same names -> the score of that image alone; BLEU of the set is not the mean of these.
    facts: how the figures came about and what the captions look like, as plain JSON types.
    """

    corpus: dict[str, float | None]
    per_image: dict[Any, dict[str, float | None]]
    facts: dict[str, Any]

    def table(self) -> str:
        """The corpus scores and the facts as text. Scores are multiplied by 100, as papers print them."""
        widest = max(map(len, self.corpus))
        lines = ["scores x 100"]
        for name, value in self.corpus.items():
            lines.append(f"  {name:<{widest}}  {'-' if value is None else f'{100 * value:.2f}':>7}")
            if name == "CIDEr-D" and self.facts.get(CONTROL) is not None:
                lines[-1] += f"  ({100 * self.facts[CONTROL]:.2f} against the references of other images)"
        facts = {k: _readable(v) for k, v in self.facts.items() if v not in (None, []) and k != CONTROL}
        width = max(map(len, facts))
        return "\n".join(
            [*lines, "", *(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in facts.items())]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: the scale, the corpus scores and the facts (not the single images)."""
        return {"scale": SCALE, "scores": self.corpus, "facts": self.facts}


def _readable(fact: Any) -> str:
    if isinstance(fact, list):
        return "; ".join(map(_readable, fact))
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
    as_lines: bool = False,
    meteor: bool | Mapping[str, Any] | None = False,
    spice: bool | Mapping[str, Any] | None = False,
    seed: int = 0,
    about: Mapping[str, Any] | None = None,
) -> Scores:
    """Score one caption per image against its references.

    frequencies: idf weights of CIDEr-D from elsewhere, named by `idf`; default: the references scored, as COCO does.
    training: raw training captions, to tell how many hypotheses are not among them. tokenized: the captions are tokens
    joined by blanks already. as_lines: tokenise the captions in their order as lines of one file, as COCO's program
    does; see `tokenize`. meteor, spice: compute them with Java; True, or the options of `vitcap.metrics.java.meteor`
    and `spice` (folder, java, limit, ...). They come last: if one fails, its scores are None, the facts say why under
    its name, and all other scores stand. seed: of the control against other images. about: further facts to keep with
    the scores (split, decoding rules).
    Raises ValueError, naming the ids, unless every image has exactly one caption and at least one reference.
    """
    ids = list(references)
    _check(hypotheses, references)
    raw = [references[i] for i in ids]
    if tokenized:
        told, gold = [hypotheses[i] for i in ids], [list(captions) for captions in raw]
    else:
        told = tokenize((hypotheses[i] for i in ids), as_lines=as_lines)
        flat = iter(tokenize(chain.from_iterable(raw), as_lines=as_lines))
        gold = [[next(flat) for _ in captions] for captions in raw]

    corpus: dict[str, float | None] = {}
    each: dict[str, Any] = {}
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
    facts["tokeniser"] = "PTB (rules of CoreNLP 3.4.1)" + (", captions read as lines of one file" if as_lines else "")
    if tokenized:
        facts["tokeniser"] = "none (captions were given as tokens)"
    facts |= {"idf": source} | statistics(told, references=gold, training=known)
    facts["warnings"] = warnings(facts, images=len(ids))
    if is_unsegmented([caption for captions in gold for caption in captions]):
        facts["warnings"].append(
            "the references are in a script without blanks between words, and whole sentences count as one word: "
            "separate the words of both files"
        )
    if len(ids) > 1:
        by_id = dict(zip(ids, told, strict=True)), dict(zip(ids, gold, strict=True))
        facts[CONTROL] = control = shuffled_control(*by_id, seed=seed, frequencies=frequencies)
        value = corpus["CIDEr-D"] or 0.0
        if len(ids) >= 20 and 0 < 0.8 * value <= control:
            facts["warnings"].append(
                f"CIDEr-D is {100 * value:.1f}, and {100 * control:.1f} against the references of other images: the "
                "captions say little about their own images"
            )
    for metric, wanted in (("METEOR", meteor), ("SPICE", spice)):
        if wanted is not None and wanted is not False:
            _with_java(metric, told, gold, {} if wanted is True else wanted, corpus, each, facts)
    names, rows = list(each), zip(*each.values(), strict=True)
    return Scores(corpus, {i: dict(zip(names, row, strict=True)) for i, row in zip(ids, rows, strict=True)}, facts)


def _with_java(
    metric: str,
    told: list[str],
    gold: list[list[str]],
    options: Mapping[str, Any],
    corpus: dict[str, float | None],
    each: dict[str, Any],
    facts: dict[str, Any],
) -> None:
    """Add METEOR or SPICE to the scores, or None for it and the reason to the facts."""
    corpus[metric], each[metric] = None, [None] * len(told)
    try:
        program = java.preflight(metric, folder=options.get("folder"), java=options.get("java"))
        kinds: dict[str, Any] = {}
        if metric == "METEOR":
            value, values = java.meteor(told, gold, **options)
        else:
            value, values, kinds = java.spice(told, gold, **options)
    except (java.JavaUnavailable, java.JavaFailed, OSError, ValueError, TypeError) as error:
        facts[metric] = f"not computed: {error}"
        facts["warnings"].append(f"{metric} was not computed; the reason stands under its name")
        return
    corpus[metric], each[metric] = value, values.tolist()
    for kind, values in kinds.items():  # the mean over the images that have such propositions, as SPICE itself reports
        known = values[~np.isnan(values)]
        corpus[f"{metric}-{kind}"] = float(known.mean()) if len(known) else None
        each[f"{metric}-{kind}"] = [None if np.isnan(v) else float(v) for v in values]
    release = {"METEOR": "1.5 (-l en -norm)", "SPICE": "1.0 (-subset, CoreNLP 3.6.0)"}[metric]
    facts[metric] = f"{release} on Java {program.version}"


def _check(hypotheses: Mapping[Any, Any], references: Mapping[Any, Any]) -> None:
    if not references:
        raise ValueError("no images to score: the references are empty")
    match(hypotheses, references, "hypotheses", "references")
    if bad := [i for i, v in hypotheses.items() if not isinstance(v, str)]:
        raise ValueError(f"captions that are no text: {some(bad)} (found {type(hypotheses[bad[0]]).__name__})")
    if bad := [i for i, v in references.items() if isinstance(v, str) or not all(isinstance(c, str) for c in v)]:
        raise ValueError(f"references must be a list of captions for each image; they are not for {some(bad)}")
    if bad := [i for i, v in references.items() if not len(v)]:
        raise ValueError(f"images without a reference caption: {some(bad)}; leave them out of the evaluation")


def match(found: Iterable[Any], wanted: Iterable[Any], where: str, against: str, *, partial: bool = False) -> None:
    """Raise a ValueError that begins with `where` unless both have the same ids; partial: some of the wanted do."""
    found, wanted = dict.fromkeys(found), dict.fromkeys(wanted)
    missing, extra = [i for i in wanted if i not in found], [i for i in found if i not in wanted]
    if missing and extra and {str(i) for i in extra} & {str(i) for i in missing}:
        kinds = [f"{type(i).__name__} ({i!r})" for i in (extra[0], missing[0])]
        raise ValueError(f"{where}: image ids are {kinds[0]}, those of the {against} {kinds[1]}; write both alike")
    problems = []
    if missing and not partial:
        have = len(wanted) - len(missing)
        problems.append(f"{have} of {len(wanted)} images have a caption, missing are {some(missing)}")
    if extra:
        problems.append(f"the {against} have no images {some(extra)}")
    if problems:
        raise ValueError(f"{where}: " + "; ".join(problems))


def some(ids: Sequence[Any]) -> str:
    """The first five, and how many more there are."""
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


def write_results(path: str | Path, captions: Mapping[Any, str]) -> None:
    """Write the COCO results format, in the order of `captions`; the file appears whole or not at all."""
    rows = [{"image_id": i if isinstance(i, str) else int(i), "caption": caption} for i, caption in captions.items()]
    with whole(path) as part:
        part.write_text(json.dumps(rows, indent=0), encoding="utf-8")
