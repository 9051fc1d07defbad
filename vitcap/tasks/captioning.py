"""Training of captioning models by cross-entropy, and their scores on the validation split."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
import torch.nn.functional as F
from torch import Tensor

from vitcap.metrics.captions import score
from vitcap.models.captioner import CaptionModel
from vitcap.tasks.optim import make_optimizer, parameter_groups
from vitcap.types import PAD, Batch, Generated, require_number

Id = int | str


def caption_loss(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> tuple[Tensor, int]:
    """Mean cross-entropy over the words of all captions; PAD does not count.

    logits: (B, G, T, V); targets: (B, G, T). Returns the loss in nats per token and the number of tokens.
    """
    known = targets != PAD
    loss = F.cross_entropy(logits[known].float(), targets[known], label_smoothing=label_smoothing)
    return loss, int(known.sum())


class CaptionTask(L.LightningModule):
    """A CaptionModel in training.

    model: what is trained. search: decoding of the validation captions. decode: token ids -> text.
    references: reference captions of every validation image. judge: further scores of id -> caption (facts about
    drawn scenes), or None.
    lr, encoder_lr: peak learning rates of the decoder and of the encoder's trainable part; encoder_lr None = lr.
    weight_decay, betas: of AdamW. warmup: share of all steps, 0..1. label_smoothing: 0..1 (Szegedy et al. 2016).
    freeze_encoder_epochs: the encoder's trainable part stays as it is for so many epochs.
    """

    def __init__(
        self,
        model: CaptionModel,
        *,
        search: Callable[..., Generated],
        decode: Callable[[Sequence[int]], str],
        references: Mapping[Id, Sequence[str]],
        judge: Callable[[Mapping[Id, str]], dict[str, float]] | None = None,
        lr: float = 5e-4,
        encoder_lr: float | None = None,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
        warmup: float = 0.05,
        label_smoothing: float = 0.1,
        freeze_encoder_epochs: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("lr", lr), ("encoder_lr", lr if encoder_lr is None else encoder_lr)):
            require_number(f"task.{name}", value, 0)
        require_number("task.weight_decay", weight_decay, 0)
        for name, value in (("warmup", warmup), ("label_smoothing", label_smoothing)):
            require_number(f"task.{name}", value, 0, 1)
        require_number("task.freeze_encoder_epochs", freeze_encoder_epochs, 0, whole=True)
        if len(betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"task.betas={list(betas)}: two numbers of at least 0 and below 1 are wanted")
        self.model = model
        self.search, self.decode, self.references, self.judge = search, decode, references, judge
        self.lr, self.encoder_lr = lr, lr if encoder_lr is None else encoder_lr
        self.weight_decay, self.betas, self.warmup = weight_decay, (betas[0], betas[1]), warmup
        self.label_smoothing, self.freeze_encoder_epochs = label_smoothing, freeze_encoder_epochs
        self._trainable = [p for p in model.encoder.parameters() if p.requires_grad]
        self.captions: dict[Id, str] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> CaptionTask:
        """Copies (for averaged weights) share everything but the model."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = {"search", "decode", "references", "judge", "_trainer"}
        for key, value in self.__dict__.items():
            twin.__dict__[key] = value if key in shared else copy.deepcopy(value, memo)
        return twin

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Cross-entropy of all captions of all images of the batch."""
        assert batch.captions is not None
        logits = self.model(batch).logits
        loss, tokens = caption_loss(logits, batch.captions[:, :, 1:], label_smoothing=self.label_smoothing)
        self.log("train/loss", loss, batch_size=tokens, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def on_train_start(self) -> None:
        """Dropout on, whatever the model did before; and a run that goes on inside an epoch has no start of one."""
        self.model.train()
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """Freeze or free the encoder's trainable part."""
        for parameter in self._trainable:
            parameter.requires_grad_(self.current_epoch >= self.freeze_encoder_epochs)

    def on_validation_epoch_start(self) -> None:
        """Forget the captions of the last time."""
        self.captions = {}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss without smoothing, and free-running captions."""
        assert batch.captions is not None
        memory = self.model.encode(batch)
        logits = self.model.decoder(memory, batch.captions[:, :, :-1]).logits
        loss, tokens = caption_loss(logits, batch.captions[:, :, 1:])
        self.log("val/loss", loss, batch_size=tokens)
        best = self.search(self.model.decoder, memory).tokens[:, 0].tolist()
        self.captions.update({id_: self.decode(tokens) for id_, tokens in zip(batch.ids, best, strict=True)})

    def on_validation_epoch_end(self) -> None:
        """Caption metrics of the whole split."""
        if self.trainer.sanity_checking or not self.captions:
            return
        card = score(self.captions, {id_: self.references[id_] for id_ in self.captions})
        figures: dict[str, float] = {name: value for name, value in card.corpus.items() if value is not None}
        if self.judge is not None:
            figures |= self.judge(self.captions)
        for name, value in figures.items():
            self.log(f"val/{name}", value, batch_size=len(self.captions), prog_bar=name == "CIDEr-D")

    def configure_optimizers(self) -> Any:
        """AdamW in groups, linear warm-up and cosine decay per step."""
        total = int(self.trainer.estimated_stepping_batches)
        groups = parameter_groups(
            self.model,
            encoder=self.model.encoder,
            lr=self.lr,
            encoder_lr=self.encoder_lr,
            weight_decay=self.weight_decay,
        )
        optimizer, schedule = make_optimizer(
            groups, betas=self.betas, warmup=max(round(self.warmup * total), 1), total=total
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
