"""Statistics of captions against counting by hand; the control that takes the pictures away."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from vitcap.metrics.cider import DocumentFrequencies, cider_d
from vitcap.metrics.diversity import BAD_ENDINGS, shuffled_control, statistics, warnings


def test_statistics_by_hand() -> None:
    captions = ["a dog runs", "a dog runs", "the the cat with a", ""]
    facts = statistics(captions, references=[["a dog"], ["x y", "a z"]], training={"a dog runs"})
    assert facts == {
        "caption_length": {"min": 0, "mean": 11 / 4, "max": 5},
        "vocabulary_used": 6,
        "vocabulary_of_references": 5,
        "distinct_1": 6 / 11,
        # a dog, dog runs, the the, the cat, cat with, with a: over words, not over bigrams, as Li et al. define it
        "distinct_2": 6 / 11,
        "unique_captions": 3 / 4,
        "most_frequent_caption": {"caption": "a dog runs", "share": 1 / 2},
        "novel_captions": 2 / 4,
        "repeated_word_rate": 1 / 4,
        "bad_ending_rate": 1 / 4,
        "empty_captions": 1,
    }
    assert warnings(facts, images=4) == ["1 captions are empty after tokenisation and score 0"]
    assert statistics(["a dog"])["novel_captions"] is None
    with pytest.raises(ValueError, match="no captions"):
        statistics([])


def test_statistics_against_sets() -> None:
    draw = random.Random(0)
    captions = [" ".join(draw.choices("abcdefg", k=draw.randint(0, 9))) for _ in range(200)]
    facts = statistics(captions)
    words = [c.split() for c in captions]
    total = sum(map(len, words))
    assert facts["distinct_1"] == len({w for ws in words for w in ws}) / total
    assert facts["distinct_2"] == len({p for ws in words for p in pairwise(ws)}) / total
    assert facts["bad_ending_rate"] == sum(c.endswith("a") for c in captions) / 200


def test_finished_captions_have_no_bad_ending() -> None:
    assert {"a", "an", "the", "of", "with", "in", "on"} <= BAD_ENDINGS
    assert statistics(["a man with a hat", "looking up", "two dogs sitting down"])["bad_ending_rate"] == 0
    assert statistics(["a man with a", "a cat sitting on"])["bad_ending_rate"] == 1


@pytest.mark.parametrize(
    ("captions", "words"),
    [
        (["a man"] * 30, "only 1 different captions for 30 images, 'a man' for 30 of them"),
        (
            [f"a man {i}" for i in range(14)] + ["a man"] * 16,
            "only 15 different captions for 30 images, 'a man' for 16",
        ),
        ([f"w{i % 4}" for i in range(100)], "only 4 different captions for 100 images"),
        ([f"a man {i}" for i in range(15)] + ["a man"] * 15, None),
        ([f"w{i % 5}" for i in range(100)], None),
        (["a man"] * 19, "only 1 different captions for 19 images, 'a man' for 19"),
        (["a man"] * 2, None),
        (["a man"] * 18 + ["a dog"], None),
    ],
)
def test_collapse(captions, words) -> None:
    found = warnings(statistics(captions), images=len(captions))
    assert [words in text for text in found] == [True] if words else found == []


def test_control_pairs_every_caption_with_another_image() -> None:
    """Image i shares its words with no other, so a caption scores only if it meets its own references."""
    references = {i: [f"a{i} b{i} c{i} d{i}"] for i in range(7)}
    own = {i: captions[0] for i, captions in references.items()}
    assert [shuffled_control(own, references, seed=seed) for seed in range(20)] == [0.0] * 20
    frequencies = DocumentFrequencies.of(list(references.values()))
    assert shuffled_control(own, references, frequencies=frequencies) == 0
    assert cider_d(list(own.values()), list(references.values()))[0] == pytest.approx(10)


def test_control_of_one_caption_for_all_images_is_its_score() -> None:
    draw = random.Random(1)
    references = {i: [" ".join(draw.choices("abcdefg", k=8)) for _ in range(3)] for i in range(20)}
    blind = dict.fromkeys(references, "a b c d e")
    value = cider_d(list(blind.values()), list(references.values()))[0]
    assert value > 0
    assert shuffled_control(blind, references) == pytest.approx(value)


def test_control_depends_on_the_seed_alone() -> None:
    draw = random.Random(2)
    references = {np.int64(i): [" ".join(draw.choices("abcdefg", k=8))] for i in range(20)}
    told = {i: " ".join(draw.choices("abcdefg", k=8)) for i in references}
    value = shuffled_control(told, references, seed=3)
    reordered = dict(reversed(told.items())), dict(reversed(references.items()))
    assert shuffled_control(*reordered, seed=3) == pytest.approx(value, rel=1e-12)
    assert len({shuffled_control(told, references, seed=seed) for seed in range(5)}) == 5


def test_control_refuses() -> None:
    with pytest.raises(ValueError, match="1 images"):
        shuffled_control({1: "a"}, {1: ["a"]})
    with pytest.raises(ValueError, match="different images"):
        shuffled_control({1: "a", 2: "b"}, {1: ["a"], 3: ["b"]})
