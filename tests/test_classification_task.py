"""Training of classifiers: the loss against worked values, the groups, the guards, and a run that learns."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from vitcap.models.classifier import ImageClassifier
from vitcap.models.vit import VisionTransformer
from vitcap.tasks.classification import ClassifyTask
from vitcap.tasks.optim import layer_scales, parameter_groups
from vitcap.types import Batch, Memory


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Given(nn.Module):
    """An encoder whose pooled vector are the first numbers of the picture."""

    width = 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        pooled = images.flatten(1)[:, :3] * self.scale
        return Memory(pooled[:, None], pooled=pooled)

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        return Memory(features, pooled=features[:, 0] * self.scale)


def given(classes: int = 3) -> ImageClassifier:
    """Logits = the first three numbers of a picture."""
    model = ImageClassifier(Given(), classes=classes, mean=(0.0,) * 3, std=(1.0,) * 3)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(classes, 3))
    return model


def small(**options: Any) -> ImageClassifier:
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "width": 16, "depth": 2, "heads": 2} | options
    return ImageClassifier(VisionTransformer(**sizes), classes=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def trainer(**options: Any) -> L.Trainer:
    quietly = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(**({"accelerator": "cpu", "max_epochs": 1, "enable_checkpointing": False} | quietly | options))


def loader(batches: list[Batch]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)  # type: ignore[arg-type]


def coloured(count: int, seed: int) -> list[Batch]:
    """Pictures of noise in which one channel is brighter, its number the label; uint8, eight a batch."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    images = torch.randint(0, 190, (count, 3, 16, 16), generator=generator)
    images[torch.arange(count), labels] += 60
    return [
        Batch(tuple(range(i, i + 8)), images=images[i : i + 8].to(torch.uint8), labels=labels[i : i + 8])
        for i in range(0, count, 8)
    ]


def loss_of(task: ClassifyTask, images: Tensor, labels: Tensor) -> float:
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign, assignment]
    return float(task.training_step(Batch(tuple(range(len(images))), images=images, labels=labels), 0))


def logits_as_picture(*rows: tuple[float, float, float]) -> Tensor:
    return torch.tensor(rows).view(len(rows), 3, 1, 1)


def test_loss_by_hand() -> None:
    """Logits (2, 0, 0), label 0: .239545, smoothed by .1 .372878."""
    images, labels = logits_as_picture((2, 0, 0)), torch.tensor([0])
    assert loss_of(ClassifyTask(given(), label_smoothing=0.0), images, labels) == pytest.approx(0.239545, abs=1e-6)
    assert loss_of(ClassifyTask(given(), label_smoothing=0.1), images, labels) == pytest.approx(0.372878, abs=1e-6)


def test_cached_features_train_but_are_not_mixed() -> None:
    batch = Batch((0,), features=torch.tensor([[[2.0, 0.0, 0.0]]]), labels=torch.tensor([0]))
    task = ClassifyTask(given(), label_smoothing=0.0)
    task.log = lambda *args, **kwargs: None  # type: ignore[method-assign, assignment]
    assert float(task.training_step(batch, 0)) == pytest.approx(0.239545, abs=1e-6)
    with pytest.raises(ValueError, match="cached features cannot be mixed"):
        ClassifyTask(given(), mixup=0.2).training_step(batch, 0)


