"""Alignment error rate, links from attention, and scores by sentence length, against numbers worked out by hand."""

import numpy as np
import pytest

from vitcap.metrics.alignment import (
    alignment_scores,
    diagonal_share,
    equal_bins,
    links_from_attention,
    merge_pieces,
    peak_share,
    scores_by_length,
)
from vitcap.metrics.bleu import bleu

SURE = {(0, 0), (1, 1), (2, 2)}


def test_error_rate_with_sure_and_possible_links():
    """A = {00 11 21 33}, S = {00 11 22}, P = S + {21 32}: |A and S| = 2, |A and P| = 3, |A| = 4, |S| = 3."""
    scores = alignment_scores([{(0, 0), (1, 1), (2, 1), (3, 3)}], [SURE], [SURE | {(2, 1), (3, 2)}])
    assert scores.precision == 3 / 4
    assert scores.recall == 2 / 3
    assert scores.error_rate == pytest.approx(1 - (2 + 3) / (4 + 3))


def test_sure_links_are_possible_without_being_named_twice():
    predicted = [{(0, 0), (1, 1), (2, 1)}]
    assert alignment_scores(predicted, [SURE], [{(2, 1)}]) == alignment_scores(predicted, [SURE], [SURE | {(2, 1)}])


def test_error_rate_of_the_example_in_nltk():
    """The documentation of nltk.translate.metrics.alignment_error_rate: 0.6666666666666667."""
    assert alignment_scores([{(0, 0), (1, 2), (2, 1)}], [SURE]).error_rate == pytest.approx(0.6666666666666667)


def test_without_possible_links_the_error_rate_is_one_minus_f1():
    predicted, sure = [{(0, 0), (1, 2)}, {(0, 1)}], [{(0, 0), (1, 1), (2, 2)}, {(0, 1), (1, 0)}]
    scores = alignment_scores(predicted, sure)
    assert scores[:2] == (2 / 3, 2 / 5)
    f1 = 2 * scores.precision * scores.recall / (scores.precision + scores.recall)
    assert scores.error_rate == pytest.approx(1 - f1)


def test_the_corpus_is_pooled_not_averaged():
    perfect, wrong = {(i, i) for i in range(9)}, {(0, 1)}
    assert alignment_scores([perfect, wrong], [perfect, {(0, 0)}]).error_rate == pytest.approx(1 - 18 / 20)


def test_extremes_of_the_error_rate():
    assert alignment_scores([SURE], [SURE]) == (1, 1, 0)
    assert alignment_scores([set()], [SURE]) == (0, 0, 1)
    with pytest.raises(ValueError, match="no links in the 1 sentences"):
        alignment_scores([set()], [set()])
    with pytest.raises(ValueError, match="alignments of 2 sentences against 1"):
        alignment_scores([SURE, SURE], [SURE])


