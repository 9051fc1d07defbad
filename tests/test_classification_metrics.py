"""Scores of classifiers against published worked values, loops, and torchmetrics."""

from __future__ import annotations

import json
import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
    multiclass_confusion_matrix,
)

from vitcap.metrics.classification import Predictions, calibration, confusion, real_accuracy, score
from vitcap.metrics.relabelling import assignment, best_relabelling
from vitcap.viz.confusion import confusion_picture


def drawn(count: int = 400, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    logits = 2 * torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), labels] += 1.5
    return logits, labels


def predictions(logits: Tensor, labels: Tensor, **options: Any) -> Predictions:
    return Predictions.of(logits, labels, range(len(labels)), **options)


def of_classes(labels: list[int], predicted: list[int], classes: int) -> Predictions:
    """Predictions that are sure of one class each."""
    return predictions(10.0 * torch.eye(classes)[torch.tensor(predicted)], torch.tensor(labels))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_scores_are_torchmetrics(classes: int) -> None:
    logits, labels = drawn(classes=classes)
    card = score(predictions(logits, labels))
    k = min(5, classes)
    expected: dict[str, Any] = {
        "top-1": multiclass_accuracy(logits, labels, classes, average="micro"),
        f"top-{k}": multiclass_accuracy(logits, labels, classes, average="micro", top_k=k),
        "ECE": multiclass_calibration_error(logits.softmax(1), labels, classes, n_bins=15, norm="l1"),
        "NLL": torch.nn.functional.cross_entropy(logits, labels),
        "Brier": (logits.softmax(1) - torch.eye(classes)[labels]).square().sum(1).mean(),
    }
    assert card.corpus == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-5)
    assert card.facts["MCE"] == pytest.approx(
        float(multiclass_calibration_error(logits.softmax(1), labels, classes, n_bins=15, norm="max")), abs=1e-5
    )
    assert np.array_equal(card.confusion, multiclass_confusion_matrix(logits, labels, classes).numpy())
    each = multiclass_accuracy(logits, labels, classes, average="none").tolist()
    assert list(card.per_class.values()) == pytest.approx(each)
    assert card.facts["mean_per_class"] == pytest.approx(sum(each) / classes)


def test_top_k_is_capped_and_named_so() -> None:
    card = score(predictions(*drawn(classes=3)))
    assert "top-5" not in card.corpus
    assert card.corpus["top-3"] == 1
    assert "top-3, since there are 3 classes" in card.table()
    assert "top-5" in score(predictions(*drawn(classes=5))).corpus


def test_calibration_by_hand() -> None:
    """Guo et al.'s bins (lo, hi]: .95, .9 | .8 | .6, .55 with 10 bins."""
    expected, largest = calibration([0.95, 0.9, 0.8, 0.6, 0.55], [1, 1, 0, 1, 0], bins=10)
    assert expected == pytest.approx(0.22)
    assert largest == pytest.approx(0.8)
    assert calibration([1.0, 1.0], [1, 1]) == (0.0, 0.0)
    # An edge belongs to the interval below it: .5 and .51 do not share one.
    assert calibration([0.5, 0.51], [1, 0], bins=2)[0] == pytest.approx((0.5 + 0.51) / 2)


def test_likelihood_by_hand() -> None:
    """[[.7, .2, .1], [.1, .3, .6]], labels 0 and 1: NLL .780324, Brier .5."""
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]).log()
    card = score(predictions(logits, torch.tensor([0, 1])))
    assert card.corpus["NLL"] == pytest.approx(0.780324, abs=1e-6)
    assert card.corpus["Brier"] == pytest.approx((0.49 - 1.4 + 1 + 0.04 + 0.01 + 0.01 + 0.49 + 0.36) / 2, abs=1e-6)
    assert card.corpus["Brier"] == pytest.approx(0.5, abs=1e-6)
    assert card.corpus["top-1"] == 0.5


def test_equal_logits_give_no_point_for_nothing() -> None:
    """A model that says the same for all classes is right about the first class only, at every k."""
    card = score(predictions(torch.zeros(20, 20), torch.arange(20)))
    assert card.corpus["top-1"] == 1 / 20
    assert card.corpus["top-5"] == 5 / 20
    assert card.confusion[:, 0].sum() == 20


