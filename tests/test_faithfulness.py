"""Removal curves and imputation: worked values, brute force, and maps that say nothing."""

import numpy as np
import pytest

from vitcap.metrics import faithfulness as f

W = np.array([0.1, 0.4, 0.2, 0.3])
MAP = (0.2, 0.5, 0.1, 0.4)


def linear(kept):
    """f(x) = w . x with x = 1 and nothing = 0."""
    return kept @ W


def test_worked_curves_of_a_linear_score():
    order = f.removal_order(MAP)
    assert order.tolist() == [1, 3, 0, 2]
    deletion, insertion = f.deletion_curve(linear, order), f.insertion_curve(linear, order)
    assert deletion == pytest.approx([1, 0.6, 0.3, 0.2, 0])
    assert insertion == pytest.approx([0, 0.4, 0.7, 0.8, 1])
    assert f.curve_area(deletion) == pytest.approx(0.4)
    assert f.curve_area(insertion) == pytest.approx(0.6)
    least = f.deletion_curve(linear, f.removal_order(MAP, least=True))
    assert least == pytest.approx([1, 0.8, 0.7, 0.4, 0])
    assert f.curve_area(least) == pytest.approx(0.6)
    assert f.curve_area(least) - f.curve_area(deletion) == pytest.approx(0.2)
    assert f.aopc(deletion) == pytest.approx(0.58)
    assert f.aopc(least) == pytest.approx(0.42)
    best = f.removal_order(W)
    assert f.curve_area(f.deletion_curve(linear, best)) == pytest.approx(0.375)
    assert f.curve_area(f.insertion_curve(linear, best)) == pytest.approx(0.625)
    assert f.comprehensiveness(linear, order, 2) == pytest.approx(0.7)
    assert f.sufficiency(linear, order, 2) == pytest.approx(0.3)
    assert f.combined([-0.05], [-0.45]) == pytest.approx(0.2)


def test_no_order_of_a_linear_score_is_better_than_its_weights():
    from itertools import permutations

    areas = [f.curve_area(f.deletion_curve(linear, order)) for order in permutations(range(4))]
    assert min(areas) == pytest.approx(0.375)
    assert max(areas) == pytest.approx(0.625)


def test_coarse_steps_keep_their_place_on_the_axis():
    assert f.step_counts(4).tolist() == [0, 1, 2, 3, 4]
    assert f.step_counts(49, 8).tolist() == [0, 6, 12, 18, 24, 31, 37, 43, 49]
    assert f.step_counts(4, 9).tolist() == [0, 1, 2, 3, 4]  # no more steps than patches
    counts = np.array([0, 1, 4])
    curve = f.deletion_curve(linear, f.removal_order(MAP), counts)
    assert f.curve_area(curve, counts) == pytest.approx(((1 + 0.6) / 2 * 1 + (0.6 + 0) / 2 * 3) / 4)
    with pytest.raises(ValueError, match="steps=0"):
        f.step_counts(4, 0)
    with pytest.raises(ValueError, match="3 points at 5 counts"):
        f.curve_area([1, 2, 3], range(5))


def test_deletion_and_insertion_leave_complements():
    order, counts = np.random.default_rng(0).permutation(12), f.step_counts(12, 5)
    left, added = f.deletion_masks(order, counts), f.insertion_masks(order, counts)
    assert (left == ~added).all()
    assert added.sum(1).tolist() == counts.tolist()
    for mask, count in zip(added, counts, strict=True):
        assert set(np.flatnonzero(mask)) == set(order[:count].tolist())


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_a_map_that_says_nothing_scores_nothing(value):
    """A sky on top that no score needs: row-major ties of a naive reversal would gain from it."""
    empty = np.full((4, 4), value)
    score = lambda kept: kept @ np.repeat([0, 1, 2, 3], 4)  # noqa: E731
    most, least = (f.deletion_curve(score, f.removal_order(empty, least=low)) for low in (False, True))
    assert f.combined(least, most) == 0
    naive = f.deletion_curve(score, f.removal_order(empty)[::-1])
    assert abs(f.combined(naive, most)) > 1
    ties = np.random.default_rng(1).permutation(16)
    shuffled = f.removal_order(empty, ties=ties)
    assert shuffled.tolist() == np.argsort(ties).tolist() == f.removal_order(-ties).tolist()
    assert f.combined(f.deletion_curve(score, f.removal_order(empty, least=True, ties=ties)), most) != 0


def test_ties_go_in_their_given_order_both_ways():
    values, ties = [1, 2, 1, 2, 0], [4, 3, 2, 1, 0]
    assert f.removal_order(values).tolist() == [1, 3, 0, 2, 4]
    assert f.removal_order(values, least=True).tolist() == [4, 0, 2, 1, 3]
    assert f.removal_order(values, ties=ties).tolist() == [3, 1, 2, 0, 4]
    with pytest.raises(ValueError, match="finite values"):
        f.removal_order([0.1, float("nan")])
    with pytest.raises(ValueError, match="ties: 2 ranks for a map of 3"):
        f.removal_order([1, 2, 3], ties=[0, 1])