def test_mixup_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share .7 of class 0 and .3 of class 1, logits (2, 0, 0) after mixing: .839545."""
    monkeypatch.setattr(torch, "_sample_dirichlet", lambda alpha, *_: torch.tensor([0.7, 0.3]).expand(alpha.shape))
    task = ClassifyTask(given(), mixup=0.8, label_smoothing=0.0)
    first, second = torch.tensor([2.0, 0.0, 0.0]), torch.tensor([2.0, 0.0, 0.0])
    images = torch.stack([first, second]).view(2, 3, 1, 1)
    mixed, shares = task.mix(images, torch.tensor([0, 1]))
    assert_close(shares, torch.tensor([[0.7, 0.3, 0.0], [0.3, 0.7, 0.0]]))
    assert_close(mixed, images)
    both = (0.839545 + 0.3 * 0.239545 + 0.7 * 2.239545) / 2
    assert loss_of(task, images, torch.tensor([0, 1])) == pytest.approx(both, abs=1e-6)


def test_mixing_is_of_pictures_and_labels_alike() -> None:
    """The shares of the labels are those of the pixels, whatever was drawn, also from bytes."""
    model = ImageClassifier(Given(), classes=3, mean=(0.0,) * 3, std=(1 / 255,) * 3)  # bytes pass as floats
    values = torch.tensor([100, 200, 50], dtype=torch.uint8)
    images = values.view(3, 1, 1, 1).expand(3, 3, 16, 16)
    for options in ({"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}):
        task = ClassifyTask(model, **options)
        kinds = set()
        for seed in range(12):
            torch.manual_seed(seed)
            mixed, shares = task.mix(model.normalise(images), torch.tensor([0, 1, 2]))
            assert_close(shares.sum(1), torch.ones(3))
            assert_close(mixed.mean((1, 2, 3)), shares @ values.float(), atol=1e-2, rtol=0)
            kinds.add("cut" if len(mixed[0].unique()) > 1 else "mixed or whole")
        assert ("cut" in kinds) == ("cutmix" in options)


def test_share_of_batches_that_are_mixed() -> None:
    task = ClassifyTask(given(), mixup=1.0, mix_probability=0.25)
    torch.manual_seed(0)
    mixed = [task.mix(torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))[1].ndim == 2 for _ in range(400)]
    assert 70 < sum(mixed) < 130


def test_layer_decay_by_hand() -> None:
    """.75, 12 blocks: embeddings .023757, block 0 .031676, block 5 .133484, block 11 .75, norm and head 1."""
    encoder = VisionTransformer(image_size=16, patch_size=8, width=8, depth=12, heads=2, registers=1)
    scales = layer_scales(encoder, 0.75)
    assert set(scales) == {name for name, _ in encoder.named_parameters()}
    for name, layer, factor in (
        ("patch_embed.proj.weight", 0, 0.023757),
        ("pos_embed", 0, 0.023757),
        ("cls_token", 0, 0.023757),
        ("reg_token", 0, 0.023757),
        ("blocks.0.attn.qkv.weight", 1, 0.031676),
        ("blocks.5.norm1.bias", 6, 0.133484),
        ("blocks.11.mlp.fc2.weight", 12, 0.75),
        ("norm.weight", 13, 1.0),
    ):
        assert scales[name] == (layer, pytest.approx(factor, abs=1e-6))
    model = ImageClassifier(encoder, classes=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    options: dict[str, Any] = {"lr": 1e-2, "encoder_lr": 1e-3, "weight_decay": 0.05, "rest": "head"}
    groups = parameter_groups(model, encoder=encoder, **options, layer_decay=0.75)
    every = [id(p) for group in groups for p in group["params"]]  # type: ignore[attr-defined]
    assert sorted(every) == sorted(id(p) for p in model.parameters())
    rates = {str(group["name"]): group["lr"] for group in groups}
    assert len(rates) == len(groups) == 2 * 14 + 2 - 1  # the final norm has no matrix
    assert rates["encoder layer 6 without decay"] == pytest.approx(1e-3 * 0.133484, rel=1e-5)
    assert rates["encoder layer 12"] == pytest.approx(0.75e-3)
    assert rates["head"] == rates["head without decay"] == 1e-2
    plain = parameter_groups(model, encoder=encoder, **options)
    assert [g["name"] for g in plain] == ["head without decay", "head", "encoder without decay", "encoder"]
    with pytest.raises(ValueError, match=r"layer_decay=0.5 goes by the blocks of a Transformer, and Given has none"):
        parameter_groups(given(), encoder=given().encoder, **options, layer_decay=0.5)


def test_it_learns_and_logs_what_it_learnt() -> None:
    task = ClassifyTask(small(), lr=3e-3, label_smoothing=0.05, mixup=0.2, layer_decay=0.9, warmup=0.1)
    run = trainer(max_epochs=4)
    run.fit(task, loader(coloured(160, 0)), loader(coloured(64, 1)))
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    assert logged["val/top1"] > 0.9
    assert logged["val/top3"] == 1
    assert logged["val/nll"] == logged["val/loss"] < 0.5
    assert 0 <= logged["val/ece"] < 0.5
    assert "train/loss" in logged
    # The logged figures are those of all validation pictures at once.
    batches = coloured(64, 1)
    with torch.no_grad():
        logits = torch.cat([task.model.eval()(batch) for batch in batches])
    truth = torch.cat([batch.labels for batch in batches if batch.labels is not None])
    assert logged["val/top1"] == pytest.approx(float((logits.argmax(1) == truth).float().mean()))
    assert logged["val/nll"] == pytest.approx(float(nn.functional.cross_entropy(logits, truth)), rel=1e-5)


def test_labels_are_checked_before_the_loss() -> None:
    bad = Batch(("a.jpg", "b.jpg"), images=torch.zeros(2, 3, 16, 16, dtype=torch.uint8), labels=torch.tensor([0, 3]))
    with pytest.raises(ValueError, match=r"record 'b.jpg' has label 3, the model has classes 0 to 2"):
        trainer().fit(ClassifyTask(small()), loader([bad]))
    none = Batch(("a.jpg",), images=torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"1 records \('a.jpg'\) with no labels"):
        trainer().fit(ClassifyTask(small()), loader([none]))


def test_a_loss_that_is_not_finite_stops_with_its_cause() -> None:
    images, labels = logits_as_picture((2, 0, 0)), torch.tensor([0])
    with pytest.raises(ValueError, match="loss is nan at step 0: pictures with values that are not finite"):
        loss_of(ClassifyTask(given()), images * math.nan, labels)
    task = ClassifyTask(given())
    with torch.no_grad():
        task.model.head.bias[1] = math.nan
    with pytest.raises(ValueError, match=r"weights are not finite \(head.bias\): lower task.lr"):
        loss_of(task, images, labels)
    big = ClassifyTask(given(), label_smoothing=0.0)
    with torch.no_grad():
        big.model.encoder.scale.fill_(1e38)
        big.model.head.weight.mul_(1e38)
    with pytest.raises(ValueError, match=r"logits reach .*: lower task.lr or lengthen"):
        loss_of(big, images, labels)


def test_a_rate_far_too_high_ends_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+: (weights|logits) .*lower task.lr"):
        trainer(max_epochs=20).fit(ClassifyTask(small(), lr=1e30, warmup=0.0), loader(coloured(32, 0)))


def test_copies_for_averaged_weights_are_of_their_own() -> None:
    task = ClassifyTask(small())
    run = trainer(max_epochs=1, limit_train_batches=1)
    run.fit(task, loader(coloured(8, 0)))
    twin = copy.deepcopy(task)
    assert twin._trainer is task._trainer
    with torch.no_grad():
        twin.model.head.weight.zero_()
    assert task.model.head.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("lr", -1.0),
        ("label_smoothing", 1.5),
        ("mixup", -0.1),
        ("layer_decay", 0.0),
        ("layer_decay", 1.1),
        ("betas", (0.9, 1.0)),
        ("mix_probability", 2),
        ("warmup", -0.1),
    ],
)
def test_options_out_of_range_are_named(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"task.{option}="):
        ClassifyTask(given(), **{option: value})