def test_any_number_of_processes_scores_alike() -> None:
    """10 samples on 4 ranks, padded with the first ids as samplers do: .6, and not .666667."""
    correct = [1, 1, 1, 0, 0, 1, 0, 1, 1, 0]
    logits = torch.zeros(10, 2)
    logits[torch.arange(10), torch.tensor(correct)] = 1
    labels = torch.ones(10, dtype=torch.long)
    order = [*range(10), 0, 1]
    ranks = [order[rank::4] for rank in range(4)]
    parts = [Predictions.of(logits[ids], labels[ids], ids) for ids in ranks]
    assert sum(float((part.rank == 0).sum()) for part in parts) / 12 == pytest.approx(2 / 3)
    joined = score(Predictions.join(parts))
    assert joined.corpus["top-1"] == pytest.approx(0.6)
    assert (joined.facts["samples"], joined.facts["repeated_samples_left_out"]) == (10, 2)
    whole = score(Predictions.of(logits, labels, range(10)))
    assert joined.corpus == pytest.approx(whole.corpus)
    assert np.array_equal(joined.confusion, whole.confusion)
    halves = Predictions.join([Predictions.join(parts[:2]), Predictions.join(parts[2:])])
    assert (len(halves), halves.repeated) == (10, 2)


def test_subset_chooses_among_its_classes_only() -> None:
    """Logits (2, 5, 1, 4), subset {0, 2, 3}: 1 of all, 3 of the subset."""
    logits, labels = torch.tensor([[2.0, 5.0, 1.0, 4.0]]), torch.tensor([3])
    whole, part = predictions(logits, labels), predictions(logits, labels, subset=[3, 0, 2])
    assert (whole.predicted[0], whole.rank[0]) == (1, 1)
    assert (part.predicted[0], part.rank[0]) == (3, 0)
    assert part.nll[0] == pytest.approx(-math.log(math.exp(4) / sum(map(math.exp, (2, 1, 4)))))
    assert part.confidence[0] == pytest.approx(math.exp(-part.nll[0]))
    card = score(part)
    assert card.corpus["top-1"] == card.corpus["top-3"] == 1
    assert card.confusion.shape == (4, 4)
    assert "among the 3 classes" in card.table()
    with pytest.raises(ValueError, match=r"labels of 0 are not among the 2 classes of the subset"):
        predictions(logits, labels, subset=[0, 1])


def test_real_labels_by_hand() -> None:
    """Predictions 3, 5, 1, 7; sets {3, 4}, {2}, {}, {7}: 2 of 3 images."""
    found = of_classes([3, 5, 1, 7], [3, 5, 1, 7], 8)
    real = {0: {3, 4}, 1: {2}, 2: set(), 3: {7}}
    assert real_accuracy(found, real) == (pytest.approx(2 / 3), 3)
    card = score(found, real=real)
    assert card.corpus["ReaL"] == pytest.approx(2 / 3)
    assert card.facts["real_images"] == 3
    with pytest.raises(ValueError, match="no ReaL labels for 3"):
        real_accuracy(found, {i: {0} for i in range(3)})
    assert real_accuracy(found, {i: set() for i in range(4)}) == (None, 0)


@pytest.mark.parametrize(
    ("labels", "ids", "message"),
    [
        ([0, 3], ["a", "b"], r"record 'b' has label 3, the model has classes 0 to 2 \(1 such"),
        ([-1, 0], ["a", "b"], r"record 'a' has label -1"),
        ([0], ["a", "b"], r"2 records \('a', 'b'\) with 1 labels"),
    ],
)
def test_labels_that_are_no_class_name_their_record(labels: list[int], ids: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Predictions.of(torch.zeros(len(ids), 3), torch.tensor(labels), ids)


def test_logits_that_are_not_finite_are_refused() -> None:
    logits = torch.zeros(3, 2)
    logits[1, 0], logits[2, 1] = math.nan, math.inf
    with pytest.raises(ValueError, match="logits of 1, 2 are not finite"):
        predictions(logits, torch.zeros(3, dtype=torch.long))


def test_nothing_to_score_and_names_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="split is empty"):
        Predictions.join([])
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        score(of_classes([0], [0], 3), classes=["a", "b"])
    with pytest.raises(ValueError, match="different classes"):
        Predictions.join([of_classes([0], [0], 3), of_classes([0], [0], 4)])


def test_card_in_json_and_as_text() -> None:
    found = of_classes([0, 0, 1, 1, 1], [0, 1, 1, 0, 0], 3)
    card = score(found, classes=["crane", "owl", "crane"], about={"split": "val"})
    assert card.per_class == {"crane (0)": 0.5, "owl": pytest.approx(1 / 3), "crane (2)": None}
    assert card.facts["most_confused"] == {"owl as crane (0)": 2, "crane (0) as owl": 1}
    assert card.facts["classes_without_samples"] == 1
    text = json.dumps(card.to_dict(), allow_nan=False)
    assert json.loads(text)["scores"]["top-1"] == pytest.approx(0.4)
    table = card.table()
    assert "top-1       40.00 %" in table
    assert "nats" in table
    assert "owl as crane (0) 2" in table


