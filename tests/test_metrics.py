"""Caption scores against pycocoevalcap, brute force and figures worked out by hand; the score card; the COCO files."""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from vitcap.metrics.bleu import bleu, count_ngrams
from vitcap.metrics.captions import CONTROL, score
from vitcap.metrics.cider import DocumentFrequencies, cider_d
from vitcap.metrics.ptb import tokenize
from vitcap.metrics.results import read_references, read_results
from vitcap.metrics.rouge import rouge_l


def corpus(seed: int, images: int = 60) -> tuple[list[str], list[list[str]]]:
    """Captions over a small vocabulary, so that n-grams meet; of 0 to 14 words, 1 to 6 references."""
    draw = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(25)]

    def caption() -> str:
        return " ".join(draw.choices(vocabulary, weights=range(25, 0, -1), k=draw.randint(0, 14)))

    references = [[caption() for _ in range(draw.randint(1, 6))] for _ in range(images)]
    hypotheses = [caption() if draw.random() < 0.7 else draw.choice(captions) for captions in references]
    return hypotheses, references


def real() -> tuple[dict[int, str], dict[int, list[str]], dict[str, float]]:
    if "VITCAP_DATA" not in os.environ:
        pytest.skip("needs VITCAP_DATA")
    root = Path(os.environ["VITCAP_DATA"]) / "coco_caption_eval"
    references = read_references(root / "captions_val2017_refs4.json")
    hypotheses = read_results(root / "captions_val2017_human_results.json", references)
    return hypotheses, references, json.loads((root / "expected_scores.json").read_text())


def assert_as_pycocoevalcap(hypotheses: list[str], references: list[list[str]]) -> None:
    pytest.importorskip("pycocoevalcap")
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    gts, res = dict(enumerate(references)), {i: [caption] for i, caption in enumerate(hypotheses)}
    close = {"rtol": 0, "atol": 1e-9}
    value, each = Bleu(4).compute_score(gts, res, verbose=0)
    ours, ours_each = bleu(hypotheses, references)
    np.testing.assert_allclose(ours, value, **close)
    np.testing.assert_allclose(ours_each, each, **close)
    for theirs, mine in ((Rouge(), rouge_l), (Cider(), cider_d)):
        value, each = theirs.compute_score(gts, res)
        ours, ours_each = mine(hypotheses, references)
        np.testing.assert_allclose(ours, value, **close)
        np.testing.assert_allclose(ours_each, each, **close)


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_pycocoevalcap(seed: int) -> None:
    assert_as_pycocoevalcap(*corpus(seed))


@pytest.mark.parametrize("images", [1500, pytest.param(5000, marks=pytest.mark.slow)])
def test_scores_are_those_of_pycocoevalcap_on_coco(images: int) -> None:
    hypotheses, references, _ = real()
    ids = list(references)[:images]
    assert_as_pycocoevalcap(tokenize(hypotheses[i] for i in ids), [tokenize(references[i]) for i in ids])


def test_no_break_spaces_split_words_as_in_pycocoevalcap() -> None:
    """They come from the tokeniser: words apart in BLEU and CIDEr-D, one word in ROUGE-L."""
    hypotheses, references = corpus(1)
    hypotheses[0], references[0] = "a cup of 3\u00a01/2 w1", ["a cup of 3 1/2 w1", "3\u00a01/2 cups of w1"]
    assert_as_pycocoevalcap(hypotheses, references)


@pytest.mark.parametrize(("as_lines", "error"), [(True, 1e-12), (False, 1e-6)])
def test_expected_scores_of_coco(as_lines: bool, error: float) -> None:
    """To the last digits if the captions are read as COCO's program reads them; else three of them end in "k."."""
    hypotheses, references, expected = real()
    result = score(hypotheses, references, as_lines=as_lines)
    names = {"ROUGE_L": "ROUGE-L", "CIDEr": "CIDEr-D"}
    for name in expected.keys() - {"METEOR"}:
        assert result.corpus[names.get(name, name)] == pytest.approx(expected[name], rel=0, abs=error), name
    assert result.facts["images"] == 5000
    assert result.facts["references"] == 20_014


