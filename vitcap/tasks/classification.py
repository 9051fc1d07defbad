"""Training of image classifiers by cross-entropy, and their scores on the validation split."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import v2

from vitcap.memory import Halving
from vitcap.metrics.classification import Predictions, check_labels, score
from vitcap.models.classifier import ImageClassifier
from vitcap.processes import collect, in_all, share, weigh
from vitcap.tasks.base import TrainingTask
from vitcap.types import Batch, require_number


class ClassifyTask(TrainingTask):
    """An ImageClassifier in training.

    model: what is trained. lr (of the head), encoder_lr, layer_decay, weight_decay, betas, warmup, label_smoothing: see
    TrainingTask.
    mixup, cutmix: the alpha of Beta(alpha, alpha) that draws the share of each picture (Zhang et al. 2018; Yun et al.
        2019), 0 for none; of both each batch has one, with equal chances. mix_probability: share of batches mixed.

    Logs train/loss and val/loss, val/top1, val/top5 (val/top3 of three classes, and so on), val/nll, val/ece.
    Raises ValueError for options out of range, for labels that are no class and at a loss that is not finite.
    """

    rest = "head"

    def __init__(
        self,
        model: ImageClassifier,
        *,
        lr: float = 1e-3,
        encoder_lr: float | None = None,
        layer_decay: float = 1.0,
        weight_decay: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        warmup: float = 0.05,
        label_smoothing: float = 0.1,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_probability: float = 1.0,
    ) -> None:
        super().__init__(
            model,
            lr=lr,
            encoder_lr=encoder_lr,
            weight_decay=weight_decay,
            betas=betas,
            warmup=warmup,
            label_smoothing=label_smoothing,
            layer_decay=layer_decay,
        )
        require_number("task.mixup", mixup, 0)
        require_number("task.cutmix", cutmix, 0)
        require_number("task.mix_probability", mix_probability, 0, 1)
        self.mix_probability = mix_probability
        kinds = ((v2.MixUp, mixup), (v2.CutMix, cutmix))
        self.mixes = [kind(alpha=alpha, num_classes=model.classes) for kind, alpha in kinds if alpha]
        self.fitting = Halving("validation")
        self._seen: dict[int, Predictions] = {}
        self.predictions: Predictions | None = None

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Labels are checked on the CPU: on a GPU a wrong one is an assertion that names nothing."""
        if len(batch) or share()[1] == 1:  # of several processes some may have no record
            check_labels(batch.labels, batch.ids, self.model.classes)
        return batch

    def on_train_start(self) -> None:
        """Dropout on, whatever the model did before."""
        self.model.train()

    def mix(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised images (B, 3, H, W), labels (B,) -> mixed images and the shares (B, C) of the classes in them; as
        they were where nothing is to be mixed."""
        if not self.mixes or torch.rand(()).item() >= self.mix_probability:
            return images, labels
        return self.mixes[int(torch.randint(len(self.mixes), ()))](images, labels)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of a batch, mixed if so asked; of several processes each mixes its share in itself."""
        nothing = share()[1] > 1 and not len(batch)
        loss, shown, count = weigh(loss=(None if nothing else self._loss(batch), len(batch)))["loss"]
        self.log("train/loss", shown, batch_size=count, prog_bar=True, on_step=True, on_epoch=True)
        return loss + self.no_loss() if nothing else loss

    def _loss(self, batch: Batch) -> Tensor:
        images, labels = batch.images, batch.labels
        assert labels is not None
        if self.mixes and images is None:
            raise ValueError("cached features cannot be mixed: set task.mixup=0 and task.cutmix=0, or data.cache=null")
        if images is not None:  # bytes cannot be averaged, so pictures are normalised first
            images, labels = self.mix(self.model.normalise(images), labels)
        logits = self.model(Batch(batch.ids, images=images, features=batch.features)).float()
        loss = F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        if not torch.isfinite(loss):
            records = ", ".join(map(str, batch.ids[:3]))
            cause = f"{self._cause(images, logits)} (records {records}, ...)"
            self.not_finite(f"the loss is {loss.item()} at step {self.global_step}: {cause}")
        return loss

    def _cause(self, images: Tensor | None, logits: Tensor) -> str:
        if images is not None and not torch.isfinite(images).all():
            return "pictures with values that are not finite; check data.source and the mean and std"
        if wrong := [name for name, p in self.model.named_parameters() if not torch.isfinite(p).all()]:
            return f"weights are not finite ({wrong[0]}): lower task.lr, lengthen task.warmup or clip the gradient"
        if self._trainer is not None and str(self.trainer.precision).startswith("16"):
            return "half precision overflows beyond 65504: set trainer.precision=bf16-mixed or 32-true"
        return f"logits reach {logits.abs().nan_to_num(0, 0).max().item():.3g}: lower task.lr or lengthen task.warmup"

    def on_validation_epoch_start(self) -> None:
        """Forget the predictions of the last time."""
        self._seen = {}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Keeps what the scores need of a batch."""
        if not len(batch):  # of several processes some have a batch less
            return
        assert batch.labels is not None
        logits = torch.cat(self.fitting(self.model, batch))
        self._seen[in_all(batch_idx)] = Predictions.of(logits, batch.labels, batch.ids)

    def on_validation_epoch_end(self) -> None:
        """Scores of the whole split, the same for any number of processes; val/loss is its NLL, without smoothing."""
        if not (seen := collect(self._seen)):
            return
        self.predictions = predictions = Predictions.join(seen)
        card = score(predictions, diagnose=False)
        figures = {name.lower().replace("-", ""): value for name, value in card.corpus.items() if value is not None}
        for name, value in (figures | {"loss": figures["nll"]}).items():
            self.log(f"val/{name}", value, batch_size=len(predictions), prog_bar=name == "top1")