def test_confusion_counts_rows_by_truth() -> None:
    assert confusion([0, 0, 1, 2], [1, 1, 1, 0], 3).tolist() == [[0, 2, 0], [0, 1, 0], [1, 0, 0]]


# --- class order ---


def test_assignment_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        size = int(rng.integers(1, 7))
        profit = rng.integers(-5, 9, (size, size))
        found = assignment(profit)
        assert sorted(found) == list(range(size))
        best = max(profit[range(size), list(p)].sum() for p in permutations(range(size)))
        assert profit[range(size), found].sum() == best
    with pytest.raises(ValueError, match="square"):
        assignment(np.zeros((2, 3)))


def test_another_class_order_is_found_out() -> None:
    """20 numbered classes sorted as text: the model's 2 is here 10."""
    text = sorted(range(20), key=str)
    labels = [i for i in range(20) for _ in range(6)]
    predicted = [text.index(i) if n % 5 else (i * 7) % 20 for n, i in enumerate(labels)]
    card = score(of_classes(labels, predicted, 20), classes=[f"no {i}" for i in range(20)])
    assert card.corpus["top-1"] is not None
    assert card.corpus["top-1"] < 0.2
    (warning,) = card.facts["warnings"]
    assert warning.startswith("class order differs")
    found = best_relabelling(labels, predicted, 20)
    assert found is not None
    assert 0.7 < found.held_out < 0.9
    assert set(found.moves) >= {(text.index(i), i) for i in range(20) if text.index(i) != i}
    assert "no 12 -> no 2" in warning or all(f"no {a} -> no {b}" in warning for a, b in found.moves[:3])
    assert not score(of_classes(labels, predicted, 20), diagnose=False).facts["warnings"]


def test_guessing_is_called_near_chance_and_not_another_order() -> None:
    """Relabelling fits noise on the samples it is found on; it must not count there."""
    rng = np.random.default_rng(0)
    labels = [i for i in range(100) for _ in range(2)]
    (warning,) = score(of_classes(labels, rng.integers(0, 100, 200).tolist(), 100)).facts["warnings"]
    assert "near chance (1.0 %)" in warning
    single = score(of_classes(list(range(50)), rng.permutation(50).tolist(), 50)).facts["warnings"]
    assert "near chance" in single[0]  # one sample a class cannot tell
    assert best_relabelling(range(5), range(5), 5) is None


def test_good_and_collapsed_models() -> None:
    labels = [0, 1, 2, 3, 4, 5] * 4
    assert score(of_classes(labels, labels, 6)).facts["warnings"] == []
    warnings = score(of_classes(labels, [2] * 24, 6)).facts["warnings"]
    assert any("every prediction is 2" in warning for warning in warnings)


# --- the picture ---


def test_picture_shows_shares_of_rows() -> None:
    counts = np.array([[8, 2, 0], [0, 0, 0], [0, 5, 5]])
    picture = np.asarray(confusion_picture(counts, ["cat", "dog", "owl"], title="val"))
    cell, right = 60, 10 + 16 + 60 + 20
    top, left = picture.shape[0], picture.shape[1] - right - 3 * cell
    top = next(y for y in range(top) if (picture[y, left] != 255).any() and (picture[y + 30, left + 5] != 255).any())

    def colour(row: int, column: int) -> list[int]:
        return picture[top + row * cell + 6, left + column * cell + 6].tolist()

    assert colour(0, 0) != colour(0, 1) != colour(0, 2)
    assert sum(colour(0, 0)) > sum(colour(0, 1)) > sum(colour(0, 2))  # inferno brightens
    assert colour(2, 1) == colour(2, 2) != colour(0, 0)
    assert len({tuple(colour(1, column)) for column in range(3)}) == 1  # grey: nothing to count


def test_picture_of_a_thousand_classes_is_plain() -> None:
    counts = np.eye(1000, dtype=int)
    picture = confusion_picture(counts, [f"class {i}" for i in range(1000)])
    assert 1000 < picture.width < 1300
    assert 1000 < picture.height < 1200
    named = confusion_picture(np.eye(50, dtype=int), [f"a rather long name of class {i}" * 3 for i in range(50)])
    assert named.width < 1500
    for counts, names in ((np.eye(3), ["a", "b"]), (-np.eye(2), ["a", "b"]), (np.zeros((0, 0)), [])):
        with pytest.raises(ValueError, match=r"square matrix|0 or more"):
            confusion_picture(counts, names)
