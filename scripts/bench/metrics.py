"""Caption metrics and tokenisation against pycocoevalcap, on equal captions, after a check of equal results."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from bench.frame import Candidate, Measurement, Options, Statement, compare
from vitcap.metrics import ptb
from vitcap.metrics.bleu import bleu
from vitcap.metrics.cider import cider_d
from vitcap.metrics.results import read_references, read_results
from vitcap.metrics.rouge import rouge_l

PACKAGES = ("vitcap", "pycocoevalcap")
METHOD = "one metric over all images, on captions tokenised before; PTB: all captions, nothing remembered from before"
IMAGES, QUICK_IMAGES, REFERENCES = 5000, 1000, 5
TOLERANCE = 1e-9
"""Absolute, of the scores of the corpus and of every image."""
TARGETS = {"BLEU-1 to 4": 1.0, "ROUGE-L": 1.0, "CIDEr-D": 5.0, "PTB tokenisation": 1.0}
"""How many times as fast as pycocoevalcap each is to be."""


@dataclass(frozen=True)
class Captions:
    """One hypothesis and a list of references for each image, as they were written."""

    name: str
    hypotheses: list[str]
    references: list[list[str]]

    def tokenized(self) -> Captions:
        told, flat = ptb.tokenize(self.hypotheses), iter(ptb.tokenize(chain.from_iterable(self.references)))
        return Captions(self.name, told, [[next(flat) for _ in captions] for captions in self.references])

    def __str__(self) -> str:
        return f"{self.name}, {len(self.references):,} x {sum(map(len, self.references)) / len(self.references):.3g}"


def generated(images: int, *, seed: int = 0) -> Captions:
    """Captions of 8 to 14 words, of which those of one image share a topic; words as frequent as by Zipf's law."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(6000)]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(words))))

    def caption(topic: Sequence[str]) -> str:
        text = [draw.choice(topic) if draw.random() < 0.6 else common() for _ in range(draw.randint(8, 14))]
        text[1] += draw.choice(["", "", "", "'s", ","])
        return " ".join(text).capitalize() + draw.choice([".", ".", "", " ."])

    def common() -> str:
        return draw.choices(words, cum_weights=weights)[0]

    topics = [[common() for _ in range(12)] for _ in range(images)]
    references = [[caption(topic) for _ in range(REFERENCES)] for topic in topics]
    return Captions("generated", [caption(topic) for topic in topics], references)


def coco(folder: Path, images: int) -> Captions:
    """COCO val2017: the first human caption of an image against the others."""
    references = read_references(folder / "captions_val2017_refs4.json")
    hypotheses = read_results(folder / "captions_val2017_human_results.json", references)
    ids = list(references)[:images]
    return Captions("COCO val2017", [hypotheses[i] for i in ids], [references[i] for i in ids])


def measure(options: Options, *, images: int | None = None) -> Iterator[Measurement | Statement]:
    """images: how many. On generated captions and, where the environment variable VITCAP_DATA names a folder with
    coco_caption_eval/, on COCO's."""
    if find_spec("pycocoevalcap") is None:
        raise ValueError("metrics: the peer pycocoevalcap is not installed (pip install -e '.[bench]')")
    images = images or (QUICK_IMAGES if options.quick else IMAGES)
    sets = [generated(images)]
    if (folder := Path(os.environ.get("VITCAP_DATA", "")) / "coco_caption_eval").is_dir():
        sets.append(coco(folder, images))
    for raw in sets:
        tokens, few = raw.tokenized(), generated(20)
        for metric, target in TARGETS.items():
            ptb_row = metric == "PTB tokenisation"
            if ptb_row and shutil.which("java") is None:
                yield Statement(f"{metric}: not compared, pycocoevalcap's tokeniser needs Java (no java on PATH)")
                continue
            captions = raw if ptb_row else tokens
            candidates = [
                # Java's memory is not this process's, so that of tokenisation is not measured.
                Candidate(
                    who,
                    partial(setup, who, metric, captions),
                    peer=peer,
                    warm=None if ptb_row else partial(setup, who, metric, few),
                )
                for who, peer in (("pycocoevalcap", True), ("vitcap", False))
            ]
            for result in compare({"captions": str(raw), "metric": metric}, candidates, options, tolerance=TOLERANCE):
                yield result
            text = f"{metric} on {raw}: times as fast as pycocoevalcap, to be at least {target:g}"
            yield Statement(text, result.ratio, target, (result.ratio or 0) >= target)


def setup(who: str, metric: str, captions: Captions) -> Callable[[], Any]:
    """A call that returns the score of the corpus and those of the images; of tokenisation, both lists of captions."""
    told, gold = captions.hypotheses, captions.references
    if who == "vitcap":
        if metric == "PTB tokenisation":
            return partial(_tokens, told, list(chain.from_iterable(gold)))
        ours: dict[str, Callable[..., Any]] = {"BLEU-1 to 4": bleu, "ROUGE-L": rouge_l, "CIDEr-D": cider_d}
        return partial(ours[metric], told, gold)

    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    if metric == "PTB tokenisation":
        return partial(_java, told, gold)
    gts, res = dict(enumerate(gold)), {i: [caption] for i, caption in enumerate(told)}
    return {
        "BLEU-1 to 4": lambda: Bleu(4).compute_score(gts, res, verbose=0),
        "ROUGE-L": lambda: Rouge().compute_score(gts, res),
        "CIDEr-D": lambda: Cider().compute_score(gts, res),
    }[metric]


def _tokens(told: list[str], gold: list[str]) -> tuple[list[str], list[str]]:
    ptb._lex_piece.cache_clear()  # pieces remembered from the call before would make it look faster than it is
    return ptb.tokenize(told, as_lines=True), ptb.tokenize(gold, as_lines=True)


def _java(told: list[str], gold: list[list[str]]) -> tuple[list[str], list[str]]:
    """As COCO's evaluation calls it: once for the hypotheses, once for the references."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    res = {i: [{"caption": caption}] for i, caption in enumerate(told)}
    gts = {i: [{"caption": caption} for caption in captions] for i, captions in enumerate(gold)}
    with _quiet():
        tokens = [PTBTokenizer().tokenize(captions) for captions in (res, gts)]
    return list(chain.from_iterable(tokens[0].values())), list(chain.from_iterable(tokens[1].values()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Java writes its speed to the file descriptor of stderr."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