@pytest.mark.parametrize("n", [4, 7])  # 7: the n-gram numbers do not fit into 64 bits and must be renumbered
def test_count_ngrams_counts(n: int) -> None:
    draw = random.Random(0)
    sentences = [[f"w{draw.randint(0, 400) ** 2 // 200}" for _ in range(draw.randint(0, 15))] for _ in range(300)]
    for order, grams in enumerate(count_ngrams(sentences, n, words=True), 1):
        want = Counter(
            (" ".join(s[j : j + order]), i) for i, s in enumerate(sentences) for j in range(len(s) - order + 1)
        )
        assert grams.words is not None
        texts = [grams.words[g] for g in grams.gram]
        assert dict(zip(zip(texts, grams.sentence.tolist(), strict=True), grams.times.tolist(), strict=True)) == want
        assert len(set(grams.words)) == len(grams.words)


def test_bleu_by_hand() -> None:
    # "the" is clipped at its 2 in the first reference: 2 of 7; the closest length is 7 -> no penalty (Papineni et al.)
    corpus_scores, _ = bleu(
        ["the the the the the the the"], [["the cat is on the mat now", "there is a cat on the mat"]]
    )
    assert corpus_scores[0] == pytest.approx(2 / 7)
    # 3 of 3 words, references of 4 and 2 words: equally far, so the shorter one counts and there is no penalty
    assert bleu(["a b c"], [["a b c d", "a b"]])[0][0] == pytest.approx(1)
    assert bleu(["a b c"], [["a b c d"]])[0][0] == pytest.approx(math.exp(1 - 4 / 3))


@pytest.mark.parametrize("seed", range(3))
def test_rouge_against_dynamic_programming(seed: int) -> None:
    def common(a: list[str], b: list[str]) -> int:
        table = np.zeros((len(a) + 1, len(b) + 1), int)
        for i in range(len(a)):
            for j in range(len(b)):
                table[i + 1, j + 1] = table[i, j] + 1 if a[i] == b[j] else max(table[i, j + 1], table[i + 1, j])
        return int(table[-1, -1])

    hypotheses, references = corpus(seed, images=30)
    hypotheses.append(" ".join(f"w{i % 7}" for i in range(200)))  # longer than a machine word
    references.append([" ".join(f"w{i % 5}" for i in range(150))])
    for hypothesis, captions, value in zip(hypotheses, references, rouge_l(hypotheses, references)[1], strict=True):
        a = hypothesis.split(" ")
        p = max(common(a, c.split(" ")) / len(a) for c in captions)
        r = max(common(a, c.split(" ")) / len(c.split(" ")) for c in captions)
        assert value == pytest.approx((1 + 1.44) * p * r / (r + 1.44 * p) if p * r else 0)


def test_cider_scale() -> None:
    hypotheses = ["a b", "c d e", "f g h i", "j k l m n o"]
    _, each = cider_d(hypotheses, [[h] for h in hypotheses])
    np.testing.assert_allclose(each, [5, 7.5, 10, 10])


def test_cider_counts_bigrams_in_the_length_penalty() -> None:
    # One word against none: lengths 0 and 0 in bigrams, so words that are not shared are all that lowers the score.
    _, each = cider_d(["a", "b c"], [["a"], ["b c d e f"]])
    assert each[0] == pytest.approx(2.5)
    idf = math.log(2)
    unigrams = 2 * idf**2 / (math.sqrt(2) * idf * math.sqrt(5) * idf)
    bigrams = idf**2 / (idf * 2 * idf)
    assert each[1] == pytest.approx(10 / 4 * (unigrams + bigrams) * math.exp(-((1 - 4) ** 2) / 72))