PICTURE = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 10]], dtype=float)


@pytest.mark.parametrize(
    ("missing", "wanted"),
    [([(1, 1)], [5.083333]), ([(0, 0)], [3.4]), ([(1, 0), (1, 1)], [4.543478, 5.173913])],
)
def test_road_worked_values(missing, wanted):
    known = np.ones((3, 3), dtype=bool)
    for place in missing:
        known[place] = False
    unread = np.where(known, PICTURE, np.nan)
    filled = f.road_impute(unread, known)
    assert [filled[place] for place in missing] == pytest.approx(wanted, abs=1e-6)
    assert (filled[known] == PICTURE[known]).all()


def dense(image, known):
    """The linear system written out."""
    places = [tuple(p) for p in np.argwhere(~known)]
    a, b = np.zeros((len(places),) * 2), np.zeros(len(places))
    for row, (y, x) in enumerate(places):
        for dy, dx in ((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j):
            near, weight = (y + dy, x + dx), 1 / 12 if dy and dx else 1 / 6
            if 0 <= near[0] < image.shape[0] and 0 <= near[1] < image.shape[1]:
                a[row, row] += weight
                if known[near]:
                    b[row] += weight * image[near]
                else:
                    a[row, places.index(near)] -= weight
    filled = image.copy()
    filled[~known] = np.linalg.solve(a, b)
    return filled


def test_road_equals_the_dense_system_for_many_masks_and_channels():
    rng = np.random.default_rng(0)
    image, known = rng.normal(size=(3, 7, 9)), rng.random((5, 7, 9)) > np.array([0.1, 0.5, 0.9, 0.98, 0])[:, None, None]
    known[3:, 3, 4] = True
    filled = f.road_impute(image, known)
    assert filled.shape == (5, 3, 7, 9)
    for k in range(5):
        for c in range(3):
            assert filled[k, c] == pytest.approx(dense(image[c], known[k]), abs=1e-7)
    start = rng.normal(size=(5, 3, 7, 9))
    assert f.road_impute(image, known, start=start) == pytest.approx(filled, abs=1e-7)
    half = f.road_impute(image.astype(np.float32), known, tolerance=1e-4)
    assert half.dtype == np.float32
    assert half == pytest.approx(filled, abs=1e-2)


def test_road_noise_is_seeded_and_only_where_pixels_are_missing():
    known = np.ones((2, 6, 6), dtype=bool)
    known[0, 2:5, 1:4] = known[1, 2:5, 2:6] = False
    image = np.random.default_rng(0).normal(size=(6, 6))
    plain = f.road_impute(image, known)
    one, two = (f.road_impute(image, known, noise=0.1, generator=np.random.default_rng(3)) for _ in range(2))
    assert (one == two).all()
    assert (one == plain)[known].all()
    noise = one - plain
    assert 0.03 < noise[~known].std() < 0.3
    both = ~known[0] & ~known[1]
    assert noise[0][both] == pytest.approx(noise[1][both])
    with pytest.raises(ValueError, match="noise needs a generator"):
        f.road_impute(image, known, noise=0.1)


def test_road_errors():
    with pytest.raises(ValueError, match="no pixel is known"):
        f.road_impute(PICTURE, np.zeros((3, 3)))
    with pytest.raises(ValueError, match="one height and width"):
        f.road_impute(PICTURE, np.ones((2, 3)))


def test_drop_increase_gain():
    y, o = (0.8, 0.5, 0.2), (0.6, 0.55, 0.05)
    assert f.average_drop(y, o) == pytest.approx(1 / 3)
    assert f.increase(y, o) == pytest.approx(1 / 3)
    assert f.average_gain(y, o) == pytest.approx(1 / 30)


def test_log_probability_drops_of_words():
    before, after = np.log([0.6, 0.5, 0.9]), np.log([0.2, 0.45, 0.3])
    drops = [
        f.comprehensiveness(lambda kept, a=a, b=b: np.where(kept.all(1), b, a), [0, 1], 1)
        for a, b in zip(after, before, strict=True)
    ]
    assert drops == pytest.approx([1.098612, 0.105361, 1.098612], abs=1e-6)
    assert np.mean(drops) == pytest.approx(0.767528, abs=1e-6)


def test_infidelity():
    perturbations = np.array([[1, 0, 0, 0], [0, 1, 1, 0]])
    drops = linear(np.ones((1, 4))) - linear(1 - perturbations)
    assert f.infidelity(W, perturbations, drops) == pytest.approx(0, abs=1e-12)
    assert f.infidelity([0.25] * 4, perturbations, drops) == pytest.approx(0.01625)


def test_arcc_is_a_harmonic_mean():
    assert f.arcc(0.8, 0.3, 0.2) == pytest.approx(0.579310, abs=1e-6)
    assert f.arcc(1, 0, 0.7) == 1  # cut to 1
    assert f.arcc(0.8, 0.3, -0.1) == 0