WEIGHTS = [[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]


def test_links_are_source_word_then_target_word():
    assert links_from_attention(WEIGHTS) == {(1, 0), (0, 1)}
    assert links_from_attention(WEIGHTS, threshold=0.4) == {(1, 0), (0, 1), (2, 1)}
    assert links_from_attention(WEIGHTS, threshold=0.9) == frozenset()
    assert links_from_attention([[0.5, 0.5]]) == {(0, 0)}
    assert all(type(i) is int for link in links_from_attention(np.array(WEIGHTS), threshold=0.1) for i in link)


def test_pieces_of_words_are_summed_over_the_source_and_averaged_over_the_target():
    weights = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 0.0, 1.0, 0.0]]
    merged = merge_pieces(weights, [(0, 2), (2, 3)], [(0, 2), (2, 3)])  # the last column is the end of the sentence
    np.testing.assert_allclose(merged, [[(0.3 + 0.6) / 2, (0.3 + 0.1) / 2], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"source span \(3, 5\) is empty or outside the 4 source tokens"):
        merge_pieces(weights, [(3, 5)], [(0, 1)])
    with pytest.raises(ValueError, match=r"target span \(1, 1\) is empty or outside the 3 target tokens"):
        merge_pieces(weights, [(0, 1)], [(1, 1)])


def test_share_of_steps_on_the_expected_column():
    assert peak_share([WEIGHTS, [[0.2, 0.8]]], [[1, 2], [1]]) == 2 / 3
    backwards = np.eye(4)[::-1]
    bent = backwards.copy()
    bent[0] = [1, 0, 0, 0]
    assert diagonal_share([backwards], anti=True) == 1
    assert diagonal_share([np.eye(3), np.eye(4)]) == 1
    assert diagonal_share([backwards]) == 0
    assert diagonal_share([bent, np.eye(2)[::-1]], anti=True) == 5 / 6
    with pytest.raises(ValueError, match="as many rows as columns; got 2 and 3"):
        diagonal_share([WEIGHTS])
    with pytest.raises(ValueError, match="2 rows of attention, but 1 expected"):
        peak_share([WEIGHTS], [[0]])
    with pytest.raises(ValueError, match="2 sentences, but expected columns of 1"):
        peak_share([WEIGHTS, WEIGHTS], [[0, 0]])
    with pytest.raises(ValueError, match="no steps"):
        peak_share([], [])


def test_attention_that_is_none():
    with pytest.raises(ValueError, match=r"shape \(2,\); expected \(target words, source words\)"):
        links_from_attention([0.5, 0.5])
    with pytest.raises(ValueError, match="not finite"):
        links_from_attention([[0.5, np.nan]])


SOURCES = ["a b", "a b c", "a b c d e f", "a b c d e f g", "a"]
HYPOTHESES = ["u v w x", "u v w x y", "u v w x", "u v w x y z", "t"]
REFERENCES = [["u v w x"], ["o p", "u v w x y"], ["u v w x y"], ["u v w z y x"], ["s"]]


def test_scores_of_each_range_of_lengths():
    short, long = scores_by_length(SOURCES, HYPOTHESES, REFERENCES, bins=[(1, 3), (4, 5), (6, 9)])
    assert (short.low, short.high, short.count, short.exact) == (1, 3, 3, 2 / 3)
    assert (long.low, long.high, long.count, long.exact) == (6, 9, 2, 0)
    assert short.bleu == bleu([HYPOTHESES[i] for i in (0, 1, 4)], [REFERENCES[i] for i in (0, 1, 4)])[0][3]
    # By hand: matches 4+6 of 10 words, 3+2 of 8 bigrams, 2+1 of 6, 1+0 of 4; lengths 10 against 11.
    by_hand = (10 / 10 * 5 / 8 * 3 / 6 * 1 / 4) ** 0.25 * np.exp(1 - 11 / 10)
    assert long.bleu == pytest.approx(by_hand, abs=1e-6)


def test_ranges_are_found_where_none_are_given():
    scores = scores_by_length(SOURCES, HYPOTHESES, REFERENCES)
    assert sum(score.count for score in scores) == len(SOURCES)
    assert equal_bins([3, 3, 4, 5, 6, 7, 8, 20]) == [(3, 3), (4, 5), (6, 7), (8, 20)]
    assert equal_bins([5] * 10) == [(5, 5)]
    assert equal_bins(range(1, 101), 2) == [(1, 50), (51, 100)]


def test_scores_that_do_not_fit():
    with pytest.raises(ValueError, match=r"a source of 6 words is in none of the ranges \[\(1, 5\)\]"):
        scores_by_length(SOURCES, HYPOTHESES, REFERENCES, bins=[(1, 5)])
    with pytest.raises(ValueError, match="4 sources but 5 hypotheses"):
        scores_by_length(SOURCES[:4], HYPOTHESES, REFERENCES)
    with pytest.raises(ValueError, match="5 hypotheses but references of 4"):
        scores_by_length(SOURCES, HYPOTHESES, REFERENCES[:4])


@pytest.mark.parametrize("links", ["0-0 1-1", [0, 1], [(0, 0, 0)], [[0, 0]]])
def test_what_is_no_link_is_named(links) -> None:
    with pytest.raises(ValueError, match=r"^sentence 1: .* is no link: pairs"):
        alignment_scores([[(0, 0)], links], [[(0, 0)], [(0, 0)]])


@pytest.mark.parametrize("threshold", [float("nan"), 2.0, -0.1])
def test_a_threshold_that_no_weight_can_reach(threshold) -> None:
    with pytest.raises(ValueError, match=r"^threshold=.*: a number from 0 to 1 is wanted$"):
        links_from_attention([[0.1, 0.9]], threshold=threshold)


def test_no_ranges_of_lengths() -> None:
    with pytest.raises(ValueError, match=r"^groups=0: a whole number of at least 1"):
        equal_bins([1, 2], 0)
