"""What captions look like, whatever their scores: variety, length, endings, and whether they are about their images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from vitcap.metrics.bleu import count_ngrams
from vitcap.metrics.cider import DocumentFrequencies, cider_d

BAD_ENDINGS = frozenset(
    "a an the in for at of with before after on upon near to is are am".split()  # noqa: SIM905
)
"""Words on which hardly any finished caption ends, the list that self-critical training is judged by in the field
(Guo et al. 2018, "Improving Reinforcement Learning Based Image Captioning with Natural Language Prior"). Without the
end token in its reward, such training produces these endings; of COCO's human captions 0.5 % have one."""

COLLAPSE = 0.05
"""Share of different captions below which a set of at least 20 counts as collapsed."""


def statistics(
    captions: Sequence[str],
    *,
    references: Sequence[Sequence[str]] | None = None,
    training: Collection[str] | None = None,
) -> dict[str, Any]:
    """Facts about tokenised captions (words separated by blanks), as plain JSON types; shares are 0..1.

    caption_length: words, {"min", "mean", "max"}. vocabulary_used: different words; vocabulary_of_references: those of
    `references`, if given. distinct_1, distinct_2: different words and bigrams, divided by the number of words of all
    captions (Li et al. 2016, arXiv:1510.03055; falls as the set grows, so compare sets of one size). unique_captions:
    share of different captions. most_frequent_caption: {"caption", "share"}. novel_captions: share not among
    `training` (tokenised as well), None without. repeated_word_rate: share with a word twice in a row.
    bad_ending_rate: share that ends in one of BAD_ENDINGS. empty_captions: how many have no word.
    Raises ValueError for no captions.
    """
    if not captions:
        raise ValueError("no captions to describe")
    words = [caption.split() for caption in captions]
    lengths = [len(w) for w in words]
    total = max(sum(lengths), 1)
    distinct = [float((grams.gram.max(initial=-1) + 1) / total) for grams in count_ngrams(words, 2)]
    counts = Counter(captions)
    most = min(counts, key=lambda caption: (-counts[caption], caption))
    facts: dict[str, Any] = {
        "caption_length": {"min": min(lengths), "mean": float(np.mean(lengths)), "max": max(lengths)},
        "vocabulary_used": len(set(chain.from_iterable(words))),
    }
    if references is not None:
        facts["vocabulary_of_references"] = len({w for group in references for text in group for w in text.split()})
    return facts | {
        "distinct_1": distinct[0],
        "distinct_2": distinct[1],
        "unique_captions": len(counts) / len(captions),
        "most_frequent_caption": {"caption": most, "share": counts[most] / len(captions)},
        "novel_captions": None if training is None else sum(c not in training for c in captions) / len(captions),
        "repeated_word_rate": sum(any(a == b for a, b in pairwise(w)) for w in words) / len(words),
        "bad_ending_rate": sum(bool(w) and w[-1] in BAD_ENDINGS for w in words) / len(words),
        "empty_captions": lengths.count(0),
    }


# Thai, Lao, Burmese, Khmer, Japanese, Chinese: no blanks between words.
_WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


def is_unsegmented(captions: Sequence[str]) -> bool:
    """Whether tokenised captions are mostly in a script without blanks, and have hardly more than one word each."""
    text = "".join(captions)
    words = sum(len(caption.split()) for caption in captions)
    return words < 3 * len(captions) and 2 * len(_WITHOUT_BLANKS.findall(text)) > len(text.replace(" ", "")) > 0


def warnings(facts: Mapping[str, Any], *, images: int) -> list[str]:
    """Signs of trouble in what `statistics` found, one sentence each."""
    found = []
    most, unique = facts["most_frequent_caption"], facts["unique_captions"]
    if (images >= 20 and (unique < COLLAPSE or most["share"] > 0.5)) or (images > 2 and most["share"] == 1):
        found.append(
            f"only {round(unique * images)} different captions for {images} images, {most['caption']!r} for "
            f"{round(most['share'] * images)} of them: the model hardly looks at the pictures"
        )
    if facts["empty_captions"]:
        found.append(f"{facts['empty_captions']} captions are empty after tokenisation and score 0")
    return found


def shuffled_control(
    hypotheses: Mapping[Any, str],
    references: Mapping[Any, Sequence[str]],
    *,
    seed: int = 0,
    frequencies: DocumentFrequencies | None = None,
) -> float:
    """CIDEr-D (0..10) of the same captions, each against the references of another image.

    It is what the captions score without regard to the pictures; a model that looks at them is far above it. Both are
    tokenised; every image gets the references of another one, on one random cycle through all of them (Sattolo 1986),
    which depends on the ids and the seed but not on the order of the ids. frequencies: as of `cider_d`.
    Raises ValueError for fewer than two images and if the ids differ.
    """
    if hypotheses.keys() != references.keys():
        raise ValueError("the hypotheses and the references are of different images")
    if len(references) < 2:
        raise ValueError(f"{len(references)} images: there are no references of another image")
    ids = sorted(references, key=lambda i: (type(i).__name__, i))
    cycle = np.random.default_rng(seed).permutation(len(ids))
    other = dict(zip(cycle.tolist(), np.roll(cycle, 1).tolist(), strict=True))
    told = [hypotheses[i] for i in ids]
    return cider_d(told, [references[ids[other[k]]] for k in range(len(ids))], frequencies=frequencies)[0]
