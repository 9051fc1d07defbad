"""Intervals by drawing pictures again, against the normal approximation."""

import numpy as np
import pytest

from vitcap.metrics.bootstrap import class_ratio, interval, mean_interval, ratio, resamples


def test_intervals_resample_pictures_and_are_seeded():
    rng = np.random.default_rng(0)
    words = rng.integers(1, 4, 300)
    sums = rng.normal(2.0, 1.0, 300) * words
    drawn = resamples(300, seed=5, rounds=2000)
    assert (drawn.sum(1) == 300).all()
    assert (drawn == resamples(300, seed=5, rounds=2000)).all()
    value, (low, high) = ratio(sums, words, drawn)
    assert value == pytest.approx(sums.sum() / words.sum())
    # The delta method's standard error of a ratio.
    error = np.sqrt(((sums - value * words) ** 2).sum()) / words.sum()
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.08)
    assert low < value < high
    assert interval([np.nan]) is None
    assert interval([1.0, np.nan, 1.0]) == (1.0, 1.0)


def test_bootstrap_interval_of_a_mean():
    values = np.random.default_rng(0).normal(2, 1, 400)
    low, high = mean_interval(values, seed=0)
    half = 1.96 * values.std() / 20  # the normal interval
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02)
    assert mean_interval(values, seed=0) == (low, high) != mean_interval(values, seed=1)
    assert mean_interval([3.0, 3.0], seed=0) == (3, 3)


def test_mean_of_classes_and_of_all_alike():
    # Hits of given words: dog 1 1, ball 0, man 0, hat 1, cat none; pictures (dog, ball), (dog, man), (hat).
    hits = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
    counts = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0]])
    drawn = resamples(3, seed=1, rounds=200)
    value, limits = class_ratio(hits, counts, drawn)
    assert value == 0.5
    assert ratio(hits.sum(1), counts.sum(1), drawn)[0] == pytest.approx(0.6)
    means = []
    for weights in drawn:
        of_class = {}
        for picture, times in enumerate(weights):
            for name in range(5):
                of_class.setdefault(name, []).extend([hits[picture, name]] * times * counts[picture, name])
        means.append(np.mean([np.mean(own) for own in of_class.values() if own]))
    assert limits == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert class_ratio(counts, counts, drawn) == (1.0, (1.0, 1.0)), "a constant"
    empty, none = class_ratio(hits * 0, counts * 0, drawn)
    assert np.isnan(empty)
    assert none is None