def test_cider_with_frequencies_from_elsewhere() -> None:
    hypotheses, references = corpus(3)
    frequencies = DocumentFrequencies.of(references)
    np.testing.assert_allclose(
        cider_d(hypotheses, references, frequencies=frequencies)[1], cider_d(hypotheses, references)[1]
    )
    alone = cider_d(hypotheses[:1], references[:1], frequencies=frequencies)[1]
    np.testing.assert_allclose(alone, cider_d(hypotheses, references)[1][:1])
    brute = Counter(w for captions in references for w in {w for c in captions for w in c.split()})
    assert {k: v for k, v in frequencies.counts.items() if " " not in k} == brute
    assert frequencies.images == len(references)


def test_cider_of_one_image_is_an_error() -> None:
    with pytest.raises(ValueError, match="not defined on one image"):
        cider_d(["a b"], [["a b"]])


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "1 hypotheses but references of 2"),
        ([], [], "no images"),
        (["a", "b"], [["a"], []], "no reference captions for 1 of the images, the first at position 1"),
        ("ab", [["a"], ["b"]], "list of captions"),
        (["a"], ["a"], "list of lists"),
    ],
)
@pytest.mark.parametrize("metric", [bleu, rouge_l, cider_d])
def test_metrics_refuse(metric, hypotheses, references, message) -> None:
    with pytest.raises(ValueError, match=message):
        metric(hypotheses, references)


REFERENCES = {1: ["A red box.", "one red box"], 2: ["a dog runs on grass"], 7: ["two men, and a horse", "two men"]}
HYPOTHESES = {1: "a red box", 2: "A dog runs on the", 7: "men men and a horse"}


def test_score_card() -> None:
    result = score(HYPOTHESES, REFERENCES, about={"split": "val", "seed": 3}, training=["A red  box!"])
    assert list(result.corpus) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D"]
    assert all(list(scores) == list(result.corpus) for scores in result.per_image.values())
    told, gold = tokenize(HYPOTHESES.values()), [tokenize(r) for r in REFERENCES.values()]
    assert result.corpus["BLEU-2"] == bleu(told, gold)[0][1]
    assert result.corpus["CIDEr-D"] == cider_d(told, gold)[0]
    assert result.per_image[1]["ROUGE-L"] == pytest.approx(1)
    assert result.per_image[2]["CIDEr-D"] == cider_d(told, gold)[1][1]
    wanted = {
        "split": "val",
        "seed": 3,
        "images": 3,
        "references": 5,
        "references_per_image": {"min": 1, "mean": 5 / 3, "max": 2},
        "idf": "references scored (3 images)",
        "caption_length": {"min": 3, "mean": 13 / 3, "max": 5},
        "vocabulary_used": 10,
        "distinct_1": 10 / 13,
        "distinct_2": 10 / 13,
        "unique_captions": 1.0,
        "most_frequent_caption": {"caption": "a dog runs on the", "share": 1 / 3},
        "novel_captions": 2 / 3,
        "repeated_word_rate": 1 / 3,
        "bad_ending_rate": 1 / 3,
        "empty_captions": 0,
        "warnings": [],
    }
    assert {name: result.facts[name] for name in wanted} == wanted
    assert "PTB" in result.facts["tokeniser"]
    json.dumps(result.to_dict())


def test_table_is_times_100() -> None:
    result = score(HYPOTHESES, REFERENCES)
    lines = result.table().splitlines()
    assert lines[0] == "scores x 100"
    assert lines[5].split() == ["ROUGE-L", f"{100 * result.corpus['ROUGE-L']:.2f}"]
    assert lines[6].split()[:2] == ["CIDEr-D", f"{100 * result.corpus['CIDEr-D']:.2f}"]
    assert lines[6].endswith(f"({100 * result.facts[CONTROL]:.2f} against the references of other images)")
    assert CONTROL not in "".join(lines[7:])


