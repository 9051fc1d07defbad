"""Sharpness and agreement of maps: worked values, SciPy, and what holds for any map."""

import math

import numpy as np
import pytest

from vitcap.metrics import sharpness as s

A, C = (0.4, 0.3, 0.2, 0.1), (0.35, 0.4, 0.15, 0.1)
SPIKES = [[0.02, 0.03, 0.02, 0.01], [0.03, 0.16, 0.14, 0.02], [0.02, 0.18, 0.20, 0.03], [0.09, 0.02, 0.02, 0.01]]


@pytest.mark.parametrize(
    ("p", "nats", "bits", "share", "patches", "gini", "hoyer"),
    [
        ((0.7, 0.1, 0.1, 0.1), 0.940448, 1.356780, 0.678390, 2.561129, 0.45, 0.613250),
        (A, 1.279854, 1.846439, 0.923220, 3.596115, 0.25, 0.174258),
        ((0.25,) * 4, 1.386294, 2, 1, 4, 0, 0),
        ((0, 1, 0, 0), 0, 0, 0, 1, 0.75, 1),
    ],
)
@pytest.mark.parametrize("scale", [1, 1e-6, 37.0])
def test_worked_values_whatever_the_scale_and_shape(p, nats, bits, share, patches, gini, hoyer, scale):
    values = scale * np.array(p).reshape(2, 2)
    found = (
        s.entropy(values),
        s.entropy(values, base=2),
        s.normalised_entropy(values),
        s.effective_patches(values),
        s.gini(values),
        s.hoyer(values),
    )
    assert found == pytest.approx((nats, bits, share, patches, gini, hoyer), abs=1e-6)
    assert s.Sharpness.of(values) == s.Sharpness(*found[2:], s.top_mass(values, 1))


def test_mass_of_the_largest_and_cells_for_a_mass():
    assert s.top_mass(A, 1) == pytest.approx(0.4)
    assert s.top_mass(A, 3) == pytest.approx(0.9)
    assert s.top_mass(A, 4) == 1
    assert s.cells_for_mass(SPIKES, 0.6) == 4
    assert [s.cells_for_mass(A, share) for share in (0.4, 0.41, 0.7, 0.9, 1.0)] == [1, 2, 2, 3, 4]
    # DINO's rule: in ascending order, all but those whose cumulative sum is at most 1 - share
    assert int((np.cumsum(np.sort(np.ravel(SPIKES))) > 1 - 0.6).sum()) == s.cells_for_mass(SPIKES, 0.6)


def test_agreement_of_two_maps():
    assert s.js_divergence(A, C) == pytest.approx(0.006209, abs=1e-6)
    assert s.pearson(A, C) == pytest.approx(0.877058, abs=1e-6)
    assert s.spearman(A, C) == pytest.approx(0.8)
    back = A[::-1]
    assert s.js_divergence(A, back) == pytest.approx(0.106440, abs=1e-6)
    assert s.kl_divergence(A, back) == pytest.approx(0.456435, abs=1e-6)
    assert s.pearson(A, back) == pytest.approx(-1)
    assert s.js_divergence((1, 0), (0, 1)) == pytest.approx(math.log(2))
    assert s.kl_divergence((1, 0), (0, 1)) == math.inf
    assert s.kl_divergence((0, 1), (1, 1)) == pytest.approx(math.log(2))


def test_scipy_agrees_on_random_maps_with_ties():
    stats, distance = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.spatial.distance")
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 5, (2, 3, 4)) + rng.integers(0, 2, (2, 1, 1)) * 0.5
        a[0, 0] = b[0, 0] = 5
        assert s.spearman(a, b) == pytest.approx(stats.spearmanr(a.ravel(), b.ravel()).statistic)
        assert s.pearson(a, b) == pytest.approx(stats.pearsonr(a.ravel(), b.ravel()).statistic)
        assert s.js_divergence(a, b) == pytest.approx(distance.jensenshannon(a.ravel(), b.ravel()) ** 2)
        assert s.entropy(a) == pytest.approx(stats.entropy(a.ravel()))


def test_a_constant_map_agrees_with_nothing():
    assert math.isnan(s.spearman((1, 1, 1), (1, 2, 3)))
    assert math.isnan(s.pearson([0.1] * 7, range(7)))
    assert math.isnan(s.pearson(range(3), (0, 0, 0)))
    assert s.pearson(np.array([0, 1, 2]) * 1e-200, (0, 1, 2)) == pytest.approx(1)  # small is not constant


def test_what_is_no_map():
    with pytest.raises(ValueError, match="0 everywhere"):
        s.entropy(np.zeros((2, 2)))
    for values in ([-0.1, 1.1], [math.nan, 1], []):
        with pytest.raises(ValueError, match="finite values are wanted, none below 0"):
            s.gini(values)
    with pytest.raises(ValueError, match="maps of 2 and 3 values"):
        s.js_divergence((1, 2), (1, 2, 3))
    with pytest.raises(ValueError, match="top k=5: the map has 4"):
        s.top_mass(A, 5)
    with pytest.raises(ValueError, match="share 0"):
        s.cells_for_mass(A, 0)
    assert s.normalised_entropy([3.0]) == s.hoyer([3.0]) == 0