def test_order_of_ids_does_not_matter() -> None:
    result = score(HYPOTHESES, REFERENCES)
    other = score(dict(reversed(HYPOTHESES.items())), dict(reversed(REFERENCES.items())))
    assert result.per_image == other.per_image
    assert result.corpus == pytest.approx(other.corpus)
    assert result.facts == other.facts


def test_line_breaks_leave_other_images_alone() -> None:
    told = {1: "a red\r\nbox", 2: "a dog\u2028runs", 7: "two men"}
    plain = {1: "a red box", 2: "a dog runs", 7: "two men"}
    assert score(told, REFERENCES).per_image == score(plain, REFERENCES).per_image


def test_cider_is_not_defined_on_one_image() -> None:
    result = score({1: "a red box"}, {1: ["a red box"]})
    assert result.corpus["CIDEr-D"] is None
    assert result.per_image[1]["CIDEr-D"] is None
    assert result.corpus["BLEU-1"] == pytest.approx(1)
    assert "not defined on one image" in result.facts["idf"]
    assert result.table().splitlines()[6].split() == ["CIDEr-D", "-"]
    frequencies = DocumentFrequencies.of([["a red box"], ["a blue ball"]])
    result = score({1: "a red box"}, {1: ["a red box"]}, frequencies=frequencies, idf="toys")
    assert result.corpus["CIDEr-D"] == pytest.approx(7.5)
    assert result.facts["idf"] == "toys (2 images)"


def test_warnings() -> None:
    references = {i: [f"picture {i}"] for i in range(30)}
    result = score(dict.fromkeys(references, "a man"), references)
    assert "only 1 different captions for 30 images, 'a man' for 30 of them" in result.facts["warnings"][0]
    assert "warnings" in result.table()
    result = score(references | dict.fromkeys(references, "."), references)
    assert result.facts["empty_captions"] == 30
    assert result.per_image[3]["CIDEr-D"] == 0


def test_captions_of_other_images_are_noticed() -> None:
    """The same 30 captions, each at its own image and each at the next one, where every second image looks alike."""
    references = {i: [f"a {'cat' if i % 2 else 'dog'} number {i} sits there"] for i in range(30)}
    own = {i: captions[0] for i, captions in references.items()}
    good = score(own, references)
    assert good.facts["warnings"] == []
    assert good.facts[CONTROL] < 0.5 * good.corpus["CIDEr-D"]
    blind = score({i: own[(i + 2) % 30] for i in own}, references)
    assert "against the references of other images" in blind.facts["warnings"][0]


def test_tokenized_captions_are_left_alone() -> None:
    references = {1: ["A . b"], 2: ["c d"]}
    result = score({1: "A . b", 2: "c d"}, references, tokenized=True)
    assert result.facts["caption_length"]["max"] == 3
    assert result.facts["tokeniser"].startswith("none")


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ({}, {}, "no images to score"),
        ({1: "a"}, REFERENCES, "1 of 3 images have a caption, missing are 2, 7"),
        (HYPOTHESES | {8: "a", 9: "b"}, REFERENCES, "references have no images 8, 9"),
        (
            {str(i): c for i, c in HYPOTHESES.items()},
            REFERENCES,
            r"ids are str \('1'\), those of the references int \(1\)",
        ),
        (HYPOTHESES | {7: None}, REFERENCES, r"no text: 7 \(found NoneType\)"),
        (HYPOTHESES, REFERENCES | {2: []}, "without a reference caption: 2"),
        (HYPOTHESES, REFERENCES | {2: "a dog"}, "list of captions for each image; they are not for 2"),
        (HYPOTHESES, REFERENCES | {2: ["a dog", None]}, "list of captions for each image; they are not for 2"),
    ],
)
def test_score_refuses(hypotheses, references, message) -> None:
    with pytest.raises(ValueError, match=message):
        score(hypotheses, references)
